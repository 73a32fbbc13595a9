"""One slowness on its way from detection to finding, and the search for those of single ranks in regular work."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.stats import binom

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.cost import Reduction, late_reduction
from starprof.analysis.detect import MIN_MEMORIES, LateInterval, candidates, late_intervals
from starprof.analysis.network import Location
from starprof.analysis.noise import Noise, measure_noise
from starprof.analysis.own_time import OwnTime
from starprof.analysis.peers import median_of_others, peer_centre, slow_mode
from starprof.analysis.settings import Settings
from starprof.analysis.shapes import Shape, period_of, periodic_bounds, shape_of, spikes
from starprof.model.verdict import FindingKind

MIN_CONCENTRATED = 5
CONCENTRATED_P = 1e-4
MAX_ROTATING_SHARE = 0.6
MIN_ROTATING_RANKS = 3
FEW_RANKS = 3
MAX_SETTLED_RANKS = 16
STEADIER = 0.5
MAX_TAIL_FACTOR = 2.5
OWN_PIECES = 6


@dataclass(frozen=True)
class Slowness:
    """Something that made the job slower.

    Attributes:
        kind: its shape in time.
        rows: the ranks that did it, to blame or not.
        start: first column of it.
        end: column after the last.
        onset: columns between which the onset surely lies.
        steps: columns that carry it, shape (S,).
        reduction: what the replay takes away.
        source: which search found it: rank, special, rotating, uniform, network.
        blame: whether `rows` are to blame.
        period: period in steps of a periodic one.
        z: how surely it is no noise, in standard errors.
        late_windows: share of the windows of the interval in which it shows.
        noises: its size in standard deviations of a single step's noise.
        span: the special span, for source special.
        cost_us: its cost, filled in by the replay.
        alone_us: what the job would gain if only this were gone.
        before_us: level of the series before a rise, for sources uniform and network.
        after_us: level in it.
        place: where the slow link is, for source network.
    """

    kind: FindingKind
    rows: tuple[int, ...]
    start: int
    end: int
    onset: tuple[int, int]
    steps: Bools
    reduction: Reduction
    source: str
    blame: bool = True
    period: int | None = None
    z: float = 0.0
    late_windows: float = 1.0
    noises: float = 0.0
    span: str = ""
    cost_us: float = 0.0
    alone_us: float = 0.0
    before_us: float = 0.0
    after_us: float = 0.0
    place: Location | None = None


@dataclass
class Comparison:
    """Lateness of every rank against its peers, with the noise that it has."""

    own: OwnTime
    settings: Settings
    blamed: Bools = field(init=False)

    def __post_init__(self) -> None:
        self.blamed = slow_mode(self.own.work, self.own.groups)

    @cached_property
    def reference_us(self) -> Floats:
        """Peers' centre, shape (R, S)."""
        return peer_centre(self.own.work, self.own.groups, self.blamed)

    @cached_property
    def lateness_us(self) -> Floats:
        """Own work minus the peers' centre, shape (R, S).

        A rank without peers can only be compared with itself: with its own lowest lasting level, corrected by how all
        others move against theirs.
        """
        late = self.own.work - self.reference_us
        alone = np.isnan(late).all(axis=1)
        if alone.any():
            pieces = np.array_split(self.own.work, OWN_PIECES, axis=1)
            usual = np.nanmin([np.nanmedian(piece, axis=1) for piece in pieces], axis=0)[:, None]
            relative = self.own.work / usual
            late[alone] = ((relative - median_of_others(relative)) * usual)[alone]
        return late

    @cached_property
    def lateness(self) -> Floats:
        """Lateness as a share of the healthy step, shape (R, S)."""
        return self.lateness_us / self.own.healthy_step_us

    @cached_property
    def capped(self) -> Floats:
        """The same, capped per step, 0 where not recorded."""
        cap = self.settings.lateness_cap
        return np.clip(np.nan_to_num(self.lateness, nan=0.0), -cap, cap)

    @cached_property
    def noise(self) -> Noise:
        """Noise of the capped lateness."""
        return measure_noise(self.capped, self.own.work / self.own.healthy_step_us, self.settings, self.blamed)

    def settled(self) -> Comparison:
        """The same with ranks left out of the references as long as that makes the others much steadier.

        The median over few peers is misled when two of four are slow. Leaving out a slow rank then halves what the
        others seem to vary; leaving out a healthy one does not.
        """
        ranks = self.own.shape[0]
        current = self
        if not FEW_RANKS <= ranks <= MAX_SETTLED_RANKS:
            return current
        for _ in range(ranks // 2):
            late = current.capped.mean(axis=1) + current.capped.std(axis=1)
            late[current.blamed] = -np.inf
            other = current.without({int(np.argmax(late))})
            if (~other.blamed).sum() < 2 or other.unrest > STEADIER * current.unrest:
                break
            current = other
        return current

    @cached_property
    def unrest(self) -> float:
        """Variance of the steadier half of the references' lateness over the run."""
        variance = np.sort(self.capped[~self.blamed].var(axis=1))
        return float(variance[: max(1, len(variance) // 2)].mean())

    def without(self, rows: set[int]) -> Comparison:
        """The same ranks compared with references from which late ranks are left out."""
        other = Comparison(self.own, self.settings)
        other.blamed = self.blamed.copy()
        other.blamed[list(rows)] = True
        if other.blamed.all():
            other.blamed[:] = self.blamed
        return other


def slow_ranks(first: Comparison) -> tuple[list[Slowness], Comparison]:
    """Ranks that are late persistently, and the comparison in which they are no references."""
    first = first.settled()
    found = _intervals(first)
    comparison = first.without({part.row for part, _ in found}) if found else first
    result = [_of_interval(comparison, part, shape) for part, shape in found]
    taken = np.zeros(comparison.own.shape, bool)
    for slowness in result:
        taken[slowness.rows[0], slowness.start : slowness.end] = True
    return result + _spiky(comparison, taken), comparison


def _intervals(comparison: Comparison) -> list[tuple[LateInterval, Shape]]:
    settings, noise = comparison.settings, comparison.noise
    found = []
    for row in np.flatnonzero(candidates(comparison.capped, noise, settings)):
        for part in late_intervals(int(row), comparison.capped[row], noise, settings, comparison.own.shape[0]):
            sigma = float(np.median(noise.sigma))
            shape = shape_of(part, comparison.lateness[row], comparison.capped[row], sigma, settings)
            found.append((part, shape))
    return found


def _of_interval(comparison: Comparison, part: LateInterval, shape: Shape) -> Slowness:
    own = comparison.own
    inside = np.zeros(own.shape[1], bool)
    inside[shape.start : shape.end] = True
    gone = late_reduction(
        own,
        comparison.lateness_us,
        part.row,
        inside,
        part.base * own.healthy_step_us,
        comparison.blamed,
    )
    return Slowness(
        kind=shape.kind,
        rows=(part.row,),
        start=shape.start,
        end=shape.end,
        onset=shape.onset,
        steps=shape.hits,
        reduction=Reduction({part.row: gone}),
        source="rank",
        period=shape.period,
        z=part.z,
        late_windows=part.late_windows,
        noises=part.excess / float(comparison.noise.sigma[part.row]),
    )


def _spiky(comparison: Comparison, taken: Bools) -> list[Slowness]:
    """Ranks whose lateness comes in separate steps: periodic, or far more often than its peers."""
    high = spikes(comparison.lateness, comparison.settings) & ~taken
    result = []
    ranks = comparison.own.shape[0]
    # Noise with a memory makes one excursion look like several spikes: count excursions.
    apart = max(1, int(np.ceil(MIN_MEMORIES * comparison.noise.memory)))
    excursions = [int((np.diff(np.flatnonzero(row), prepend=-apart - 1) > apart).sum()) for row in high]
    for row in np.flatnonzero(np.array(excursions) >= MIN_CONCENTRATED - 1):
        columns = np.flatnonzero(high[row])
        period = period_of(columns)
        # Were excursions to hit all ranks alike, would this rank get so many of them?
        chance = binom.sf(excursions[row] - 1, sum(excursions), 1.0 / ranks) * ranks
        concentrated = excursions[row] >= MIN_CONCENTRATED and chance < CONCENTRATED_P
        if period is None and not concentrated:
            continue
        result.append(_of_spikes(comparison, int(row), columns, period))
    return result


def _of_spikes(comparison: Comparison, row: int, columns: Ints, period: int | None) -> Slowness:
    steps = np.zeros(comparison.own.shape[1], bool)
    steps[columns] = True
    start, end = int(columns[0]), int(columns[-1]) + 1
    distance = period or int(np.ceil((end - start) / max(1, len(columns) - 1)))
    if period is not None:
        start, end = periodic_bounds(columns, period, comparison.own.shape[1])
    until_end = end + 2 * distance >= comparison.own.shape[1]
    kind: FindingKind = "periodic" if period else "chronic" if until_end or start <= distance else "transient"
    return Slowness(
        kind=kind,
        rows=(row,),
        start=start,
        end=comparison.own.shape[1] if until_end and not period else end,
        onset=(max(0, int(columns[0]) - distance + 1), int(columns[0])),
        steps=steps,
        reduction=Reduction({row: spike_reduction(comparison, row, steps)}),
        source="rank",
        period=period,
        z=float(len(columns)),
        late_windows=len(columns) / max(1.0, (end - start) / distance),
    )


def spike_reduction(comparison: Comparison, row: int, steps: Bools) -> Floats:
    """What single late steps of a rank cost its cycle: all of its lateness but its usual one, shape (S,)."""
    late = np.nan_to_num(comparison.lateness_us[row], nan=0.0)
    usual = float(np.median(late[~steps])) if (~steps).any() else 0.0
    return np.where(steps, np.maximum(0.0, late - max(0.0, usual)), 0.0)


def single_steps(comparison: Comparison, known: list[Slowness]) -> list[Slowness]:
    """What is left of single late steps: rotating over the ranks when it is much, else one-offs (most costly first)."""
    own, settings = comparison.own, comparison.settings
    high = spikes(comparison.lateness, settings)
    for slowness in known:
        if slowness.source == "rank":
            high[slowness.rows[0], slowness.start : slowness.end] = False
    if not high.any():
        return []
    per_rank = high.sum(axis=1)
    hit = tuple(int(r) for r in np.flatnonzero(per_rank))
    columns = np.flatnonzero(high.any(axis=0))
    reductions = {row: spike_reduction(comparison, row, high[row]) for row in hit}
    # A heavy tail of ordinary noise has many more steps at half the height; something that happens has few.
    separate = (
        spikes(comparison.lateness, settings, 0.5).sum()
        <= MAX_TAIL_FACTOR * spikes(comparison.lateness, settings).sum()
    )
    turning = separate and len(hit) >= MIN_ROTATING_RANKS and per_rank.max() <= MAX_ROTATING_SHARE * per_rank.sum()
    if turning and len(columns) >= settings.min_slow_steps:
        start, end = int(columns[0]), int(columns[-1]) + 1
        everywhere = Slowness(
            kind="rotating",
            rows=hit,
            start=start,
            end=end,
            onset=(start, start),
            steps=np.asarray(high.any(axis=0)),
            reduction=Reduction(reductions),
            source="rotating",
            blame=False,
        )
        return [everywhere]
    found = [
        piece
        for row in hit
        for piece in _one_offs(comparison, row, np.flatnonzero(high[row]), reductions[row])
        if piece.cost_us >= settings.min_one_off_cost_steps * own.healthy_step_us
    ]
    return sorted(found, key=lambda piece: -piece.cost_us)[: settings.max_findings_listed]


def _one_offs(comparison: Comparison, row: int, columns: Ints, gone: Floats) -> list[Slowness]:
    """Join neighbouring late steps of a rank to one event each."""
    result = []
    for group in np.split(columns, np.flatnonzero(np.diff(columns) > 2) + 1):
        steps = np.zeros(comparison.own.shape[1], bool)
        steps[group] = True
        part = np.where(steps, gone, 0.0)
        first = int(group[0])
        result.append(
            Slowness(
                kind="one-off",
                rows=(row,),
                start=first,
                end=int(group[-1]) + 1,
                onset=(first, first),
                steps=steps,
                reduction=Reduction({row: part}),
                source="rank",
                blame=False,
                cost_us=float(part.sum()),
            )
        )
    return result


def rotating_stretches(found: list[Slowness]) -> list[Slowness]:
    """Put transient stretches that follow each other on several ranks together: nobody in particular is slow."""
    moving = [s for s in found if s.source == "rank" and s.kind in ("transient", "chronic") and s.blame]
    rows = {s.rows[0] for s in moving}
    ordered = sorted(moving, key=lambda s: s.start)
    apart = all(a.end <= b.start + 0.1 * (a.end - a.start) for a, b in pairwise(ordered))
    if len(rows) < MIN_ROTATING_RANKS or not apart:
        return found
    gone: dict[int, Floats] = {}
    for part in moving:
        row = part.rows[0]
        gone[row] = gone.get(row, 0.0) + part.reduction.rows[row]
    together = replace(
        ordered[0],
        kind="rotating",
        rows=tuple(sorted(rows)),
        end=ordered[-1].end,
        steps=np.logical_or.reduce([s.steps for s in moving]),
        reduction=Reduction(gone),
        source="rotating",
        blame=False,
    )
    return [s for s in found if not any(s is m for m in moving)] + [together]
