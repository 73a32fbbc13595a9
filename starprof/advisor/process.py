"""The advisor's process: beside the supervisor on node 0, between the spool, the coordinator and the state machine.

It is no part of the job: when it dies nothing changes but that, where it had moved the job, the coordinator takes that
back as soon as its lease is over.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starprof.advisor.desk import CoordinatorDesk
from starprof.advisor.events import Action, Event, Move, Note, Tick
from starprof.advisor.feed import SpoolFeed
from starprof.advisor.limits import Authority, Limits
from starprof.advisor.machine import Advisor
from starprof.advisor.webhook import Webhook
from starprof.control.journal import ControlJournal
from starprof.errors import UsageError
from starprof.spool.layout import Spool

EVERY_S = 0.25
STATE = "advisor.json"
"""In the spool: what the advisor is doing, for the live view."""


RANKS = "advisor-ranks.json"
"""Likewise: who the ranks are, for an advisor that starts anew."""


@dataclass(frozen=True)
class Settings:
    """What the process is told.

    Attributes:
        spool: of the recording.
        authority: what to do about what is found.
        limits: of the user.
        webhook: address that suggestions are posted to; None: none.
        parent: process without which it ends; None: none.
    """

    spool: Path
    authority: Authority
    limits: Limits
    webhook: str | None = None
    parent: int | None = None

    @classmethod
    def of(cls, text: str) -> Settings:
        """Read them.

        Raises:
            UsageError: they make no sense.
        """
        try:
            given = json.loads(text)
            return cls(
                Path(given["spool"]),
                Authority(given["authority"]),
                Limits.of(given.get("limits", {})),
                given.get("webhook"),
                given.get("parent"),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"the advisor's settings make no sense: {error!r}") from error


class AdvisorProcess:
    """One run of it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        spool = Spool(settings.spool)
        self._advisor = Advisor(settings.authority, settings.limits)
        self._feed = SpoolFeed(spool.segments, kept=spool.root / RANKS)
        acts = settings.authority is Authority.APPLY
        self._desk = CoordinatorDesk(spool.root, settings.limits.lease_s, acts)
        self._journal: ControlJournal | None = None
        self._attempt = -1
        self._webhook = Webhook(settings.webhook) if settings.webhook else None
        self._state = spool.root / STATE
        self._over = threading.Event()
        self._move: Move | None = None

    def run(self) -> int:
        """Until told to end, or the recorder is gone; returns the exit code."""
        signal.signal(signal.SIGTERM, lambda *_: self._over.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the job; the recorder tells us when to end
        try:
            while not self._over.wait(EVERY_S) and self._parent_lives():
                self.turn()
        finally:
            if self._journal is not None:
                self._journal.close()
            if self._webhook is not None:
                self._webhook.close()
        return 0

    def turn(self) -> None:
        """Read, talk, think; once."""
        for event in self._feed.read():
            self._hear(event)
        self._talk()
        self._hear(Tick())
        self._talk(only_to_move=True)  # which does not wait for the next turn
        self._show()

    def _talk(self, *, only_to_move: bool = False) -> None:
        move, self._move = self._move, None
        if only_to_move and move is None:
            return
        for event in self._desk.talk(move, self._advisor.state(time.monotonic())):
            self._hear(event)

    def _hear(self, event: Event) -> None:
        for action in self._advisor.handle(event, time.monotonic()):
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Move):
            self._move = action
            return
        self._record(action)
        if self._webhook is not None and action.stage in {"suggested", "drain"}:
            self._webhook.post(told(action))

    def _record(self, note: Note) -> None:
        if self._journal is None or self._attempt != self._feed.attempt:
            if self._journal is not None:
                self._journal.close()
            self._attempt = self._feed.attempt
            self._journal = ControlJournal(self._feed.segments, self._feed.node, attempt=max(self._attempt, 0))
        self._journal.advisor(note.cells())
        sys.stderr.write(f"starprof advisor: {note.stage}: {note.mode or ''} {note.reason}\n")

    def _show(self) -> None:
        if self._journal is not None:
            self._journal.tick()
        new = self._state.with_name(STATE + ".new")
        try:
            new.write_text(json.dumps({"schema": 1, "pid": os.getpid(), **self._advisor.state(time.monotonic())}))
            new.rename(self._state)
        except OSError:
            return  # a full disk: the view is old for a while

    def _parent_lives(self) -> bool:
        parent = self._settings.parent
        return parent is None or os.getppid() == parent


def told(note: Note) -> Mapping[str, Any]:
    """A note as it is posted."""
    cells = {name: value for name, value in note.cells().items() if value is not None}
    return {"schema": 1, "kind": "starprof-advice", **cells}
