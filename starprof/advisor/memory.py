"""What is remembered of hosts: when they were late, and for how long the job is to be left alone because of it.

A rank that starts anew elsewhere has no past, and a replacement on the same host has that host's. What nothing has
confirmed for long is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

FORGOTTEN_S = 3600.0
MOST_DOUBLINGS = 10


@dataclass
class _Past:
    times: list[float] = field(default_factory=list)
    late_s: float = 0.0
    seen_s: float = 0.0
    said_s: float = float("-inf")


class HostMemory:
    """Of one job, over its restarts."""

    def __init__(self, hold_s: float) -> None:
        """Nothing is known; `hold_s`: see `Limits`."""
        self._hold_s = hold_s
        self._hosts: dict[str, _Past] = {}

    def late(self, hosts: Iterable[str], for_s: float, now_s: float) -> None:
        """They are late now, and have been for so much longer."""
        for host in hosts:
            past = self._hosts.setdefault(host, _Past())
            past.late_s += for_s
            past.seen_s = now_s

    def came_back(self, hosts: Iterable[str], now_s: float) -> None:
        """The job was moved because of them, and is back in native steps."""
        for host in hosts:
            past = self._hosts.setdefault(host, _Past())
            past.times.append(now_s)
            past.seen_s = now_s

    def hold_until_s(self, hosts: Iterable[str]) -> float:
        """Before this nothing is to be moved because of them: each way back doubles the time."""
        until = float("-inf")
        for host in hosts:
            times = self._hosts[host].times if host in self._hosts else []
            if times:
                until = max(until, times[-1] + self._hold_s * 2.0 ** min(len(times) - 1, MOST_DOUBLINGS))
        return until

    def forget(self, now_s: float) -> None:
        """What is long ago."""
        for host, past in list(self._hosts.items()):
            # The longer something was held back for, the longer it is remembered: else the doubling would have an end.
            kept_s = FORGOTTEN_S + 2.0 * self._hold_s * 2.0 ** min(len(past.times), MOST_DOUBLINGS)
            if now_s - past.seen_s > kept_s:
                del self._hosts[host]

    def to_drain(self, late_s: float, now_s: float) -> list[tuple[str, float]]:
        """Hosts that were late for longer than that in all, and for how long; each is told once in an hour."""
        found = []
        for host, past in self._hosts.items():
            if past.late_s >= late_s and now_s - past.said_s > FORGOTTEN_S:
                past.said_s = now_s
                found.append((host, past.late_s))
        return found

    def to_json(self) -> dict[str, dict[str, float]]:
        """As the live view shows it."""
        return {h: {"late_s": round(p.late_s, 1), "moves": len(p.times)} for h, p in sorted(self._hosts.items())}
