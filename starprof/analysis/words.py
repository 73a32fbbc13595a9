"""Sentences of findings that do not depend on the cause: who, since when, how much."""

from __future__ import annotations

import numpy as np

from starprof.analysis.causes.base import ms, pct, rank_names
from starprof.analysis.comparison import Comparison
from starprof.analysis.rounds import native_if_any
from starprof.analysis.slowness import Slowness

COLD_CACHE = "A cold page cache is one possible reason: read the same data a second time, then the stall must be gone."
USUAL_RULE = 0.2
"""Share of the step from which on simple rules take a rank for slow."""
SAME_REDUCTION = 0.01


def lateness_evidence(comparison: Comparison, slowness: Slowness) -> tuple[str, ...]:
    """What the step records show of a late rank: own time against its peers, and who waits for whom."""
    own, rows = comparison.own, list(slowness.rows)
    columns = np.flatnonzero(slowness.steps)
    who = rank_names(tuple(own.rank(r) for r in rows))
    mine = _mean(own.work[rows][:, columns])
    peers = mine - _mean(comparison.lateness_us[rows][:, columns])
    its, itself, it = ("its", "itself", "it") if len(rows) == 1 else ("their", "themselves", "them")
    lines = [
        f"{who} needed {ms(mine)} per step for {itself} where {its} peers needed {ms(peers)} "
        f"({(mine / max(peers, 1.0) - 1) * 100:+.0f} %), {_when(comparison, slowness)}."
    ]
    healthy = np.flatnonzero(~comparison.blamed & (own.groups == own.groups[rows[0]]))
    if len(healthy) and own.shape[0] > 1:
        some, columns = own.rounds[columns].any(), native_if_any(own, columns)
        last = np.nanargmax(np.nan_to_num(own.cycle[:, columns], nan=-1.0), axis=0)
        share = float(np.isin(last, rows).mean())
        waited = _mean(own.blocked[rows][:, columns])
        others = _mean(own.blocked[healthy][:, columns])
        if own.rounds[columns].any():
            lines.append(f"{who} handed in last in {pct(share)} of those steps, all in rounds: nobody waits for {it}.")
        else:
            lines.append(
                f"{who} arrived last in {pct(share)} of {'the native' if some else 'those'} steps and waited "
                f"{ms(waited)} in collectives, {its} peers {ms(others)}: they wait for {it}."
            )
    return (
        *lines,
        *_little(slowness, mine / max(peers, 1.0) - 1.0),
        *_network_cleared(comparison, slowness),
    )


def _little(slowness: Slowness, excess: float) -> list[str]:
    """How a small slowness is known all the same."""
    if not (0.0 < excess < USUAL_RULE and slowness.z > 0 and slowness.kind in ("chronic", "transient")):
        return []
    steps = int(slowness.steps.sum())
    return [
        f"That is little: a rule that waits for {pct(USUAL_RULE)} would not speak. It is {slowness.z:.0f} standard "
        f"errors of the noise over {steps} steps, seen in {pct(min(1.0, slowness.late_windows))} of their stretches."
    ]


def _network_cleared(comparison: Comparison, slowness: Slowness) -> list[str]:
    """That the reduction takes no longer than before, where there is a before."""
    transfer, inside = comparison.own.transfer, slowness.steps
    if slowness.start == 0 or slowness.kind not in ("chronic", "transient") or inside.all():
        return []
    now, before = float(np.median(transfer[inside])), float(np.median(transfer[~inside]))
    if now > before + SAME_REDUCTION * comparison.own.healthy_step_us:
        return []
    return [f"The reduction itself takes {ms(now)}, before {ms(before)}: the network is not what became slow."]


def _when(comparison: Comparison, slowness: Slowness) -> str:
    steps = comparison.own.steps
    first, last = int(steps[slowness.start]), int(steps[slowness.end - 1])
    if slowness.kind == "periodic":
        return f"every {slowness.period} steps since step {first}"
    if slowness.kind == "trend":
        return f"growing since step {first}"
    if slowness.start == 0:
        return "from the first step on" if slowness.end == len(steps) else f"from the first step to step {last}"
    if slowness.kind == "one-off":
        return f"in step {first}" if first == last else f"in steps {first} to {last}"
    return f"since step {first}" if slowness.end == len(steps) else f"in steps {first} to {last}"


def when(comparison: Comparison, slowness: Slowness) -> str:
    """The time of a slowness in words."""
    return _when(comparison, slowness)


def confidence(slowness: Slowness, cause_share: float, named: bool) -> float:
    """How sure a finding is: its persistence over the interval, times the coverage of its cause when one is named.

    Never 1: the data can't exclude what was not recorded.
    """
    shape = min(1.0, slowness.late_windows)
    return round(min(0.99, shape * (cause_share if named else 1.0) * 0.99), 3)


def bit_rate(bytes_per_s: float) -> str:
    """A rate as networks count it: "83 Mbit/s", "42.6 Gbit/s"."""
    mbit = bytes_per_s * 8 / 1e6
    return f"{mbit:.0f} Mbit/s" if mbit < 1000 else f"{mbit / 1000:.1f} Gbit/s"


def _mean(values: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0
