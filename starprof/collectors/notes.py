"""What collectors say beside their samples: events, gaps, fields that can't be read, and ids of devices."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from starprof.collectors.base import Rows
from starprof.model.schema import row
from starprof.model.tables.job import EVENT, GAP, UNAVAILABLE


def stable_id(*facts: object) -> int:
    """Id of a device or socket, the same after a restart of the agent, from what identifies it.

    A running number would name another device after a restart and mix two devices' counters in one run. 48 bits
    stay exact in a float column. Checksums, because hashlib would cost the agent 3.5 MB.
    """
    data = "\0".join(map(str, facts)).encode()
    return zlib.crc32(data) << 16 | zlib.crc32(data[::-1]) & 0xFFFF


class Notes:
    """Appends events, gaps and unavailable fields of one collector; repeats no reason for the same field."""

    def __init__(self, source: str, node: int) -> None:
        self._source = source
        self._node = node
        self._said: set[str] = set()

    def event(self, rows: Rows, mono_ns: int, kind: str, detail: str, value: int | None = None) -> None:
        """Append an event of the node (of no rank)."""
        rows.add(EVENT, row(EVENT, node=self._node, mono_ns=mono_ns, kind=kind, value=value, detail=detail))

    def gap(self, rows: Rows, from_mono_ns: int | None, to_mono_ns: int | None, reason: str) -> None:
        """Append a gap of this source."""
        rows.add(
            GAP,
            row(
                GAP,
                source=self._source,
                node=self._node,
                from_mono_ns=from_mono_ns,
                to_mono_ns=to_mono_ns,
                reason=reason,
            ),
        )

    def unavailable(self, rows: Rows, field: str, reason: str) -> None:
        """Say once why a field (empty: the whole source) is NULL."""
        if field in self._said:
            return
        self._said.add(field)
        source = f"{self._source}.{field}" if field else self._source
        rows.add(UNAVAILABLE, [self._node, source, reason])


class Pace:
    """Decides when something dear may be read again, so that it never uses more than a share of one core.

    Args:
        interval_ns: least time between two reads.
        share: most CPU time that the reads may take, as a share of one core.
        cpu_clock_ns: CPU time of the calling thread.
    """

    _SLACK_NS = 50_000_000  # a tick that comes a little early still counts as due

    def __init__(self, interval_ns: int, share: float, cpu_clock_ns: Callable[[], int]) -> None:
        self._interval_ns = interval_ns
        self._share = share
        self._cpu_clock_ns = cpu_clock_ns
        self._due_ns: int | None = None
        self._began_ns = 0

    def due(self, mono_ns: int) -> bool:
        """Whether it may be read now; if so, measuring of its cost starts."""
        if self._due_ns is not None and mono_ns < self._due_ns - self._SLACK_NS:
            return False
        self._began_ns = self._cpu_clock_ns()
        return True

    def done(self, mono_ns: int) -> None:
        """The read that `due` allowed is over: its cost sets when the next may come."""
        cost_ns = self._cpu_clock_ns() - self._began_ns
        self._due_ns = mono_ns + max(self._interval_ns, round(cost_ns / self._share))
