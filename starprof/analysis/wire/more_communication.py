"""The program itself communicates more than before: further collectives, or more bytes in the same ones.

The reduction takes longer then for everybody alike, as with a slow network; only what was sent tells the two apart.
"""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.causes.base import COINCIDES
from starprof.analysis.causes.contrast import rate
from starprof.analysis.wire.base import WireCase, WireCause
from starprof.model import causes

MORE_BYTES = 1.5
MIN_BYTES = 1e5
"""Bytes per step and node below which a growth can't be what takes the time."""
ANOTHER = 0.9
"""Growth of the collectives per step from which on there is one more in nearly every step."""


def explain(case: WireCase) -> WireCause | None:
    """Collectives per step, or bytes per step and node, grew together with the reduction's time."""
    if case.windows.past is None:
        return None
    calls, sent = _collectives(case), _bytes(case)
    if not calls and not sent:
        return None
    return WireCause(
        cause=causes.COMMUNICATION_VOLUME,
        nodes=(),
        ranks=(),
        share=1.0,
        certainty=COINCIDES,
        evidence=(*calls, *sent, "The program communicates more than before; no link need be slow for that."),
        action="Look for what reduces more from that step on (a further all-reduce, metrics gathered in every step, "
        "smaller buckets, no gradient accumulation), and do it less often or together with the gradients.",
        verify="With as many collectives and bytes per step as before, the reduction must be as short as before; if it "
        "is not, the network became slow as well.",
    )


def _collectives(case: WireCase) -> tuple[str, ...]:
    counted = case.counters.run.steps.columns.get("collectives")
    if counted is None or case.windows.past is None:
        return ()
    calls = counted[np.ix_(case.own.rows, case.own.columns)]
    now, before = _per_step(calls, case.windows.slow), _per_step(calls, case.windows.past)
    if not (now >= before + ANOTHER).all():
        return ()
    return (
        f"Every rank makes {float(np.median(now)):.3g} collectives per step, before it made "
        f"{float(np.median(before)):.3g}.",
    )


def _per_step(calls: Floats, window: tuple[int, int]) -> Floats:
    """Mean number per step of each rank, shape (R,); NaN where it was not counted."""
    inside = calls[:, slice(*window)]
    known = np.isfinite(inside)
    total: Floats = np.where(known, inside, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return np.where(known.any(axis=1), total, np.nan)


def _bytes(case: WireCase) -> tuple[str, ...]:
    now = [_bytes_per_step(case, node, past=False) for node in case.nodes]
    before = [_bytes_per_step(case, node, past=True) for node in case.nodes]
    grown = [a >= MORE_BYTES * b and a - b >= MIN_BYTES for a, b in zip(now, before, strict=True)]
    if not grown or not all(grown):
        return ()
    return (
        f"Each node sends {_megabytes(float(np.median(now)))} per step, before it sent "
        f"{_megabytes(float(np.median(before)))}.",
    )


def _bytes_per_step(case: WireCase, node: int, *, past: bool) -> float:
    """What the job's sockets sent, where they were sampled, else what the interfaces did; NaN = not known."""
    span = case.span(node, past)
    window = case.windows.past if past else case.windows.slow
    if span is None or window is None or window[1] <= window[0]:
        return float("nan")
    per_step_s = (span[1] - span[0]) / 1e9 / (window[1] - window[0])
    series = case.counters.series("tcp_sample", ("node", "socket"))
    sockets = [rows for (of_node, _), rows in series.items() if int(of_node) == node]
    rates = [rate(case.counters, rows, "acked_bytes", span) for rows in sockets]
    # RDMA bypasses the sockets: then the ports tell.
    if not sockets or any(p.node == node and p.type == "infiniband" for p in case.ports):
        rates = [case.rate(p, ("tx_bytes",), past) for p in case.ports if p.node == node]
    known = [r for r in rates if r == r]
    return sum(known) * per_step_s if known else float("nan")


def _megabytes(amount: float) -> str:
    return f"{amount / 1e6:.3g} million bytes"
