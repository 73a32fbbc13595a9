"""A cgroup CPU quota that stops the rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.causes.base import Case, Explanation, ms, pct
from starprof.analysis.causes.contrast import rate
from starprof.analysis.counters import Counters, numbers
from starprof.model import causes
from starprof.model.rundata import RankInfo

if TYPE_CHECKING:
    import pandas as pd

MIN_RATE = 0.005
"""Throttled share of the time below which a quota is never blamed: such traces of throttling are everywhere."""


def explain(case: Case) -> Explanation | None:
    """Compare the throttled time of the rank's groups with its excess, against peers and its own past."""
    found = [part for part in (_of_rank(case, row) for row in case.rows) if part is not None]
    if not found or len(found) < len(case.rows) / 2:
        return None
    throttled, path, quota, usual = max(found, key=lambda part: part[0])
    start, end = case.span_ns(case.rows[0])
    seconds = (end - start) / 1e9
    gained = throttled - usual
    if seconds <= 0 or gained / seconds < MIN_RATE:
        return None
    share = min(1.0, gained / case.excess_s) if case.excess_s > 0 else 0.0
    limit = f" (quota {quota:.2g} CPUs)" if quota == quota else ""
    return Explanation(
        cause=causes.CGROUP_THROTTLING,
        share=share,
        evidence=(
            f"The cgroup {path}{limit} of {case.who} was throttled for {ms(throttled * 1e6)} of {ms(seconds * 1e6)} "
            f"({pct(throttled / seconds)}); at its usual rate, or at its peers', it would have been {ms(usual * 1e6)}.",
            f"That covers {pct(share)} of the {ms(case.excess_s * 1e6)} by which {case.who} was late.",
        ),
        action=f"Raise or remove the CPU quota of {path}, or give {case.who} fewer threads.",
        verify=f"nr_throttled of {path} must stand still, and {case.who} must be ready as early as its peers.",
        partly=f"throttling of {path} covers {pct(share)}",
    )


def _of_rank(case: Case, row: int) -> tuple[float, str, float, float] | None:
    """Throttled seconds of the rank's tightest group, its path and quota in CPUs, and the usual seconds."""
    worst: tuple[float, str, float, float] | None = None
    start, end = case.span_ns(row)
    for node, group, path in groups_of(case.own.infos[row], case.counters):
        rows = case.counters.series("cgroup_sample", ("node", "cgroup")).get((node, group))
        if rows is None:
            continue
        grown = case.counters.grew(rows, "throttled_us", start, end)
        if grown.seconds <= 0 or np.isnan(grown.amount):
            continue
        seconds = (end - start) / 1e9
        throttled = grown.per_second * seconds / 1e6
        if worst is None or throttled > worst[0]:
            quotas, periods = numbers(rows, "quota_us"), numbers(rows, "period_us")
            limits = (quotas / np.where(periods > 0, periods, np.nan))[quotas > 0]
            quota = float(np.nanmin(limits)) if np.isfinite(limits).any() else float("nan")
            worst = (throttled, path, quota, _usual(case, row, rows) * seconds)
    return worst


def _usual(case: Case, row: int, rows: pd.DataFrame) -> float:
    """Throttled share of the time that is usual: of the same group before, or of the peers' groups, if that is more."""
    references = []
    past = case.past_span_ns(row)
    if past is not None:
        references.append(rate(case.counters, rows, "throttled_us", past) / 1e6)
    mine = {(node, group) for node, group, _ in groups_of(case.own.infos[row], case.counters)}
    rates = []
    for peer in case.peers(row):
        worst = 0.0
        for node, group, _ in groups_of(case.own.infos[peer], case.counters):
            samples = case.counters.series("cgroup_sample", ("node", "cgroup")).get((node, group))
            if samples is not None and (node, group) not in mine:
                worst = max(worst, rate(case.counters, samples, "throttled_us", case.span_ns(peer)) / 1e6)
        rates.append(worst)
    references += [float(np.median(rates))] if rates else []
    return max((r for r in references if r == r), default=0.0)


def groups_of(info: RankInfo, counters: Counters) -> list[tuple[float, float, str]]:
    """(node, group id, path) of the groups that a rank runs in, at every level."""
    named = counters.series("cgroup", ("node", "rank")).get((float(info.node), float(info.rank)))
    if named is None:
        return []
    return [(float(info.node), float(g), str(p)) for g, p in zip(named["cgroup"], named["path"], strict=True)]
