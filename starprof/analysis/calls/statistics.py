"""Who arrives last, from statistics: the time each rank spent in collectives, summed over many calls.

The rank that waits least holds up the others. Means over many calls are sure where they differ by much more than
their errors; sums over an unknown number of calls never are, so they must fit what the rank did meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.calls.matched_calls import late_set
from starprof.analysis.causes.base import ms, pct, rank_names
from starprof.analysis.settings import Settings
from starprof.model import causes
from starprof.model.collectives import ALL_TO_ALL, MUTUAL, UNKNOWN
from starprof.model.ranklists import from_listed
from starprof.model.rundata import RunData
from starprof.model.verdict import Cost, Finding, Verdict


@dataclass(frozen=True)
class Sums:
    """Time in the collectives of one process group.

    Attributes:
        rows: rows of the run's ranks, shape (R,).
        size: members of the group.
        total_us: shape (R,).
        error_us: standard error of the totals, NaN when not known, shape (R,).
        calls: of a rank, None when not told.
        mean_us: mean time in the kind of call that most of the time goes to, shape (R,).
        kind: that kind.
        steps: time per step where steps are told, shape (R, S); S = 0 otherwise.
    """

    rows: Ints
    size: int
    total_us: Floats
    error_us: Floats
    calls: float | None
    mean_us: Floats
    kind: str
    steps: Floats

    def late(self, least_gap_us: float) -> list[int]:
        """Rows of the group that wait least, apart from the others."""
        return late_set(self.total_us, least_gap_us)

    def gap_us(self, late: list[int]) -> float:
        """What the next rank waits more than the latest of these, in all."""
        others = np.setdiff1d(np.arange(len(self.rows)), late)
        return float(self.total_us[others].min() - self.total_us[late].max())

    def lateness_us(self, late: list[int]) -> float:
        """How much less than the median of the others these ranks wait, in all."""
        others = np.setdiff1d(np.arange(len(self.rows)), late)
        return float(np.median(self.total_us[others]) - self.total_us[late].mean())


def judge(run: RunData, settings: Settings, empty: Verdict) -> Verdict | None:
    """The verdict on sums of collectives per rank; None when the run holds none."""
    frame = run.collectives
    if frame is None or len(frame) == 0:
        return None
    rows = frame[(frame["calls"].astype("Float64").fillna(2) > 1) & frame["dur_us"].notna()]
    if len(rows) == 0:
        return None
    # Ranks that exchange less data in an all-to-all are done sooner, which a mean can't tell from coming last.
    rows = rows[rows["name"].isin(MUTUAL - {ALL_TO_ALL}) | (rows["calls"].isna() & (rows["name"] == UNKNOWN))]
    if len(rows) == 0:
        return replace(empty, reason="No statistics of calls in which all ranks wait alike for all others were found.")
    told = run.steps.steps
    known = rows["step"].notna().any()
    empty = replace(empty, steps=(int(told[0]), int(told[-1])) if len(told) and known else None)
    groups = list(_groups(rows, np.array([r.rank for r in run.ranks], np.int64), settings.calls.calls_alike))
    if not groups:
        who = rank_names(tuple(r.rank for r in run.ranks))
        return replace(empty, reason=f"Collectives of {who} only: no two ranks of a group to compare.")
    wall_us = _wall_us(run)
    found = [_suspect(run, g, groups, wall_us, settings) for g in groups]
    named = [(g, late) for g, (late, doubt) in zip(groups, found, strict=True) if late and not doubt]
    if named:
        group, late = max(named, key=lambda part: part[0].gap_us(part[1]))
        return _straggler(run, group, late, wall_us, settings, empty)
    doubts = [doubt for _, doubt in found if doubt]
    doubts += [_few(g) for g in groups if len(g.rows) < g.size]
    if doubts:
        finding = Finding(
            kind="one-off",
            cause=causes.UNKNOWN,
            evidence=tuple(_evidence(run, g, g.late(0.0) or [int(np.argmin(g.total_us))])[0] for g in groups[:3]),
            next="Trace several steps of all ranks, or record the job with `starprof record`, which sees every step.",
        )
        return replace(empty, reason=doubts[0], findings=(finding,))
    apart = max(float(np.ptp(g.total_us)) / (wall_us or float(g.total_us.max()) or 1.0) for g in groups)
    what = "the job's time" if wall_us else "the time in them"
    reason = f"No rank waits clearly less in collectives than the others: they differ by {pct(apart)} of {what}."
    return replace(empty, verdict="none", reason=reason)


def _groups(rows: pd.DataFrame, ranks: Ints, calls_alike: float) -> Iterator[Sums]:
    texts = rows[["group_name", "ranks"]].fillna("").astype(str)
    for key, part in rows.groupby([texts["group_name"], texts["ranks"]], sort=False):
        calls = part["calls"].astype("Float64").to_numpy(np.float64, na_value=np.nan)
        times = np.where(np.isnan(calls), 1.0, calls)
        mean = part["dur_us"].to_numpy(np.float64)
        kind = part["name"].astype(str) + part["bytes"].fillna(-1).astype(str)
        table = pd.DataFrame(
            {
                "rank": part["rank"].to_numpy(np.int64),
                "kind": kind.to_numpy(),
                "name": part["name"].astype(str).to_numpy(),
                "step": part["step"].astype("Float64").to_numpy(np.float64, na_value=np.nan),
                "total": times * mean,
                "variance": calls_alike * times * _spread(part, mean) ** 2,
                "calls": calls,
            }
        )
        table = table[np.isin(table["rank"], ranks)]
        if table["rank"].nunique() >= 2:
            yield _sums(table, ranks, len(from_listed(str(key[1]))))


def _spread(part: pd.DataFrame, mean: Floats) -> Floats:
    """Standard deviation of the calls; where it is not told, as much as calls can plausibly spread."""
    told = part["std_dur_us"].astype("Float64").to_numpy(np.float64, na_value=np.nan)
    least = part["min_dur_us"].astype("Float64").to_numpy(np.float64, na_value=np.nan)
    return np.where(np.isnan(told), np.where(np.isnan(least), mean, mean - least), told)


def _sums(table: pd.DataFrame, ranks: Ints, size: int) -> Sums:
    by_rank = table.groupby("rank")
    total = by_rank["total"].sum()
    heaviest = str(table.groupby("kind")["total"].sum().idxmax())
    main = table[table["kind"] == heaviest]
    told = main.groupby("rank")["calls"].sum(min_count=1).reindex(total.index)
    means = (main.groupby("rank")["total"].sum() / told.fillna(1)).reindex(total.index)
    steps = table.pivot_table(index="rank", columns="step", values="total", aggfunc="sum").reindex(total.index)
    return Sums(
        rows=np.searchsorted(ranks, total.index.to_numpy(np.int64)),
        size=max(size, len(total)),
        total_us=total.to_numpy(np.float64),
        error_us=np.sqrt(by_rank["variance"].sum().to_numpy(np.float64)),
        calls=None if told.isna().any() else float(told.min()),
        mean_us=means.to_numpy(np.float64),
        kind=str(main["name"].iloc[0]),
        steps=steps.dropna(axis=1).to_numpy(np.float64),
    )


def _wall_us(run: RunData) -> float | None:
    """How long the job ran as far as its step records tell, None if they don't."""
    duration = run.steps.columns.get("dur_us")
    if duration is None or not np.isfinite(duration).any():
        return None
    return float(np.nanmedian(np.nansum(duration, axis=1)))


