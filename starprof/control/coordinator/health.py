"""What ranks tell of the training's health: losses and the size of the gradients, the newest of them."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from starprof.control.coordinator.noise import Seen
from starprof.sync.protocol.messages import Health

KEPT = 256
"""More than what comes between two questions of an advisor."""


class HealthBook:
    """Of one job; entries are numbered, so that whoever asks again hears what is new."""

    def __init__(self) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._next = 0

    def told(self, health: Health) -> None:
        """A rank's loss."""
        self._add(rank=health.rank, version=health.version, loss=health.loss, finite=health.finite)

    def norm(self, seen: Seen) -> None:
        """The gradient of an update was looked at."""
        value = math.sqrt(max(seen.squares.update, 0.0))
        self._add(version=seen.version, norm=value, finite=math.isfinite(value))

    def after(self, serial: int) -> list[dict[str, Any]]:
        """What has come since this one, the oldest first."""
        return [entry for entry in self._entries if entry["serial"] > serial]

    def _add(self, **entry: Any) -> None:
        self._entries.append({"serial": self._next, **entry})
        self._next += 1
