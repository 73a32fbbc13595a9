"""Node 0's side of the link: takes in the records of other nodes and answers for the time (see `visitor`)."""

from __future__ import annotations

import time
from collections.abc import Callable

from starprof.launch.inbox import Inbox
from starprof.launch.journal import Journal
from starprof.launch.plan import Plan
from starprof.launch.post import Post
from starprof.launch.questions import ask_watch
from starprof.spool.audit import Audit

MISSING_PATIENCE_S = 15.0
BUSY_PATIENCE_S = 60.0


class Receiver:
    """Listens for the other nodes of one run.

    Raises:
        TransportError: the address can't be listened on.
    """

    node = 0
    holds_run_file = True

    def __init__(self, plan: Plan, address: tuple[str, int], secret: bytes) -> None:
        self.run_id = plan.run_id
        self._spool = plan.spool
        self._secrets = [secret]
        self._inbox = Inbox(plan.spool, plan.run_id)
        self._audit = Audit.beside(plan.path)
        self._post = Post(self, address, lambda: [self._inbox])
        self._ended_s: float | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which it really listens."""
        return self._post.address

    @property
    def unproven(self) -> int:
        """Connections that have not proven themselves yet."""
        return len(self._post.unproven)

    def start(self, journal: Journal) -> None:  # noqa: ARG002 - the nodes that join measure the clocks
        """Begin to accept nodes."""
        self._post.start()

    def begin_end(self, *, drained: bool) -> None:  # noqa: ARG002 - our own rings are read in place
        """From now on the others have a bounded time to deliver the rest."""
        self._ended_s = time.monotonic()

    def busy(self) -> bool:
        """Whether a node that joined may still deliver."""
        now_s = time.monotonic()
        ended_s = self._ended_s or now_s
        for peer in self._inbox.peers():
            patience_s = MISSING_PATIENCE_S if peer.hang_up is None else BUSY_PATIENCE_S
            if not peer.done and now_s - max(ended_s, peer.seen_s) < patience_s and now_s - ended_s < BUSY_PATIENCE_S:
                return True
        return False

    def complete(self) -> bool:
        """Whether every node that joined said that it delivered everything."""
        return all(peer.done for peer in self._inbox.peers())

    def remarks(self) -> list[str]:
        """Nodes whose records are not complete here."""
        return [
            f"node {p.node} ({p.host}) has not delivered everything: what is missing stays in its own spool there; "
            "add it with `starprof merge`"
            for p in self._inbox.peers()
            if not p.done
        ]

    def close(self) -> None:
        """Stop listening and drop all nodes."""
        self._post.close()

    # What the visitors want.

    def secrets(self) -> list[bytes]:
        """The secret of the run."""
        return self._secrets

    def inbox(self, secret: bytes, wish: dict[str, object]) -> Inbox | str:  # noqa: ARG002 - there is one run
        """The one run."""
        return self._inbox

    def ask(self, secret: bytes, question: dict[str, object], answer: Callable[[bytes], None]) -> None:  # noqa: ARG002
        """Hand a question on to what watches the run."""
        ask_watch(self._spool.root, question, answer)

    def note(self, action: str, **fields: object) -> None:
        """Write it down."""
        self._audit.note(action, by="node 0", **fields)
