"""What slows a job down, by what-if: S = T / T_ideal, who and what it is due to, and what fixing the worst would bring.

`S` of a part (a rank, a stage, a type of operation ...) is the slowdown that would be left if only that part were as it
was and all else ideal. It is 1 for a part that costs nothing, below 1 for one that is faster than the mean. `recovered`
is the share of the job's slowdown that goes away when parts are made ideal and the rest stays as it was; it can exceed
1 where what is left is faster than ideal. Both are those of the what-if analysis of stragglers (OSDI 2025), whose
definition of the slowdown of a worker, min(S of its pipeline, S of its stage), ranks the workers here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.whatif.interval import mean_interval
from starprof.analysis.whatif.replay import Mask, Part, Replay
from starprof.analysis.whatif.roles import phase_of, type_of

TOP = (1, 2, 3, 5, 10)
"""Sizes of the groups of worst workers of which the recovery is told."""
TOP_SHARE = 0.03
"""The published measure of a few bad machines: share of the workers that are fixed for `recovered_by_few`."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A slowdown per step.

    Attributes:
        per_step: shape (S,).
    """

    per_step: Floats

    @property
    def mean(self) -> float:
        """Mean over the steps."""
        return float(self.per_step.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean, from the scatter between steps; the mean alone for a single step."""
        return mean_interval(self.per_step)


Slowdowns: TypeAlias = Mapping[int | str, Slowdown]
"""By position or name."""


@dataclass(frozen=True)
class Shares:
    """The what-if analysis of a run.

    Attributes:
        steps: step numbers, shape (S,).
        measured_us: step times as measured, shape (S,).
        now_us: step times of the replay, without launch delays, shape (S,).
        ideal_us: step times with every operation ideal, shape (S,).
        by_pipeline: slowdown left by each data-parallel position alone.
        by_stage: by each pipeline stage.
        by_type: by each operation type.
        by_phase: by each phase of the step.
        by_link: by the transfers between a stage and the next, keyed by the lower one.
        worst: rows of the workers, worst first, shape (R,).
        worker: score of each worker, shape (R,).
        recovered: by fixing the k worst workers, keyed by k.
        recovered_by_few: by fixing the worst 3 % of the workers, at least one.
        recovered_by_last_stage: by fixing the last stage.
    """

    steps: Ints
    measured_us: Floats
    now_us: Floats
    ideal_us: Floats
    by_pipeline: Slowdowns
    by_stage: Slowdowns
    by_type: Slowdowns
    by_phase: Slowdowns
    by_link: Slowdowns
    worst: Ints
    worker: Floats
    recovered: dict[int, float]
    recovered_by_few: float
    recovered_by_last_stage: float

    @property
    def slowdown(self) -> Slowdown:
        """S of the job."""
        return Slowdown(self.now_us / self.ideal_us)

    @property
    def launch(self) -> Slowdown:
        """What launch delays between operations add: measured over replayed."""
        return Slowdown(self.measured_us / self.now_us)


def shares(replay: Replay) -> Shares:
    """Replay a run's steps with each of its parts alone as it was, and with the worst workers fixed."""
    workers = replay.workers
    pipelines, stages = np.unique(workers.dp), np.unique(workers.pp)
    of_type, of_phase = _by_name(replay, type_of), _by_name(replay, phase_of)
    groups: tuple[dict[int | str, Mask], ...] = (
        {int(dp): of_workers(workers.dp == dp) for dp in pipelines},
        {int(pp): of_workers(workers.pp == pp) for pp in stages},
        of_type,
        of_phase,
        {int(pp): _link(replay, int(pp)) for pp in stages[:-1]},
    )
    masks = [mask for group in groups for mask in group.values()]
    left = iter(replay.only(masks) / replay.ideal_us)
    found = [{name: Slowdown(next(left)) for name in group} for group in groups]
    score = np.minimum(_means(found[0], workers.dp), _means(found[1], workers.pp))
    worst = np.argsort(-score, kind="stable")
    few = max(1, int(np.ceil(TOP_SHARE * len(worst))))
    sizes = sorted({k for k in (*TOP, few) if k <= len(worst)})
    fixed = [of_workers(np.isin(np.arange(len(worst)), worst[:k])) for k in sizes]
    gains = recovered(replay, [*fixed, groups[1][int(stages[-1])]])
    by_size = dict(zip(sizes, gains, strict=False))
    return Shares(
        steps=replay.steps,
        measured_us=replay.measured_us,
        now_us=replay.now_us,
        ideal_us=replay.ideal_us,
        by_pipeline=found[0],
        by_stage=found[1],
        by_type=found[2],
        by_phase=found[3],
        by_link=found[4],
        worst=worst,
        worker=score,
        recovered={k: v for k, v in by_size.items() if k in TOP},
        recovered_by_few=by_size[few],
        recovered_by_last_stage=gains[-1],
    )


def recovered(replay: Replay, masks: Sequence[Mask]) -> list[float]:
    """Share of the slowdown that goes away when each of the masks is made ideal; NaN when there is no slowdown."""
    now, ideal = float(replay.now_us.mean()), float(replay.ideal_us.mean())
    return [(now - float(t.mean())) / (now - ideal) if now != ideal else float("nan") for t in replay.fixed(masks)]


def of_workers(picked: Bools) -> Mask:
    """Operations of the workers that are picked, shape (R,)."""
    return lambda part: picked[part.worker]


def _means(found: Slowdowns, position: Ints) -> Floats:
    return np.array([found[int(p)].mean for p in position])


def _by_name(replay: Replay, of: Callable[[str], str]) -> dict[int | str, Mask]:
    """A mask for each group of operation names."""
    named = np.array([of(name) for name in replay.trace.names])
    return {str(group): _kinds(named == group) for group in np.unique(named)}


def _kinds(picked: Bools) -> Mask:
    return lambda part: picked[part.kind]


def _link(replay: Replay, stage: int) -> Mask:
    """Transfers between a stage and the next one up."""
    roles = replay.trace.roles
    lower = np.array([r.value in ("forward-send", "backward-recv") for r in roles])
    upper = np.array([r.value in ("forward-recv", "backward-send") for r in roles])

    def mask(part: Part) -> Bools:
        pp = replay.workers.pp[part.worker]
        of_link: Bools = (lower[part.kind] & (pp == stage)) | (upper[part.kind] & (pp == stage + 1))
        return of_link

    return mask
