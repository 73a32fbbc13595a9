"""What the coordinator has done: counted, kept for `status` and `history`, and handed to the journal."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from starprof.control.coordinator.noise import Seen
from starprof.control.modes import Mode
from starprof.sync.noise_scale import Estimate, Squares
from starprof.sync.protocol.messages import Close

KEPT = 1_000
"""Updates and switches that are remembered here; the journal has all."""

RATE_S = 10.0
"""The rate of rounds is that of this time."""


class Journal(Protocol):
    """Where updates and switches are written down; never raises and never waits for long."""

    def update(self, update: Close, *, mode: str, options: Mapping[str, object] | None = None) -> None:
        """A round was closed, or closed again."""
        ...

    def switch(
        self,
        *,
        from_mode: str,
        to_mode: str,
        asked_by: str,
        version: int | None,
        reason: str = "",
        from_options: Mapping[str, object] | None = None,
        to_options: Mapping[str, object] | None = None,
        epoch: int | None = None,
        took_us: int | None = None,
    ) -> None:
        """The mode was changed, or was not after all."""
        ...

    def noise(
        self,
        *,
        version: int,
        mode: str,
        gradients: int,
        squares: Squares,
        estimate: Estimate,
    ) -> None:
        """The gradients of an update were looked at."""
        ...

    def tick(self) -> None:
        """Write what has waited for long enough."""
        ...

    def close(self) -> None:
        """Write all."""
        ...


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of the mode.

    Attributes:
        at_unix_s: when.
        version: from which it holds, as far as the coordinator knows.
        before: mode that ended.
        after: mode that began.
        asked_by: user, advisor or coordinator.
        reason: in the words of who asked.
        took_s: from the wish on.
    """

    at_unix_s: float
    version: int
    before: Mode
    after: Mode
    asked_by: str
    reason: str
    took_s: float

    def to_json(self) -> dict[str, Any]:
        """As `history` shows it."""
        return {
            "at_unix_s": round(self.at_unix_s, 3),
            "version": self.version,
            "from": self.before.name,
            "from_options": dict(self.before.options),
            "to": self.after.name,
            "to_options": dict(self.after.options),
            "asked_by": self.asked_by,
            "reason": self.reason,
            "took_s": round(self.took_s, 3),
        }


class Record:
    """All that was done in this epoch.

    Attributes:
        updates: rounds that were closed, each counted once.
        version: after the newest of them.
        contributions: gradients of each rank that went in.
        switches: changes of the mode, the oldest first.
    """

    def __init__(self, journal: Journal | None) -> None:
        self.updates = 0
        self.version = 0
        self.contributions: Counter[int] = Counter()
        self.switches: deque[Switch] = deque(maxlen=KEPT)
        self._journal = journal
        self._serial = -1
        self._begun_s = time.monotonic()
        self._to_unix_s = time.time() - self._begun_s
        self._closes: deque[tuple[float, Close, Mode]] = deque(maxlen=KEPT)

    def closed(self, close: Close, mode: Mode) -> None:
        """A round is closed; what was noted before is passed over."""
        if close.serial <= self._serial:
            return
        self._serial = close.serial
        if close.round >= self.version:
            self.updates += 1
            self.version = close.round + 1
            self.contributions.update([g.worker for g in close.gradients])
        self._closes.append((time.monotonic(), close, mode))
        if self._journal is not None:
            self._journal.update(close, mode=mode.name, options=mode.options)

    def noise(self, seen: Seen, mode: Mode) -> None:
        """The gradients of an update were looked at."""
        if self._journal is not None:
            self._journal.noise(
                version=seen.version,
                mode=mode.name,
                gradients=seen.gradients,
                squares=seen.squares,
                estimate=seen.estimate,
            )

    def switched(self, switch: Switch, epoch: int) -> None:
        """The mode has changed."""
        self.switches.append(switch)
        if self._journal is not None:
            self._journal.switch(
                from_mode=switch.before.name,
                from_options=switch.before.options,
                to_mode=switch.after.name,
                to_options=switch.after.options,
                asked_by=switch.asked_by,
                version=switch.version,
                reason=switch.reason,
                epoch=epoch,
                took_us=round(switch.took_s * 1e6),
            )

    def refused(self, before: Mode, wanted: Mode, asked_by: str, reason: str, epoch: int) -> None:
        """A mode that is wanted can't be had, for this reason."""
        if self._journal is not None:
            self._journal.switch(
                from_mode=before.name,
                from_options=before.options,
                to_mode=wanted.name,
                to_options=wanted.options,
                asked_by=asked_by,
                version=None,
                reason=reason,
                epoch=epoch,
            )

    def tick(self) -> None:
        """Now and then."""
        if self._journal is not None:
            self._journal.tick()

    def end(self) -> None:
        """Nothing follows."""
        if self._journal is not None:
            self._journal.close()

    def rounds_per_s(self) -> float:
        """Of the last RATE_S seconds, or of as much of them as is remembered."""
        now_s = time.monotonic()
        times = [at_s for at_s, _, _ in self._closes if now_s - at_s <= RATE_S]
        since_s = times[0] if len(times) == KEPT else max(self._begun_s, now_s - RATE_S)
        return len(times) / max(now_s - since_s, 1e-3)

    def shares(self) -> dict[int, float]:
        """In which part of the updates that are remembered each rank had a part."""
        counts: Counter[int] = Counter()
        for _, close, _ in self._closes:
            counts.update(close.members)
        return {rank: count / len(self._closes) for rank, count in counts.items()}

    def last(self, count: int) -> list[dict[str, Any]]:
        """The last updates, the oldest first, as `history` shows them."""
        return [
            {
                "at_unix_s": round(at_s + self._to_unix_s, 3),
                "version": close.round,
                "epoch": close.epoch,
                "retries": close.attempt,
                "mode": mode.name,
                "contributors": [g.worker for g in close.gradients],
                "staleness": [close.round - g.version for g in close.gradients],
                "weights": list(close.weights),
                "steps": [g.steps for g in close.gradients],
                "native_next": close.native,
            }
            for at_s, close, mode in list(self._closes)[-count:]
        ]