def _suspect(
    run: RunData, group: Sums, groups: list[Sums], wall_us: float | None, settings: Settings
) -> tuple[list[int], str]:
    """Rows that wait least in a group, and why they can't be named; empty when they can (or when nobody is late)."""
    if len(group.rows) < settings.calls.min_seen * group.size:
        return [], _few(group)
    reference = wall_us or float(group.total_us.max())
    late = group.late(settings.min_cost_share * reference)
    if not late:
        if np.ptp(group.total_us) < settings.calls.min_sum_lateness * reference:
            return [], ""
        return [], "Ranks wait differently long, but none clearly less than all others: no single one holds them up."
    if group.calls is None:
        return late, _doubt_of_sums(run, group, late, settings)
    if group.calls < settings.calls.min_calls_of_means:
        return late, (
            f"Only {group.calls:.0f} calls of a kind, {settings.calls.min_calls_of_means} or more are needed: who "
            "waits least in so few may be chance."
        )
    if not group.gap_us(late) >= settings.calls.min_z * float(
        np.hypot(group.error_us[late].max(), _next_error(group, late))
    ):
        return late, "The ranks' times in collectives spread too much for their means to tell who waits least."
    if _wait_elsewhere_us(group, late, groups) > settings.calls.max_own_wait_share * group.lateness_us(late):
        return late, "The ranks that wait least in one group wait for others in another one."
    return late, ""


def _few(group: Sums) -> str:
    return f"Only {len(group.rows)} of {group.size} ranks are told of: one of the others may be the last to arrive."


def _next_error(group: Sums, late: list[int]) -> float:
    others = np.setdiff1d(np.arange(len(group.rows)), late)
    return float(group.error_us[others[np.argmin(group.total_us[others])]])


def _wait_elsewhere_us(group: Sums, late: list[int], groups: list[Sums]) -> float:
    waits = [0.0]
    for other in groups:
        rows = np.flatnonzero(np.isin(other.rows, group.rows[late]))
        if other is not group and len(rows):
            waits.append(float((other.total_us[rows] - other.total_us.min()).mean()))
    return sum(waits)


