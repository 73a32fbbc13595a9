"""Who arrives last at the collectives, from traces of single calls.

A rank is named only when it waits least by enough, in nearly all steps, in more of them than chance would give, and
when the calls are surely the same ones on all ranks. Few steps of a profiler are few observations, however many calls
they hold: a heavy batch makes a rank late at every call of its step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.calls import words
from starprof.analysis.calls.matched_calls import Group, Matched, held_up_us, is_last, late_set, match_calls
from starprof.analysis.peers import median_of_others
from starprof.analysis.settings import Settings
from starprof.analysis.statistics import binomial_at_least
from starprof.analysis.trace_settings import CallSettings
from starprof.model.collectives import MUTUAL, SEND_RECV
from starprof.model.rundata import RunData
from starprof.model.verdict import Cost, Finding, Verdict


@dataclass(frozen=True)
class Suspect:
    """Ranks that wait least in a group.

    Attributes:
        late: rows of the group.
        lateness_us: how much later than their peers they arrive, per unit.
        held_up_us: by how much less each unit would have lasted without it, shape (U,).
        last: share of the units in which one of them is last.
        chance: probability of that if all were late in turn.
        doubt: why they are not named; empty when they are.
    """

    group: Group
    late: list[int]
    lateness_us: float
    held_up_us: Floats
    last: float
    chance: float
    doubt: str = ""

    @property
    def rows(self) -> Ints:
        """Rows of the run."""
        return self.group.rows[self.late]


def judge(run: RunData, settings: Settings, empty: Verdict) -> Verdict | None:
    """The verdict on collectives that were recorded call by call; None without any, or when steps tell more."""
    if run.collectives is None or len(run.collectives) == 0 or _steps_tell_more(run, settings):
        return None
    single = (run.collectives["calls"] == 1) & run.collectives["dur_us"].notna()
    mutual = single & run.collectives["name"].isin(MUTUAL)
    if not single.any() or (not mutual.any() and not single.all()):
        return None  # sums over many calls say more than broadcasts
    ranks = np.array([r.rank for r in run.ranks], np.int64)
    matched = match_calls(run.collectives, ranks, settings.calls)
    steps = matched.steps
    empty = replace(empty, steps=(int(steps[0]), int(steps[-1])) if len(steps) else None)
    obstacle = words.obstacle(run, matched)
    if obstacle:
        return replace(empty, reason=obstacle)
    unit_us = _unit_us(run, matched)
    suspects = _suspects(matched, unit_us, settings)
    named = [s for s in suspects if not s.doubt]
    if named:
        return _straggler(run, matched, unit_us, named, settings, empty)
    return _nobody(run, matched, unit_us, suspects, settings, empty)


def _steps_tell_more(run: RunData, settings: Settings) -> bool:
    """There are enough steps, divided into waiting and the phases of the rank's own work.

    Who waits for whom must be plain then: all ranks for all others.
    """
    columns, calls = run.steps.columns, run.collectives
    if calls is not None and (
        len(calls[["group_name", "ranks"]].drop_duplicates()) > 1 or (calls["name"] == SEND_RECV).any()
    ):
        return False
    if "blocked_us" not in columns or not ({"forward_us", "backward_us"} & set(columns)):
        return False
    recorded = np.isfinite(columns["blocked_us"]).sum(axis=1)
    return bool((recorded >= settings.min_steps + settings.warm_up_steps).all())


def _unit_us(run: RunData, matched: Matched) -> float:
    """How long a unit lasts: a step where steps are told, else from the first call to the last."""
    duration = run.steps.columns.get("dur_us")
    if duration is not None and len(matched.steps) and np.isfinite(duration).any():
        return float(np.nanmean(duration))
    spans = []
    for group in matched.groups:
        begin, end = group.start_us.min(axis=1), (group.start_us + group.dur_us).max(axis=1)
        spans.append(float(np.median(end - begin)))
    longest = float(np.nanmax(spans)) if np.isfinite(spans).any() else float("nan")
    if np.isfinite(longest):
        return longest / max(1, matched.units)
    return float(max(np.nanmax(np.nanmean(g.per_unit_us, axis=1)) for g in matched.groups))


def _suspects(matched: Matched, unit_us: float, settings: Settings) -> list[Suspect]:
    """Ranks that hold up their groups, the most costly first; with the reason where they can't be named."""
    found = [_suspect(group, unit_us, settings) for group in matched.groups]
    suspects = [s for s in found if s is not None]
    judged = [replace(s, doubt=s.doubt or _doubt(s, suspects, matched, settings.calls)) for s in suspects]
    return sorted(judged, key=lambda s: -float(s.held_up_us.sum()))


