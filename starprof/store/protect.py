"""Which samples a long run keeps in full: those around slow steps and around rare events."""

from __future__ import annotations

from typing import NamedTuple

from starprof.model import events
from starprof.store.runfile import RunFile

BUCKET_S = 10
SLOW_RATIO = 1.2
"""Mean step time of a bucket over the median bucket from which on its samples are kept."""

SHARE_MAX = 0.1
"""At most this share of the run is kept, slowest first: a run that is slow half the time is not an exception."""

RARE = (events.THROTTLE, events.XID, events.OOM_KILL, events.RESTART, events.EXCEPTION, events.CLOCK_JUMP)
_NS = 1_000_000_000


class Window(NamedTuple):
    """A stretch of a node's monotonic clock; node None: of every node's."""

    node: int | None
    from_ns: int
    to_ns: int


def slow_windows(run: RunFile) -> list[Window]:
    """Windows of 10 s, and their neighbours, in which steps were slow or something rare happened."""
    buckets = run.query(
        """
        SELECT node, bucket, slowness FROM (
            SELECT r.node, s.start_mono_ns // ? AS bucket,
                avg(s.dur_us) / median(avg(s.dur_us)) OVER (PARTITION BY r.node) AS slowness,
                count(*) OVER (PARTITION BY r.node) AS total,
                row_number() OVER (PARTITION BY r.node ORDER BY avg(s.dur_us) DESC) AS place
            FROM step s JOIN rank r USING (attempt, rank) GROUP BY 1, 2)
        WHERE slowness >= ? AND place * 3 <= greatest(3, total * ?)
        """,
        [BUCKET_S * _NS, SLOW_RATIO, SHARE_MAX],
    )
    rare = run.query(
        "SELECT node, mono_ns // ? AS bucket, 1 FROM event WHERE list_contains(?, kind)", [BUCKET_S * _NS, list(RARE)]
    )
    width_ns = BUCKET_S * _NS
    found = {Window(node, (b - 1) * width_ns, (b + 2) * width_ns - 1) for node, b, _ in [*buckets, *rare]}
    return sorted(found, key=lambda w: (w.node is not None, w))