def _doubt_of_sums(run: RunData, group: Sums, late: list[int], settings: Settings) -> str:
    """Sums over calls that were not counted: steps must show it, or the rank's own time must."""
    steps = group.steps.shape[1]
    if steps:
        if steps < settings.calls.min_steps:
            return (
                f"Only {steps} step{'s' if steps > 1 else ''} recorded, {settings.calls.min_steps} or more are needed."
            )
        share = float(np.isin(np.argmin(group.steps, axis=0), late).mean())
        if share < settings.min_late_windows:
            return "Who waits least changes from step to step."
    duration = run.steps.columns["dur_us"][group.rows] if "dur_us" in run.steps.columns else None
    if duration is None or not np.isfinite(duration).all():
        return "How much the ranks did between their collectives is not told: who holds them up can't be checked."
    length = duration.sum(axis=1)
    if np.ptp(length) > settings.calls.max_lengths_apart * np.median(length):
        return "The ranks' times add up to different lengths: they are not of the same steps."
    if group.lateness_us(late) < settings.calls.min_sum_lateness * np.median(length):
        return "The ranks' times in collectives are too alike to tell from a single sum who waits least."
    return ""


def _straggler(
    run: RunData, group: Sums, late: list[int], wall_us: float | None, settings: Settings, empty: Verdict
) -> Verdict:
    rows = sorted(int(r) for r in group.rows[late])
    infos = [run.ranks[r] for r in rows]
    who = rank_names(tuple(i.rank for i in infos))
    seconds = group.gap_us(late) / 1e6
    share = min(0.99, seconds * 1e6 / wall_us) if wall_us else 0.0
    cause, covered, more = _own_time(run, group, late, settings.min_cause_share)
    told = group.calls is not None or group.steps.shape[1] >= settings.calls.min_steps
    finding = Finding(
        kind="chronic",
        cause=cause,
        ranks=tuple(i.rank for i in infos),
        nodes=tuple(sorted({i.host for i in infos if i.host})),
        cause_share=round(covered, 3),
        confidence=0.9 if told else 0.6,
        slowdown=round(1.0 / (1.0 - share), 4),
        cost_seconds=round(seconds, 6),
        evidence=(*_evidence(run, group, late), *more, *_limits(wall_us, told)),
        action=f"Look at what {who} does between collectives that its peers do not, and at its host and device.",
        verify=f"Analyze again: {who} should wait about as long in collectives as the others.",
        next="To find out why, and whether it lasts, record the job with `starprof record`.",
    )
    cost = Cost(round(seconds, 6), round(share, 6), round(seconds * len(run.ranks) / 3600.0, 9))
    reason = f"{who.capitalize()}: waits least in collectives, the others wait for it; {ms(seconds * 1e6)} lost in all."
    return replace(empty, verdict="straggler", cost=cost, findings=(finding,), reason=reason)


def _evidence(run: RunData, group: Sums, late: list[int]) -> tuple[str, ...]:
    who = rank_names(tuple(run.ranks[int(r)].rank for r in group.rows[late]))
    others = np.setdiff1d(np.arange(len(group.rows)), late)
    mine, theirs = float(group.total_us[late].mean()), group.total_us[others]
    lines = [
        f"{who.capitalize()} spent {ms(mine)} in collectives, its peers {ms(float(theirs.min()))} to "
        f"{ms(float(theirs.max()))}: who arrives last waits least."
    ]
    if group.calls is not None:
        lines.append(
            f"A call of {group.kind} took {ms(float(group.mean_us[late].mean()))} on {who}, "
            f"{ms(float(group.mean_us[others].min()))} to {ms(float(group.mean_us[others].max()))} on the others "
            f"(means over {group.calls:.0f} calls)."
        )
    return tuple(lines)


def _own_time(run: RunData, group: Sums, late: list[int], min_share: float) -> tuple[str, float, tuple[str, ...]]:
    """Whether the device computed longer or had nothing to do, where the records tell."""
    columns = run.steps.columns
    if not {"dur_us", "blocked_us", "unaccounted_us"} <= set(columns) or np.isnan(columns["unaccounted_us"]).all():
        return causes.UNKNOWN, 0.0, ()
    idle = np.nansum(columns["unaccounted_us"][group.rows], axis=1)
    busy = np.nansum(columns["dur_us"][group.rows] - columns["blocked_us"][group.rows], axis=1) - idle
    others = np.setdiff1d(np.arange(len(group.rows)), late)
    lateness = group.lateness_us(late)
    parts = []
    for cause, values, text in (
        (causes.HOST_BOUND, idle, "its device idle"),
        (causes.GPU_COMPUTE, busy, "its device computing"),
    ):
        more = float(values[late].mean() - np.median(values[others]))
        parts.append((min(1.0, max(0.0, more / lateness)), cause, text, values))
    share, cause, text, values = max(parts, key=lambda part: part[0])
    line = (
        f"{pct(share)} of the difference is {text}: {ms(float(values[late].mean()))}, "
        f"its peers {ms(float(np.median(values[others])))} (median)."
    )
    return (cause if share >= min_share else causes.UNKNOWN), share, (line,)


def _limits(wall_us: float | None, told: bool) -> Iterator[str]:
    if wall_us is None:
        yield "What share of the job's time that is can't be told: the statistics hold no step times."
    if not told:
        yield "The sums are over an unknown number of steps: whether it is so in every step can't be told."