def _suspect(group: Group, unit_us: float, settings: Settings) -> Suspect | None:
    per_unit = group.per_unit_us[:, ~np.isnan(group.per_unit_us[0])]
    late = late_set(per_unit.mean(axis=1), settings.min_cost_share * unit_us)
    if not late:
        return None
    lateness = (median_of_others(per_unit) - per_unit)[late].mean(axis=0)
    last = is_last(per_unit, late)
    count, ranks = len(last), len(group.rows)
    sets = comb(ranks, len(late))
    chance = binomial_at_least(int(last.sum()), count, len(late) / ranks) * sets
    persistent = float((last & (lateness >= settings.min_lateness * unit_us)).mean())
    doubt = ""
    if persistent < settings.min_late_windows:
        doubt = words.NOT_PERSISTENT
    return Suspect(group, late, float(lateness.mean()), held_up_us(per_unit, late), float(last.mean()), chance, doubt)


def _doubt(suspect: Suspect, suspects: list[Suspect], matched: Matched, settings: CallSettings) -> str:
    """Why a suspect can't be named; empty when it can."""
    group, spread = suspect.group, settings.max_spread_of_ends
    if len(group.rows) < settings.min_seen * group.size:
        return words.few_seen(len(group.rows), group.size)
    if len(matched.steps) and len(suspect.held_up_us) < settings.min_steps:
        return words.few_steps(len(suspect.held_up_us), settings.min_steps)
    if not len(matched.steps) and matched.units < settings.min_blocks:
        return words.few_calls(matched.calls, settings.min_blocks * settings.calls_per_block)
    if group.dur_us.shape[1] < settings.min_calls:
        return words.few_calls(group.dur_us.shape[1], settings.min_calls)
    if suspect.chance * len(matched.groups) > settings.false_alarm_rate:
        return words.by_chance(suspect.last, len(suspect.held_up_us), len(matched.steps) > 0)
    if not group.end_together(suspect.late, spread):
        return words.NOT_TOGETHER
    if group.uneven_share(suspect.late) > settings.max_uneven_share and not group.end_together(
        suspect.late, spread, one_clock=True
    ):
        return words.UNEVEN
    late_there = {id(s.group) for s in suspects if set(s.rows.tolist()) & set(suspect.rows.tolist())}
    if _wait_elsewhere_us(suspect, matched, late_there) > settings.max_own_wait_share * suspect.lateness_us:
        return words.VICTIM
    return ""


def _wait_elsewhere_us(suspect: Suspect, matched: Matched, late_there: set[int]) -> float:
    """What the suspect waits per unit in groups that it does not hold up itself."""
    waits = [0.0]
    for group in matched.groups:
        rows = np.flatnonzero(np.isin(group.rows, suspect.rows))
        if len(rows) and id(group) not in late_there:
            per_unit = group.per_unit_us
            waits.append(float(np.nanmean(per_unit[rows] - np.nanmin(per_unit, axis=0))))
    return sum(waits)


