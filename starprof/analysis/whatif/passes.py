"""Forward and backward passes as matrices: step x micro-batch x pipeline x stage, and the parts that they are made of.

The time of a pass is the stage's usual time, times what its micro-batch costs (long sequences cost more, in all stages
that work on it), times how slow its rank is. The three are told apart by comparing lower medians (with an even number
the lower of the middle two: half of the ranks may be slow, and the other half is still the reference).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.whatif.persistence import noise_between_steps
from starprof.analysis.whatif.replay import Part, Replay
from starprof.analysis.whatif.roles import Role


def lower_median(values: Floats, axis: int) -> Floats:
    """Lower median along an axis, kept with length 1; NaN is left out, and NaN where there is nothing else."""
    ordered = np.sort(values, axis=axis)  # NaN goes last
    count = (~np.isnan(values)).sum(axis=axis, keepdims=True)
    taken: Floats = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=axis)
    return taken


def median(values: Floats, axis: int | tuple[int, ...]) -> Floats:
    """Median along axes, kept with length 1; NaN is left out (0 where there is nothing else)."""
    axes = (axis,) if isinstance(axis, int) else axis
    moved = np.moveaxis(values, axes, range(-len(axes), 0))
    flat = moved.reshape(*moved.shape[: -len(axes)], -1)
    ordered = np.sort(flat, axis=-1)
    count = (~np.isnan(flat)).sum(axis=-1)
    low, high = np.maximum(count - 1, 0) // 2, count // 2
    high = np.minimum(high, np.maximum(count - 1, 0))
    middle = 0.5 * sum(np.take_along_axis(ordered, at[..., None], axis=-1)[..., 0] for at in (low, high))
    return np.expand_dims(np.where(count > 0, middle, 0.0), axes)


def relative(values_us: Floats) -> Floats:
    """Logarithm of passes over what is usual for their rank, shape (S, C, D, P)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values_us)
    logs = np.where(np.isfinite(logs), logs, np.nan)
    around: Floats = logs - median(logs, (0, 1))
    return around


def correlation(first: Floats, second: Floats) -> float:
    """Correlation of two matrices where both are known; 0 where it has no meaning."""
    known = ~np.isnan(first) & ~np.isnan(second)
    if known.sum() < 3 or first[known].std() == 0 or second[known].std() == 0:
        return 0.0
    return float(np.corrcoef(first[known], second[known])[0, 1])


@dataclass(frozen=True)
class Passes:
    """All passes of a run, in step order.

    Attributes:
        forward_us, backward_us: durations, shape (S, C, D, P): steps, micro-batches (and chunks), pipelines, stages;
            NaN where there is none.
        row: row in `Workers` of each pipeline and stage, -1 for none, shape (D, P).
    """

    forward_us: Floats
    backward_us: Floats
    row: Ints

    def scaled(self, factor: Floats) -> Passes:
        """The passes if they took a multiple of what they do, given as a matrix of shape (S, C, D, P)."""
        return Passes(self.forward_us * factor, self.backward_us * factor, self.row)

    @cached_property
    def both_us(self) -> Floats:
        """Forward and backward pass of a micro-batch together, shape (S, C, D, P)."""
        return self.forward_us + self.backward_us

    @cached_property
    def usual_us(self) -> Floats:
        """What a micro-batch usually takes in each stage, shape (1, 1, 1, P)."""
        return median(lower_median(self.both_us, 2), (0, 1))

    @cached_property
    def deviation(self) -> Floats:
        """Logarithm of what a micro-batch takes over what is usual in its stage, shape (S, C, D, P)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(self.both_us / self.usual_us)
        return np.where(np.isfinite(ratio), ratio, np.nan)

    @cached_property
    def common(self) -> Floats:
        """The part that all stages of a pipeline share: the micro-batch's own, shape (S, C, D, 1).

        With one stage it can't be told from the rank's and is 0; where only one of several was recorded it is NaN.
        """
        if self.row.shape[1] < 2:
            return np.where(np.isnan(self.deviation), np.nan, 0.0)
        stages = (~np.isnan(self.deviation)).sum(axis=3, keepdims=True)
        return np.where(stages > 1, lower_median(self.deviation, 3), np.nan)

    @cached_property
    def by_rank(self) -> Floats:
        """How slow each rank is against those of its stage, per step, shape (S, D, P); a logarithm."""
        return self._own - lower_median(self._own, 1)

    @cached_property
    def _own(self) -> Floats:
        """How slow each rank is against its stage's usual, without what its micro-batches cost, shape (S, D, P)."""
        part = self.deviation - self.common
        own: Floats = np.where(np.isnan(part).all(axis=1, keepdims=True), np.nan, median(part, 1))[:, 0]
        return own

    @cached_property
    def noise_of_ranks(self) -> float:
        """How much `by_rank` scatters between steps."""
        return noise_between_steps(self._own.reshape(len(self._own), -1), self.row.shape[0])

    @cached_property
    def noise(self) -> float:
        """How much single passes of a rank scatter, whatever their micro-batch: a logarithm; 0 with one stage."""
        if self.row.shape[1] < 2:
            return 0.0
        between = np.diff(self.deviation, axis=3)  # of two stages: what the micro-batch costs cancels
        around = np.abs(between - median(between, (0, 1)))
        return 1.4826 * float(median(around, (0, 1, 2, 3)).item()) / 2**0.5

    @cached_property
    def by_pipeline(self) -> Floats:
        """How much each pipeline's micro-batches cost in all stages, against the others', per step, shape (S, D)."""
        return self._shared - lower_median(self._shared, 1)

    @cached_property
    def _shared(self) -> Floats:
        return median(self.common, 1)[:, 0, :, 0]

    @cached_property
    def noise_of_pipelines(self) -> float:
        """How much `by_pipeline` scatters between steps."""
        return noise_between_steps(self._shared, self.row.shape[0])

    def scatter(self, pipeline: int, inside: slice) -> float:
        """How much the micro-batches of a pipeline differ, as a standard deviation of the logarithm."""
        values = self.deviation[inside, :, pipeline]
        around = np.abs(values - median(values, 1))
        return 1.4826 * float(median(around, (0, 1, 2)).item())

    def together(self, pipeline: int, inside: slice) -> float:
        """Correlation of forward and backward passes of a pipeline's micro-batches: high where the data differ."""
        both = (relative(values[inside, :, [pipeline]]) for values in (self.forward_us, self.backward_us))
        return correlation(*both)


