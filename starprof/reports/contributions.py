"""Who had what part in the updates: per mode, per rank and mode, and over time.

R ranks, M modes in the order in which they first came, B bins of time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starprof.reports import facts
from starprof.reports.facts import Matrix
from starprof.reports.synchronised import Synchronised, time_of_modes

STALENESS_EDGES = (0, 1, 2, 4, 8)
"""Staleness is told in classes that begin here: 0, 1, 2-3, 4-7, 8 and more."""


@dataclass(frozen=True, slots=True, eq=False)
class Mode:
    """What became of the updates under one mode, over all its stretches.

    Attributes:
        name: as readers know it.
        native: native steps: everybody's gradient in every update, and no records of them.
        seconds: how long.
        updates: steps or rounds.
        recorded: rounds whose record is looked at.
        gradients: median number in an update, NaN without records.
        progress: what its updates stand for, in native steps a second; NaN without records.
        stale: shares of gradients by staleness class, shape (5,), NaN without records.
        staleness_max: largest, -1 without records.
        again: share of rounds whose reduction had to be tried again.
        not_finite: updates that were left out since their gradient was not finite, as far as a loss scale tells.
    """

    name: str
    native: bool
    seconds: float
    updates: int
    recorded: int
    gradients: float
    progress: float
    stale: Matrix
    staleness_max: int
    again: float
    not_finite: int


@dataclass(frozen=True)
class Parts:
    """Each rank's part under each mode, each of shape (R, M), NaN = not known.

    Attributes:
        contributed: share of the rounds that hold a gradient of the rank.
        used: share of the rank's batches whose gradient went into an update: neither skipped nor dropped.
        skipped: share of its batches that it left out.
        waited_us: mean time from handing a gradient in to the release.
        lag: mean number of updates that it applied in a step; above 1 it had to catch up.
    """

    contributed: Matrix
    used: Matrix
    skipped: Matrix
    waited_us: Matrix
    lag: Matrix


def modes(sync: Synchronised) -> tuple[Mode, ...]:
    """All modes of the run."""
    g = sync.gradients
    stretch_mode = _mode_of_stretches(sync)
    of_update = stretch_mode[sync.stretch_of(g.version)] if len(g.version) else np.zeros(0, np.int64)
    weight = np.bincount(g.update, weights=g.weight, minlength=len(g.version))
    left_out = _left_out(sync, stretch_mode)
    result = []
    for at, (name, seconds) in enumerate(time_of_modes(sync.stretches).items()):
        mine = [s for s in sync.stretches if s.mode == name]
        updates, native = sum(s.updates for s in mine), mine[0].native
        rounds = np.flatnonzero(of_update == at)
        stale = g.staleness[of_update[g.update] == at] if len(rounds) else np.zeros(0, np.int32)
        classes = np.searchsorted(STALENESS_EDGES, stale, side="right") - 1
        each = float(weight[rounds].mean()) if len(rounds) else 1.0 if native else float("nan")
        result.append(
            Mode(
                name,
                native,
                seconds,
                updates,
                len(rounds),
                float(np.median(g.gradients[rounds])) if len(rounds) else float("nan"),
                each * updates / seconds if seconds > 0 else float("nan"),
                np.bincount(np.maximum(classes, 0), minlength=len(STALENESS_EDGES)) / (len(stale) or np.nan),
                int(stale.max(initial=-1)),
                float((g.tries[rounds] > 1).mean()) if len(rounds) else 0.0,
                int(left_out[at]),
            )
        )
    return tuple(result)


def _left_out(sync: Synchronised, stretch_mode: NDArray[np.int64]) -> Matrix:
    """Updates of each mode that were not finite. All ranks leave out the same: the one that has seen most counts."""
    modes, frame = int(stretch_mode.max(initial=-1)) + 1, sync.run.sync_steps
    if frame is None or not modes or "not_finite" not in frame:
        return np.zeros(modes)
    cells = {name: frame[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in ("version", "not_finite")}
    known = np.isfinite(cells["version"]) & (cells["not_finite"] > 0)
    ranks, row = np.unique(frame["rank"].to_numpy()[known], return_inverse=True)
    mode = stretch_mode[sync.stretch_of(np.maximum(cells["version"][known].astype(np.int64) - 1, 0))]
    seen = _count(row, mode, (len(ranks), modes), cells["not_finite"][known])
    return np.asarray(seen.max(axis=0, initial=0.0))


def _mode_of_stretches(sync: Synchronised) -> NDArray[np.int64]:
    order = {name: at for at, name in enumerate(time_of_modes(sync.stretches))}
    return np.array([order[s.mode] for s in sync.stretches], dtype=np.int64)


def parts(sync: Synchronised) -> Parts:
    """Each rank's part under each mode."""
    shape = (len(sync.run.ranks), len(time_of_modes(sync.stretches)))
    stretch_mode = _mode_of_stretches(sync)
    g = sync.gradients
    contributed, used_count = np.full(shape, np.nan), np.zeros(shape)
    if len(g.version):
        of_update = stretch_mode[sync.stretch_of(g.version)]
        mode = of_update[g.update]
        once = np.unique(np.stack([g.update, g.row]), axis=1)
        rounds = np.bincount(of_update, minlength=shape[1])
        in_rounds = _count(once[1], of_update[once[0]], shape)
        contributed = in_rounds / np.where(rounds, rounds, np.nan)
        # Where only a part of the rounds is looked at, it stands for all.
        all_rounds = np.zeros(shape[1])
        for stretch, at in zip(sync.stretches, stretch_mode, strict=True):
            all_rounds[at] += stretch.updates
        used_count = _count(g.row, mode, shape) * all_rounds / np.where(rounds, rounds, np.nan)
    handed_in, skipped, waited, lag = _of_steps(sync, shape, stretch_mode)
    with np.errstate(invalid="ignore", divide="ignore"):
        batches = handed_in + skipped
        used = np.minimum(used_count / batches, 1.0)
        return Parts(contributed, used, skipped / batches, waited, lag)


