"""Clock offset between two nodes from the collectives themselves, without any exchange of pings.

In a step with a blocking all-reduce no rank can be done before every rank has arrived. With A(s) the last arrival
on a node and E(s) the first step end there, both on the node's own clock, and `offset` what has to be added to the
other node's clock to get the reference's, every step s gives

    A_ref(s) <= E_other(s) + offset        and        A_other(s) + offset <= E_ref(s)

so that max_s(A_ref - E_other) <= offset <= min_s(E_ref - A_other). The middle of that interval is the estimate,
half its width bounds the error. This holds for ranks that compute on the CPU only: the host side of a GPU rank
runs ahead of its collectives, its times say nothing about when they ended.
"""
# ruff: noqa: S608 - names in statements are the schema's own

from __future__ import annotations

from dataclasses import dataclass

from starprof.store.runfile import RunFile

REDUCING = ("ddp", "collectives")
"""Frameworks whose every optimizer step holds an all-reduce of all ranks that the host waits for."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Reference clock minus the other node's, its error bound, and when on the other clock it was last seen."""

    offset_ns: int
    error_ns: int
    mono_ns: int


def offset_of(run: RunFile, node: int, reference: int = 0) -> Offset | str:
    """Offset of a node's clock to a reference node's; a text says why there is none."""
    frameworks = ", ".join(f"'{name}'" for name in REDUCING)
    ((low, high, seen, steps),) = run.query(
        f"""
        WITH usable AS (
            SELECT r.node, s.attempt, s.step, max(s.start_mono_ns + s.arrival_us * 1000) AS arrived,
                min(s.start_mono_ns + s.dur_us * 1000) AS ended
            FROM step s JOIN rank r USING (attempt, rank)
            WHERE r.node IN (?, ?) AND r.device = 'cpu' AND r.framework IN ({frameworks}) AND s.arrival_us IS NOT NULL
                AND s.start_mono_ns IS NOT NULL
            GROUP BY ALL)
        SELECT max(a.arrived - b.ended), min(a.ended - b.arrived), max(b.ended), count(*)
        FROM usable a JOIN usable b USING (attempt, step) WHERE a.node = ? AND b.node = ?
        """,
        [node, reference, reference, node],
    )
    if not steps:
        return "no step with a blocking all-reduce of CPU ranks was recorded on both"
    if low > high:
        return f"{steps} steps contradict each other by {(low - high) / 1e6:.3f} ms: are they of one job?"
    return Offset((low + high) // 2, -(-(high - low) // 2), seen)