def passes_of(replay: Replay) -> Passes:
    """Collect the passes of all schedules."""
    taken = [part.takes_us for part in replay.parts]
    place, shape = _places(replay)
    row = np.full(shape[0] * shape[1], -1, np.int64)
    row[place] = np.arange(len(place))
    return Passes(grid(replay, taken, Role.FORWARD), grid(replay, taken, Role.BACKWARD), row.reshape(shape))


def grid(replay: Replay, values: Sequence[Floats], role: Role) -> Floats:
    """Values of the passes of one way, given per part like `Part.takes_us`, as a matrix of shape (S, C, D, P)."""
    place, shape = _places(replay)
    cells = cells_of(replay)
    grids = []
    for part, of_part in zip(replay.parts, values, strict=True):
        rows = np.flatnonzero(of_roles(replay, part, role))
        made = np.full((len(cells), shape[0] * shape[1], of_part.shape[1]), np.nan)
        made[np.searchsorted(cells, part.micro_batch[rows]), place[part.worker[rows]]] = of_part[rows]
        grids.append(made)
    ordered = replay.in_step_order(grids)
    return np.ascontiguousarray(np.moveaxis(ordered, -1, 0)).reshape(-1, len(cells), *shape)


_BOTH = (Role.FORWARD, Role.BACKWARD)


def _places(replay: Replay) -> tuple[Ints, tuple[int, int]]:
    """Position of each worker in a flattened matrix of pipelines and stages, and that matrix's shape."""
    dp, dp_of = np.unique(replay.workers.dp, return_inverse=True)
    pp, pp_of = np.unique(replay.workers.pp, return_inverse=True)
    return dp_of * len(pp) + pp_of, (len(dp), len(pp))


def cells_of(replay: Replay) -> Ints:
    """Micro-batches (and chunks) in the order of the matrices' second axis, shape (C,)."""
    return np.unique(np.concatenate([part.micro_batch[of_roles(replay, part, *_BOTH)] for part in replay.parts]))


def of_roles(replay: Replay, part: Part, *roles: Role) -> Bools:
    """Which operations of a part have one of the roles, shape (N,)."""
    return np.array([role in roles for role in replay.trace.roles])[part.kind]


def rescale(replay: Replay, passes: Passes, factor: Floats, taken: Sequence[Floats]) -> None:
    """Let passes take a multiple of what they do.

    Args:
        replay: the run.
        passes: its passes.
        factor: per step, micro-batch, pipeline and stage, of a shape that extends to (S, C, D, P); NaN changes nothing.
        taken: what operations take, per part a matrix like `Part.takes_us`; changed in place.
    """
    place, shape = _places(replay)
    cells = cells_of(replay)
    known = np.broadcast_to(np.where(np.isnan(factor), 1.0, factor), passes.forward_us.shape)
    for part, values in zip(replay.parts, taken, strict=True):
        step = np.searchsorted(replay.steps, part.schedule.steps)
        rows = np.flatnonzero(of_roles(replay, part, *_BOTH))
        cell = np.searchsorted(cells, part.micro_batch[rows])
        dp, pp = np.divmod(place[part.worker[rows]], shape[1])
        values[rows] *= known[step[None, :], cell[:, None], dp[:, None], pp[:, None]]