def _straggler(
    run: RunData, matched: Matched, unit_us: float, named: list[Suspect], settings: Settings, empty: Verdict
) -> Verdict:
    rows = sorted({int(r) for s in named for r in s.rows})
    worst = named[0]
    seconds = float(worst.held_up_us.sum()) / 1e6
    share = min(0.99, float(worst.held_up_us.mean()) / unit_us)
    infos = [run.ranks[r] for r in rows]
    cause, explained, more = words.phase_cause(run, rows, worst.lateness_us, settings.min_cause_share)
    finding = Finding(
        kind="chronic",
        cause=cause,
        ranks=tuple(i.rank for i in infos),
        nodes=tuple(sorted({i.host for i in infos if i.host})),
        cause_share=round(explained, 3),
        confidence=round(0.99 * worst.last * (1.0 - min(1.0, worst.chance * len(matched.groups))), 3),
        onset_step=int(matched.steps[0]) if len(matched.steps) else None,
        onset_interval=(int(matched.steps[0]),) * 2 if len(matched.steps) else None,
        slowdown=round(1.0 / (1.0 - share), 4),
        cost_seconds=round(seconds, 6),
        evidence=(*words.lateness(run, matched, worst), words.counts(run, matched), *more),
        action=words.action(run, rows),
        verify=words.verify(run, rows, worst),
        next="" if explained >= settings.min_cause_share else words.NEXT_CAUSE,
    )
    cost = Cost(round(seconds, 6), round(share, 6), round(seconds * len(run.ranks) / 3600.0, 9))
    reason = words.straggler_reason(run, rows, worst, share)
    return replace(empty, verdict="straggler", cost=cost, findings=(finding,), reason=reason)


def _nobody(
    run: RunData, matched: Matched, unit_us: float, suspects: list[Suspect], settings: Settings, empty: Verdict
) -> Verdict:
    """Nobody is named: because nobody is late, because it changes, or because it can't be told."""
    units = matched.units
    limits = settings.calls
    enough = units >= (limits.min_steps if len(matched.steps) else limits.min_blocks)
    enough = enough and matched.calls >= limits.min_calls
    seen = all(len(g.rows) == g.size for g in matched.groups) and words.world_size(run) <= len(run.ranks)
    doubts = [s.doubt for s in suspects if s.doubt not in {words.NOT_PERSISTENT, words.VICTIM}]
    moving = max(_moving_us(g) for g in matched.groups) / unit_us
    counts = words.counts(run, matched)
    if enough and seen and not doubts:
        if moving < settings.min_rotating_cost_share:
            return replace(empty, verdict="none", reason=words.none_reason(matched, moving))
        if matched.units >= limits.min_blocks:
            return _rotating(run, matched, moving, unit_us, counts, empty)
        doubts = [words.MOVING]
    reason = doubts[0] if doubts else _too_little(run, matched, limits, seen=seen)
    finding = Finding(
        kind="one-off",
        cause="unknown",
        evidence=(counts, *words.inflicted(run, matched)),
        next=words.next_record(run, matched),
    )
    return replace(empty, reason=f"{reason} {counts}", findings=(finding,))


def _too_little(run: RunData, matched: Matched, limits: CallSettings, *, seen: bool) -> str:
    if not seen:
        least = min(matched.groups, key=lambda g: len(g.rows) / g.size)
        partly = len(least.rows) < least.size
        return words.few_seen(*((len(least.rows), least.size) if partly else (len(run.ranks), words.world_size(run))))
    if len(matched.steps) and matched.units < limits.min_steps:
        return words.few_steps(matched.units, limits.min_steps)
    needed = limits.min_calls if len(matched.steps) else limits.min_blocks * limits.calls_per_block
    return words.few_calls(matched.calls, needed)


def _moving_us(group: Group) -> float:
    """By how much the last rank holds up its group in a unit, on average, whoever it is."""
    per_unit = group.per_unit_us[:, ~np.isnan(group.per_unit_us[0])]
    ordered = np.sort(per_unit, axis=0)
    return float((ordered[1] - ordered[0]).mean())


def _rotating(run: RunData, matched: Matched, moving: float, unit_us: float, counts: str, empty: Verdict) -> Verdict:
    seconds = moving * unit_us * matched.units / 1e6
    share = min(0.99, moving)
    finding = Finding(
        kind="rotating",
        cause="unknown",
        confidence=0.8,
        slowdown=round(1.0 / (1.0 - share), 4),
        cost_seconds=round(seconds, 6),
        evidence=(counts, *words.inflicted(run, matched)),
        action="Look for what moves: batches of unequal length, garbage collection, shared storage.",
        next=words.NEXT_CAUSE,
    )
    cost = Cost(round(seconds, 6), round(share, 6), round(seconds * len(run.ranks) / 3600.0, 9))
    return replace(empty, verdict="rotating", cost=cost, findings=(finding,), reason=words.rotating_reason(share))
