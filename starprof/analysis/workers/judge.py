"""The judge of runs whose step records hold each worker's own time, or whole steps with the waiting inside."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from starprof.analysis.arrays import Bools
from starprof.analysis.causes.base import pct, rank_names
from starprof.analysis.level import Rise, rises
from starprof.analysis.settings import Settings
from starprof.analysis.workers import words
from starprof.analysis.workers.events import MIN_CHANGE, Event, events_of, mask_of
from starprof.analysis.workers.fleet import Fleet, fleet_of
from starprof.analysis.workers.levels import FEW_SAMPLES, Levels, levels_of
from starprof.analysis.workers.losses import Losses
from starprof.model.rundata import RunData
from starprof.model.verdict import Cost, Finding, Verdict

OWN, WALL = "own", "wall"
SAME_SLACK = 5
SAME_SLACK_SHARE = 0.05
SAME_SIZE = 0.5
ALL_SHARE = 0.9
OWN_PART = 0.5
UNIT_US = 1e6
MIN_LOST = 0.01
"""Least share of its own time in the run that an event must cost a worker."""


def judge(run: RunData, settings: Settings, empty: Verdict) -> Verdict | None:
    """Verdict on own times, or why whole steps can't tell; None for other runs.

    Args:
        run: one with `info["timing"]` own or wall.
        settings: thresholds.
        empty: verdict that is filled in but for the answer.
    """
    timing = run.info.get("timing")
    if timing not in (OWN, WALL):
        return None
    fleet = fleet_of(run)
    if fleet is None:
        return None
    empty = replace(empty, steps=(int(fleet.steps[0]), int(fleet.steps[-1])))
    if timing == WALL:
        return replace(empty, reason=_not_identifiable(fleet))
    if len(fleet.infos) < 2:
        return replace(
            empty, reason=f"Only {rank_names((fleet.rank(0),))} left times: there is nobody to compare with."
        )
    found = _search(fleet, settings)
    return _verdict(run, fleet, found, empty)


def _not_identifiable(fleet: Fleet) -> str:
    return (
        f"Who is slow is not identifiable: all {len(fleet.infos)} ranks show the same wall time per step, as "
        "synchronous steps do, because everybody waits for the slowest. Record what each rank needs without waiting: "
        "its time to the last gradient before the reduction, or its time in collectives (starprof record does both)."
    )


@dataclass(frozen=True)
class _Found:
    """What was found: events in groups of the same time, constant differences, and what all did together."""

    events: list[list[Event]]
    levels: Levels
    together: list[Rise]
    losses: Losses
    lost: Bools


def _search(fleet: Fleet, settings: Settings) -> _Found:
    events, relative = events_of(fleet, settings)
    late = mask_of(events, fleet.shape)
    levels = levels_of(fleet, late)
    losses = Losses(fleet, relative, levels)
    events = [event for event in events if losses.of_event(event) >= MIN_LOST * _time_of(fleet, event.row)]
    together = _together(fleet, late, settings) if fleet.shape[1] >= FEW_SAMPLES else []
    return _Found(_same_time(events, fleet.shape[1]), levels, together, losses, late)


def _time_of(fleet: Fleet, row: int) -> float:
    return float(fleet.weights[row].sum())


def _same_time(events: list[Event], samples: int) -> list[list[Event]]:
    """Events of about the same size that begin and end together on several workers."""
    slack = max(SAME_SLACK, int(SAME_SLACK_SHARE * samples))
    groups: list[list[Event]] = []
    for event in sorted(events, key=lambda e: (e.start, e.row)):
        near = (
            g
            for g in groups
            if abs(g[0].start - event.start) <= slack
            and abs(g[0].end - event.end) <= slack
            and abs(g[0].excess - event.excess) <= SAME_SIZE * max(g[0].excess, event.excess)
            and all(other.row != event.row for other in g)
        )
        group = next(near, None)
        if group is None:
            groups.append([event])
        else:
            group.append(event)
    return groups


def _together(fleet: Fleet, late: Bools, settings: Settings) -> list[Rise]:
    """Rises of the whole fleet."""
    own = fleet.logs - np.nanmedian(fleet.logs, axis=1, keepdims=True)
    left = np.where(late, np.nan, own)
    known: Bools = np.asarray(~np.isnan(left).all(axis=0))
    centre = np.interp(np.arange(len(known)), np.flatnonzero(known), np.nanmedian(left[:, known], axis=0))
    found = rises((centre - centre.min()) * UNIT_US, UNIT_US, settings)
    return [rise for rise in found if rise.level - rise.before >= MIN_CHANGE * UNIT_US and _all_rose(own, rise)]


def _all_rose(own: np.ndarray[tuple[int, int], np.dtype[np.float64]], rise: Rise) -> bool:
    inside = np.zeros(own.shape[1], bool)
    inside[rise.start : rise.end] = True
    rose = []
    for series in own:
        during, outside = series[inside & ~np.isnan(series)], series[~inside & ~np.isnan(series)]
        if during.size and outside.size:
            rose.append(np.median(during) - np.median(outside) >= OWN_PART * (rise.level - rise.before) / UNIT_US)
    return bool(rose) and float(np.mean(rose)) >= ALL_SHARE


def _verdict(run: RunData, fleet: Fleet, found: _Found, empty: Verdict) -> Verdict:
    findings = _findings(run, fleet, found)
    blamed = [f for f in findings if f.ranks]
    if blamed:
        reason = _who_and_when(fleet, found)
        return replace(empty, verdict="straggler", findings=tuple(findings), cost=_cost(fleet, found), reason=reason)
    if fleet.shape[1] < FEW_SAMPLES:
        return replace(empty, reason=_too_few(fleet, found.levels))
    if found.together:
        return replace(
            empty,
            verdict="uniform",
            findings=tuple(findings),
            cost=_as_cost(fleet, sum(_lost_by_all(found, rise) for rise in found.together)),
            reason=f"All {fleet.shape[0]} workers became slower together; there is no straggler.",
        )
    if found.levels.varied:
        variety = words.variety_finding(fleet, found.levels)
        spread = words.spread_words(fleet, found.levels)
        return replace(
            empty,
            verdict="none",
            findings=(variety,),
            reason=f"No worker is a straggler and nothing happened: the workers differ constantly ({spread}).",
        )
    return replace(
        empty,
        verdict="none",
        reason=f"No worker stands out or changed: over {fleet.shape[1]} samples all {fleet.shape[0]} workers' median "
        f"times lie within {np.expm1(np.ptp(found.levels.levels)) * 100:.0f} %.",
    )


def _findings(run: RunData, fleet: Fleet, found: _Found) -> list[Finding]:
    """Constant slowness first, then events in their order."""
    every = [event for group in found.events for event in group]
    result = [
        words.group_finding(fleet, group, found.losses.of_group(group, every), found.losses, run)
        for group in found.levels.groups
    ]
    result += [words.event_finding(fleet, group, found.losses) for group in found.events]
    result += [
        words.uniform_finding(
            fleet, rise.start, rise.end, (rise.level - rise.before) / UNIT_US, _lost_by_all(found, rise)
        )
        for rise in found.together
    ]
    return result


def _lost_by_all(found: _Found, rise: Rise) -> float:
    return found.losses.of_all(rise.start, rise.end, (rise.level - rise.before) / UNIT_US)


def _cost(fleet: Fleet, found: _Found) -> Cost:
    """What slow workers lost; the job does as much in its time as all workers together."""
    every = [event for group in found.events for event in group]
    lost = sum(found.losses.of_event(event) for event in every)
    return _as_cost(fleet, lost + sum(found.losses.of_group(group, every) for group in found.levels.groups))


def _as_cost(fleet: Fleet, lost: float) -> Cost:
    total = float(fleet.weights.sum())
    seconds = lost / fleet.shape[0] if fleet.in_seconds else 0.0
    return Cost(
        seconds=round(seconds, 6),
        share=round(lost / total, 6) if total > 0 else 0.0,
        gpu_hours=round(seconds * fleet.shape[0] / 3600.0, 6),
    )


def _who_and_when(fleet: Fleet, found: _Found) -> str:
    parts = [
        f"{rank_names(tuple(fleet.rank(r) for r in group.rows))} x{np.exp(group.excess):.2f} throughout"
        for group in found.levels.groups
    ]
    for group in found.events:
        who = rank_names(tuple(fleet.rank(event.row) for event in group))
        times = np.exp(np.mean([event.excess for event in group]))
        start, end = min(e.start for e in group), max(e.end for e in group)
        lasts = end >= fleet.shape[1] - 1
        when = f"since {fleet.moment(start)}" if lasts else f"from {fleet.stretch(start, end)}"
        parts.append(f"{who} x{times:.2f} {when}")
    text = "; ".join(parts)
    share = _cost(fleet, found).share
    varied = found.levels.varied and not found.levels.groups
    variety = f" Besides, workers differ constantly: {words.spread_words(fleet, found.levels)}." if varied else ""
    return (
        f"{text[0].upper()}{text[1:]}. Counting their own time only, {pct(share)} of what the fleet could do is lost."
        f"{variety}"
    )


def _too_few(fleet: Fleet, levels: Levels) -> str:
    slowest = int(np.argmax(levels.levels))
    samples = fleet.shape[1]
    return (
        f"Only {samples} sample{'s' if samples > 1 else ''} per worker, {FEW_SAMPLES} are needed to tell a change from "
        f"chance: rank {fleet.rank(slowest)} needed most ({words.spread_words(fleet, levels)}), but no group is apart."
    )
