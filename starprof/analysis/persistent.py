"""Ranks that are late persistently, and slow stretches that go round over the ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.comparison import Comparison
from starprof.analysis.cost import Reduction, late_reduction
from starprof.analysis.detect import LateInterval, candidates, late_intervals
from starprof.analysis.noise import Noise, memory_of, without_steps
from starprof.analysis.regimes import begin_of_rise, fit_better_than_a_rise, regimes
from starprof.analysis.shapes import Shape, shape_of
from starprof.analysis.slowness import Slowness
from starprof.analysis.spiky import MIN_ROTATING_RANKS, spiky_ranks
from starprof.model.verdict import FindingKind

MOVING_CHANGES = 7
MOST_RANKS = 0.5
SAME_PERIOD = 1.3


def slow_ranks(first: Comparison) -> tuple[list[Slowness], Comparison]:
    """Ranks that are late persistently, and the comparison in which they are no references."""
    first = first.settled()
    found = _intervals(first, first.noise)
    if not found and (moving := _moving_stretches(first)):
        return moving, first
    comparison = first.without({part.row for part, _ in found}) if found else first
    result = _apart(
        [_of_interval(comparison, part, one) for part, shape in found for one in _regimes(comparison, part, shape)]
    )
    taken = np.zeros(comparison.own.shape, bool)
    for slowness in result:
        taken[slowness.rows[0], slowness.start : slowness.end] = True
    return result + spiky_ranks(comparison, taken), comparison


def _moving_stretches(comparison: Comparison) -> list[Slowness]:
    """Slow stretches that go round over the ranks, so that all of them look restless and none stands out."""
    calm = _noise_inside(comparison)
    found = [_of_interval(comparison, part, shape) for part, shape in _intervals(comparison, calm)]
    return [s for s in rotating_stretches(found) if s.source == "rotating"]


def _noise_inside(comparison: Comparison) -> Noise:
    """The noise inside the stretches, without what goes on between them."""
    stepwise = without_steps(comparison.capped, MOVING_CHANGES)
    return replace(comparison.noise, sigma=np.std(stepwise, axis=1), memory=memory_of(stepwise))


def _intervals(comparison: Comparison, noise: Noise) -> list[tuple[LateInterval, Shape]]:
    settings = comparison.settings
    found = []
    for row in np.flatnonzero(candidates(comparison.capped, noise, settings)):
        for part in late_intervals(int(row), comparison.capped[row], noise, settings, comparison.own.shape[0]):
            sigma = float(np.median(noise.sigma))
            hidden = comparison.own.hidden_steps
            shape = shape_of(part, comparison.lateness[row], comparison.capped[row], sigma, hidden, settings)
            found.append((part, shape))
    return found


def _regimes(comparison: Comparison, part: LateInterval, shape: Shape) -> list[Shape]:
    """A lasting slowness whose level changes much is several; one that grows all along is a trend."""
    if shape.kind not in ("chronic", "transient", "trend"):
        return [shape]
    whole = _lasting(comparison, part) if shape.kind == "trend" else shape
    own = comparison.own
    late = comparison.lateness_us[part.row, whole.start : whole.end] - part.base * own.healthy_step_us
    excess = np.nan_to_num(late, nan=0.0)
    pieces = regimes(excess, comparison.noise.memory, comparison.settings.min_slow_steps)
    if not fit_better_than_a_rise(excess, pieces):
        began = None if shape.kind == "trend" else begin_of_rise(excess)
        return [shape if began is None else _rising(shape, began)]
    result = []
    for piece in pieces:
        start, end = whole.start + piece.start, whole.start + piece.end
        hits = np.zeros(own.shape[1], bool)
        hits[start:end] = whole.hits[start:end]
        first, last = piece is pieces[0], piece is pieces[-1]
        kind: FindingKind = whole.kind if (first and start == 0) or last else "transient"
        low, high = piece.onset
        bounds = whole.onset if first else (whole.start + low, whole.start + high)
        result.append(Shape(kind, start, end, bounds, hits))
    return result


def _lasting(comparison: Comparison, part: LateInterval) -> Shape:
    """The whole interval."""
    inside = np.zeros(comparison.own.shape[1], bool)
    inside[part.start : part.end] = True
    kind: FindingKind = "chronic" if part.start == 0 or part.end == len(inside) else "transient"
    return Shape(kind, part.start, part.end, part.onset, inside)


def _rising(shape: Shape, began: int) -> Shape:
    """The same as a trend that began before it was seen, `began` being 0 or less."""
    start = max(0, shape.start + began)
    hits = shape.hits.copy()
    hits[start : shape.end] = True
    return Shape("trend", start, shape.end, (start, shape.start), hits)


def _apart(found: list[Slowness]) -> list[Slowness]:
    """Let each slowness of a rank know when the same rank is slow in another way: that is no healthy past."""
    result = []
    for slowness in found:
        slow = np.zeros(len(slowness.steps), bool)
        for other in found:
            if other is not slowness and other.rows == slowness.rows:
                slow[other.start : other.end] = True
        result.append(replace(slowness, elsewhere=slow) if slow.any() else slowness)
    return result


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


def rotating_stretches(found: list[Slowness]) -> list[Slowness]:
    """Put transient stretches that follow each other on several ranks together: nobody in particular is slow."""
    moving = [s for s in found if s.source == "rank" and s.kind in ("transient", "chronic") and s.blame]
    rows = {s.rows[0] for s in moving}
    ordered = sorted(moving, key=lambda s: s.start)
    apart = all(a.end <= b.start + 0.1 * (a.end - a.start) for a, b in pairwise(ordered))
    if len(rows) < MIN_ROTATING_RANKS or not apart:
        return found
    return [s for s in found if not any(s is m for m in moving)] + [_going_round(moving)]


def rotating_periods(found: list[Slowness], ranks: int) -> list[Slowness]:
    """Put regular late steps together that most ranks have at the same distance, each in steps of its own.

    What every rank does by itself now and then (a garbage collector does) is nobody's slowness.
    """
    regular = [s for s in found if s.source == "rank" and s.kind == "periodic" and s.blame and s.period]
    if len(regular) < max(MIN_ROTATING_RANKS, MOST_RANKS * ranks):
        return found
    periods = [s.period or 0 for s in regular]
    together = np.sum([s.steps for s in regular], axis=0)
    if max(periods) > SAME_PERIOD * min(periods) or (together > 1).sum() > 0.5 * (together > 0).sum():
        return found
    return [s for s in found if not any(s is m for m in regular)] + [_going_round(regular)]


def _going_round(parts: list[Slowness]) -> Slowness:
    gone: dict[int, Floats] = {}
    for part in parts:
        row = part.rows[0]
        gone[row] = gone.get(row, 0.0) + part.reduction.rows[row]
    first = min(parts, key=lambda s: s.start)
    return replace(
        first,
        kind="rotating",
        rows=tuple(sorted({s.rows[0] for s in parts})),
        end=max(s.end for s in parts),
        steps=np.logical_or.reduce([s.steps for s in parts]),
        reduction=Reduction(gone),
        source="rotating",
        blame=False,
        period=None,
    )
