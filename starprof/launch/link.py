"""What the supervisor needs to know of the other nodes, whatever part this node plays."""

from __future__ import annotations

import os
from typing import Protocol

from starprof.launch.address import split_address
from starprof.launch.console import say
from starprof.launch.journal import Journal
from starprof.launch.plan import Plan
from starprof.model import env


class Link(Protocol):
    """This node's connection to the others.

    Attributes:
        node: id of this node.
        run_id: id of the run, the same on all nodes.
        holds_run_file: whether the run file is folded together on this node.
    """

    node: int
    run_id: str
    holds_run_file: bool

    def start(self, journal: Journal) -> None:
        """Begin to work, beside the supervisor; `journal` takes what is measured about the link."""
        ...

    def begin_end(self, *, drained: bool) -> None:
        """This node's job has ended; `drained`: its agent left nothing in the rings."""
        ...

    def busy(self) -> bool:
        """After `begin_end`: whether records are still on their way, or may still come."""
        ...

    def complete(self) -> bool:
        """After `busy`: whether all records of all nodes reached node 0."""
        ...

    def remarks(self) -> list[str]:
        """After `busy`: what the user should know, one line each."""
        ...

    def close(self) -> None:
        """Let go of all connections."""
        ...


class NoLink:
    """A recording of this node alone."""

    holds_run_file = True

    def __init__(self, plan: Plan) -> None:
        self.node = plan.node or 0
        self.run_id = plan.run_id

    def start(self, journal: Journal) -> None:
        """Nothing to start."""

    def begin_end(self, *, drained: bool) -> None:
        """Nobody is waiting for us."""

    def busy(self) -> bool:
        """Never."""
        return False

    def complete(self) -> bool:
        """Always: there is only this node."""
        return True

    def remarks(self) -> list[str]:
        """Nothing to say."""
        return []

    def close(self) -> None:
        """Nothing to close."""


def open_link(plan: Plan) -> Link:
    """Listen as node 0 or join node 0, before the job starts.

    Raises:
        TransportError: the address can't be used, the secret is wrong, or the node id is taken.
    """
    # Only now: hashing costs memory that a recording of one node never needs.
    from starprof.launch.receiver import Receiver
    from starprof.launch.secret import secret_of
    from starprof.launch.sender import Sender

    if plan.join is not None:
        return Sender.join(plan, split_address(plan.join, "--join"), secret_of(plan.token_file))
    assert plan.listen is not None
    given = bool(plan.token_file or os.environ.get(env.TOKEN))
    secret = secret_of(plan.token_file) if given else os.urandom(16).hex().encode()
    receiver = Receiver(plan, split_address(plan.listen, "--listen"), secret)
    host, port = receiver.address
    known = "" if given else f"{env.TOKEN}={secret.decode()} "
    say(f"listening on {host}:{port}; on the other nodes: {known}starprof record --join {host}:{port} -- COMMAND")
    return receiver
