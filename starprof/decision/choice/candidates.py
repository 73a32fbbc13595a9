"""All modes with the options that are worth a look, and their outlooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from starprof.decision.choice import closed, fresh, waiting
from starprof.decision.choice.outlook import Outlook, Stream, Unavailable
from starprof.decision.choice.situation import Situation
from starprof.sync.policies.dynamic_x import THRESHOLD
from starprof.sync.policies.grouping import by_speed

if TYPE_CHECKING:
    from starprof.analysis.arrays import Ints
    from starprof.decision.choice.waiting import Rounds

ALL_COUNTS_UP_TO = 16
"""Jobs of so many workers have every x looked at, larger ones a grid."""
FRACTIONS = (0.125, 0.25, 0.5, 0.75, 0.875, 0.9, 0.95)
CYCLES = 12
"""Iterations of the typical worker that a simulation covers."""
FEWEST_ROUNDS, MOST_ROUNDS = 120, 400
MANY, FEWEST_ROUNDS_OF_MANY = 200, 40
LEAST_FOLDED, LEAST_FOLDED_OF_MANY = 0.5, 0.8
"""Rounds of fewer fresh gradients are not worth a look where late ones are folded."""
FOLD_CAP = 8
PERIODS = (2, 4, 8)
LEADS = (1, 3)
RINGMASTER_DELAY = 2
"""Times the number of workers: what asgd has from workers that are all alike passes."""
STOPS = (0.75, 0.9)
NO_OUTLOOK: Mapping[str, str] = {
    "sync-switch": "it is a schedule from ssgd to asgd: its time lies between theirs, by what is left of the training",
    "zeno++": "how many gradients pass its test depends on a validation batch that is not known here",
}


def outlooks(situation: Situation, stragglers: int = 0) -> tuple[list[Outlook], list[Unavailable]]:
    """Outlooks of all modes, ssgd first, and the modes that have none.

    Args:
        situation: see `Situation`; with barred modes nothing is computed.
        stragglers: how many workers are expected to be late: as many gradients less than N are always looked at.
    """
    counts = worthwhile_counts(len(situation.workers), stragglers)
    found = [closed.ssgd(situation.iteration_s)]
    without = [Unavailable(mode, reason) for mode, reason in {**NO_OUTLOOK, **situation.barred}.items()]
    barred = {one.mode for one in without}
    if len(counts):
        found += _of_waiting(situation, counts, barred) + _of_fresh(situation, counts, barred)
        found += _closed(situation, counts)
    for mode, reason in _impossible(situation).items():
        if mode not in barred:
            without.append(Unavailable(mode, reason))
    return [one for one in found if one.mode not in barred or one.mode == "ssgd"], without


def worthwhile_counts(workers: int, stragglers: int) -> Ints:
    """Numbers of gradients below N that a round may wait for."""
    if workers <= ALL_COUNTS_UP_TO:
        return np.arange(1, workers)
    told = [round(share * workers) for share in FRACTIONS] + [workers - stragglers, workers - 1]
    return np.array(sorted({x for x in told if 1 <= x < workers}))


def _impossible(situation: Situation) -> dict[str, str]:
    reasons = {}
    if len(situation.node_groups) < 2:
        reasons["hierarchical"] = "it needs workers on two nodes or more"
    if situation.micro_batches < 2:
        reasons["drop-compute"] = "it needs gradients that are summed over micro-batches"
    return reasons


def _rounds(workers: int, fewest: int) -> int:
    """Rounds of at least so many gradients: of many workers fewer do, each round is a mean over all of them."""
    fewest_rounds = FEWEST_ROUNDS_OF_MANY if workers >= MANY else FEWEST_ROUNDS
    return int(np.clip(CYCLES * workers // fewest, fewest_rounds, MOST_ROUNDS))


def _of_waiting(situation: Situation, counts: Ints, barred: set[str]) -> list[Outlook]:
    times, workers = situation.iteration_s, len(situation.workers)
    found: list[Outlook] = []
    if "static-x" not in barred:
        # Few gradients a round need many rounds; one alone is asgd, which has a closed form.
        for part in (counts[(counts > 1) & (counts < workers / 4)], counts[(counts > 1) & (counts >= workers / 4)]):
            if len(part):
                told = waiting.simulate(times, waiting.first(part), len(part), _rounds(workers, int(part[0])))
                found += [_shared("static-x", {"x": int(x)}, told, at, workers) for at, x in enumerate(part)]
    if "ring-x" not in barred:
        order = np.argsort(np.argsort(times.mean(axis=0), kind="stable"), kind="stable")
        members = order[None, :] < counts[:, None]
        told = waiting.simulate(times, waiting.ring(members), len(counts), _rounds(workers, workers))
        found += [_shared("ring-x", {"x": int(x)}, told, at, workers) for at, x in enumerate(counts)]
    if "eager" not in barred:
        told = waiting.simulate(times, waiting.initiator, 1, 2 * _rounds(workers, workers))
        found.append(_shared("eager", {}, told, 0, workers))
    return found


def _of_fresh(situation: Situation, counts: Ints, barred: set[str]) -> list[Outlook]:
    times, workers = situation.iteration_s, len(situation.workers)
    most = counts[counts >= workers * (LEAST_FOLDED if workers < MANY else LEAST_FOLDED_OF_MANY)]
    rounds = _rounds(workers, workers)
    if workers >= MANY:
        counts = counts[counts >= workers / 2]
    found: list[Outlook] = []
    if {"m-sync", "backup"} - barred:
        told = fresh.simulate(times, fresh.first(counts), len(counts), rounds)
        for at, m in enumerate(counts):
            found.append(_dropping("m-sync", {"m": int(m)}, told, at))
            found.append(_dropping("backup", {"b": workers - int(m)}, told, at))
    if {"m-sync-fold", "lgc"} - barred and len(most):
        caps = np.repeat([FOLD_CAP, 1], len(most))
        both = np.tile(most, 2)
        told = fresh.simulate(times, fresh.first(both), len(both), rounds, caps=caps)
        for at, m in enumerate(most):
            found.append(_shared("m-sync-fold", {"m": int(m), "staleness_cap": FOLD_CAP}, told, at, workers, cap=True))
            found.append(_shared("lgc", {"k": int(m)}, told, len(most) + at, workers, cap=True))
    if "deadline" not in barred:
        ordered = np.sort(times, axis=1)
        chosen = most[:: max(1, len(most) // 4)] if len(most) else counts[-1:]
        after = np.unique(np.median(ordered[:, chosen - 1] - ordered[:, :1], axis=0) * 1.05)
        told = fresh.simulate(times, fresh.deadline(after), len(after), rounds)
        found += [_dropping("deadline", {"after_s": float(s)}, told, at) for at, s in enumerate(after)]
    return found


def _closed(situation: Situation, counts: Ints) -> list[Outlook]:
    times, workers = situation.iteration_s, situation.workers
    count, batch = len(workers), max(1, round(situation.batch))
    found = [closed.asgd(times), _as_static(closed.asgd(times)), closed.lb_bsp(times, batch)]
    usual = dict(zip(workers, times.mean(axis=0).tolist(), strict=True))
    groups = by_speed(usual, THRESHOLD)
    if len(groups) > 1:
        found.append(closed.dynamic_x(times, groups, workers))
    found += [closed.local_sgd(times, period) for period in PERIODS]
    if len(situation.node_groups) > 1:
        found += [closed.hierarchical(times, situation.node_groups, workers, period) for period in PERIODS]
    found += [closed.ssp(times, s) for s in LEADS]
    found += [closed.rennala(times, int(m)) for m in counts[counts >= count / 4]]
    found.append(closed.ringmaster(times, RINGMASTER_DELAY * count))
    if situation.micro_batches > 1:
        longest = float(np.median(times.max(axis=1)))
        found += [closed.drop_compute(times, share * longest, situation.micro_batches) for share in STOPS]
    return found


def _as_static(asgd: Outlook) -> Outlook:
    """static-x with x = 1 is the same schedule."""
    return Outlook(
        "static-x",
        {"x": 1},
        asgd.streams,
        asgd.gradients_per_s,
        asgd.max_staleness,
        asgd.mean_staleness,
        skew=asgd.skew,
    )


def _shared(
    mode: str, options: Mapping[str, object], told: Rounds, at: int, workers: int, *, cap: bool = False
) -> Outlook:
    """Sums divided by the number of workers."""
    taken, squared = float(told.taken[at]) / workers, float(told.taken_squared[at]) / workers**2
    return Outlook(
        mode,
        options,
        (Stream(float(told.period_s[at]), taken, squared, taken / workers),),
        float(told.computed_per_s[at]),
        int(told.max_staleness[at]),
        float(told.mean_staleness[at]),
        skew=float(told.skew[at]),
        drops=cap,
    )


def _dropping(mode: str, options: Mapping[str, object], told: Rounds, at: int) -> Outlook:
    """Means over those who are in time."""
    stream = closed.mean_over(float(told.period_s[at]), float(told.taken[at]))
    return Outlook(mode, options, (stream,), float(told.computed_per_s[at]), skew=float(told.skew[at]), drops=True)