def _of_steps(
    sync: Synchronised, shape: tuple[int, int], stretch_mode: NDArray[np.int64]
) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Gradients handed in, batches skipped, mean wait and mean lag, from what the ranks tell of their steps."""
    nothing = np.full(shape, np.nan)
    frame = sync.run.sync_steps
    row_of = {rank.rank: row for row, rank in enumerate(sync.run.ranks)}
    if frame is None or not len(sync.stretches):
        return nothing, nothing.copy(), nothing.copy(), nothing.copy()
    row = frame["rank"].map(row_of).fillna(-1).to_numpy(np.int64)
    cells = {
        name: frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
        for name in ("number", "version", "waited_us", "updates", "skipped")
    }
    known = (row >= 0) & np.isfinite(cells["version"])
    row, cells = row[known], {name: values[known] for name, values in cells.items()}
    # The step's last update is the one before its version.
    mode = stretch_mode[sync.stretch_of(np.maximum(cells["version"].astype(np.int64) - 1, 0))]
    rows = _count(row, mode, shape)
    told = np.isfinite(cells["number"])
    numbers = _count(row[told], mode[told], shape)
    handed_in = _handed_in(sync, row[told], cells["number"][told], cells["version"][told], stretch_mode, shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        # Of very long runs a random part of the rows is read: means are as of all, sums are scaled.
        scale = np.where(numbers > 0, handed_in / numbers, 1.0)
        skipped = _count(row, mode, shape, np.nan_to_num(cells["skipped"])) * scale
        waited = _count(row, mode, shape, np.nan_to_num(cells["waited_us"])) / numbers
        lag = _count(row, mode, shape, np.nan_to_num(cells["updates"])) / rows
    none = rows == 0
    return tuple(np.where(none, np.nan, values) for values in (handed_in, skipped, waited, lag))  # type: ignore[return-value]


def _handed_in(
    sync: Synchronised,
    row: NDArray[np.int64],
    number: Matrix,
    version: Matrix,
    stretch_mode: NDArray[np.int64],
    shape: tuple[int, int],
) -> Matrix:
    """Gradients per rank and mode; they are numbered, so those whose row is lost or not read count too."""
    ranks, stretches = shape[0], len(stretch_mode)
    place = sync.stretch_of(np.maximum(version.astype(np.int64) - 1, 0)) * ranks + row
    first, last = np.full(stretches * ranks, np.inf), np.full(stretches * ranks, -np.inf)
    np.minimum.at(first, place, number)
    np.maximum.at(last, place, number)
    counts = np.maximum(last - first + 1, 0.0).reshape(stretches, ranks)
    handed_in = np.zeros((shape[1], ranks))
    np.add.at(handed_in, stretch_mode, counts)
    return handed_in.T


def _count(
    row: NDArray[np.integer], mode: NDArray[np.int64], shape: tuple[int, int], weights: Matrix | None = None
) -> Matrix:
    flat = np.bincount(row.astype(np.int64) * shape[1] + mode, weights=weights, minlength=shape[0] * shape[1])
    return np.asarray(flat, dtype=np.float64).reshape(shape)


def influence(sync: Synchronised, edges_s: Matrix) -> Matrix:
    """Each rank's part in the updates of a time, against an even part: 1 = as much as anybody, shape (R, B).

    Native steps count as even. A bin in which no update was closed shows the next one of the same stretch; NaN = none.
    """
    bins, ranks = len(edges_s) - 1, len(sync.run.ranks)
    middle = (edges_s[:-1] + edges_s[1:]) / 2
    result = np.full((ranks, bins), np.nan)
    g = sync.gradients
    first_of = np.searchsorted(g.update, np.searchsorted(g.version, [s.first for s in sync.stretches]))
    ends = [*first_of[1:], len(g.update)]
    for stretch, first, end in zip(sync.stretches, first_of, ends, strict=True):
        inside = np.flatnonzero((middle >= stretch.begin_s) & (middle < max(stretch.end_s, stretch.begin_s + 1e-9)))
        if not inside.size:
            continue
        if stretch.native:
            result[:, inside] = 1.0
            continue
        mine = slice(first, end)
        place = np.clip(np.searchsorted(edges_s, g.at_s[g.update[mine]], side="right") - 1, inside[0], inside[-1])
        weights = np.bincount(g.row[mine] * bins + place, weights=g.weight[mine], minlength=ranks * bins)
        weights = weights.reshape(ranks, bins)[:, inside]
        total = weights.sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            part = np.minimum(weights * ranks / np.where(total > 0, total, np.nan), 1.0)
        result[:, inside] = next_known(part)
    return result


def next_known(values: Matrix) -> Matrix:
    """Columns without any value get those of the next one that has some."""
    known = np.isfinite(values)
    places = np.where(known, np.arange(values.shape[1]), values.shape[1])
    following = np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1]
    padded = np.hstack([values, np.full((len(values), 1), np.nan)])
    return np.take_along_axis(padded, following, axis=1)


def step_times(sync: Synchronised, edges_s: Matrix) -> tuple[Matrix, Matrix]:
    """Median over the ranks' step times, and the slowest rank's own time, by bins of time, each of shape (B,).

    Steps of one number are not of one time once ranks skip batches, so they are taken by when they ended. A bin in
    which no step of a rank ended shows the one that it was in.
    """
    step = _binned(sync, facts.column(sync.run, "dur_us"), edges_s)
    own = _binned(sync, facts.own_us(sync.run), edges_s)
    with facts.quiet():
        median = np.nanmedian(step, axis=0) if len(step) else np.full(len(edges_s) - 1, np.nan)
        slowest = np.nanmax(own, axis=0) if len(own) else np.full(len(edges_s) - 1, np.nan)
    return np.asarray(median), np.asarray(slowest)


def _binned(sync: Synchronised, values: Matrix, edges_s: Matrix) -> Matrix:
    """Mean per rank and bin, shape (R, B)."""
    bins = len(edges_s) - 1
    means = np.full((len(values), bins), np.nan)
    for row in range(len(values)):
        known = np.isfinite(values[row]) & np.isfinite(sync.end_s[row])
        place = np.clip(np.searchsorted(edges_s, sync.end_s[row, known], side="left") - 1, 0, bins - 1)
        count = np.bincount(place, minlength=bins)
        total = np.bincount(place, weights=values[row, known], minlength=bins)
        means[row] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return next_known(means)
