"""The rules of `detect` for windows that end now: late against the peers, or against the rank's own past."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.detect import MIN_PAST_STEPS, least_steps
from starprof.analysis.live.ring import Ring
from starprof.analysis.noise import Noise
from starprof.analysis.settings import Settings
from starprof.analysis.statistics import normal_upper_quantile

SUDDEN_STEPS = 3
WIDTHS = np.array([10, 14, 20, 24, 28, 34, 48, 68, 96, 136, 192, 256])
PIECES = 4
STAYS_LATE = 0.3
NOT_ONE_PIECE = 0.75
LEAST_RECORDED = 0.5


@dataclass(frozen=True)
class Alarms:
    """What a look at the newest step found, per rank, shape (R,).

    Attributes:
        late: late in each of the last few steps, which a one-off still may be, or over a longer window.
        past: lateness that the rank had before, 0 or more.
        z: the excess in standard errors, in the window where it is surest.
    """

    late: Bools
    past: Floats
    z: Floats


@dataclass(frozen=True)
class Window:
    """Windows of several widths that end now, shape (W, R) each: mean lateness, records, and the pieces' means.

    Attributes:
        mean: mean lateness.
        recorded: steps with a record.
        pieces: means of the equal parts of each window, shape (PIECES, W, R).
    """

    mean: Floats
    recorded: Floats
    pieces: Floats

    def late_share(self, base: Floats) -> Floats:
        """Share of the pieces in which a rank is late by a good part of the whole window's excess, shape (W, R)."""
        share: Floats = (self.pieces - base >= STAYS_LATE * (self.mean - base)).mean(axis=0)
        return share

    def without_latest_piece(self) -> Floats:
        """Mean of the pieces but for the latest one, shape (W, R): one long stall makes no lasting lateness."""
        rest: Floats = (self.pieces.sum(axis=0) - self.pieces.max(axis=0)) / (PIECES - 1)
        return rest


def windows(ring: Ring, widths: Ints, rows: Ints) -> Window:
    """Windows of these widths, shape (W,), of some ranks."""
    edges = [np.rint(widths * (i / PIECES)).astype(np.int64) for i in range(PIECES + 1)]
    sums = [ring.sums(edge, rows) for edge in edges]
    pieces = [
        (far - near) / np.maximum(far_seen - near_seen, 1.0) for (near, near_seen), (far, far_seen) in pairwise(sums)
    ]
    total, recorded = sums[-1]
    return Window(total / np.maximum(recorded, 1.0), recorded, np.array(pieces))


@lru_cache
def live_z(ranks: int, settings: Settings) -> float:
    """Standard errors that normal noise exceeds nowhere in a job of `live_horizon_steps`, but for the agreed rate.

    Every step is a look. Windows of other widths that end in the same step hold the same noise and count for no more.
    """
    return normal_upper_quantile(settings.live_false_alarm_rate / (ranks * settings.live_horizon_steps))


def look(ring: Ring, since: Ints, noise: Noise, shape: Noise, settings: Settings) -> Alarms:
    """Judge the windows that end with the newest step.

    Args:
        ring: the last steps.
        since: per rank how many of the newest steps belong to its present state, shape (R,).
        noise: see `measure_noise`, of the same ranks.
        shape: noise whose skewness and tails are as measured. Means over many steps need a margin for what a short look
            may have missed; several steps running at a spike's height are far rarer than their mean.
        settings: thresholds.
    """
    alarms = Alarms(np.zeros(len(since), bool), np.zeros(len(since)), np.zeros(len(since)))
    widths = WIDTHS[(least_steps(noise, settings) <= WIDTHS) & (len(ring) >= WIDTHS)]
    rows = _suspects_now(ring, since, noise, widths, settings)
    if len(rows) == 0:
        return alarms
    normal = live_z(len(since), settings)
    since, noise = since[rows], replace(noise, sigma=noise.sigma[rows])
    spiky = replace(noise, skew=shape.skew, tails=shape.tails)
    found, past, z = _sudden(ring, rows, since, spiky, normal, settings)
    if len(widths):
        late, before, errors = _lasting(ring, rows, since, noise, normal, widths, settings)
        errors = np.where(late, errors, 0.0)
        surest = np.argmax(errors, axis=0)[None, :]
        best = np.take_along_axis(errors, surest, axis=0)[0]
        past = np.where(best > z, np.take_along_axis(before, surest, axis=0)[0], past)
        found, z = found | late.any(axis=0), np.maximum(z, best)
    alarms.late[rows], alarms.past[rows], alarms.z[rows] = found, past, z
    return alarms


def first_suspect(ring: Ring, since: Ints, new: Floats, noise: Noise, settings: Settings) -> int:
    """How many of some new steps can be taken in before one that any rule may find a rank late with.

    All rules ask at least for what is looked for here, which costs little for many ranks and steps.

    Args:
        ring: the steps before them.
        since: see `look`, before the new steps.
        new: their lateness, NaN where not recorded, shape (R, N).
        noise: see `measure_noise`, of the same ranks.
        settings: thresholds.
    """
    suspects = np.flatnonzero(_suspects(ring, since, new, noise, settings).any(axis=1))
    return int(suspects[0]) if len(suspects) else new.shape[1]


def _suspects_now(ring: Ring, since: Ints, noise: Noise, widths: Ints, settings: Settings) -> Ints:
    """Ranks that any rule may find late with the newest step."""
    late: Bools = ring.newest(SUDDEN_STEPS).min(axis=0) >= _least_spike(noise, settings)
    if len(widths):
        reach = np.minimum(since, len(ring))
        whole = ring.sums_each(reach, np.arange(len(since)))
        late |= _may_be_late(ring.sums(widths), whole, reach, widths[:, None], noise, settings).any(axis=0)
    return np.flatnonzero(late)


def _suspects(ring: Ring, since: Ints, new: Floats, noise: Noise, settings: Settings) -> Bools:
    """The same with each of some new steps, shape (N, R)."""
    count, back = new.shape[1], min(len(ring), int(WIDTHS[-1]))
    total, recorded = ring.totals(back, new)
    late = np.zeros((count, len(new)), bool)
    high = np.diff(total[max(0, back - SUDDEN_STEPS + 1) :], axis=0) >= _least_spike(noise, settings)
    if len(high) >= SUDDEN_STEPS:
        late[count + SUDDEN_STEPS - 1 - len(high) :] = high[2:] & high[1:-1] & high[:-2]
    ahead = np.arange(1, count + 1)[:, None]
    reach = np.minimum(since + ahead, np.minimum(len(ring) + ahead, ring.size))
    start, start_seen = ring.edge_totals(ring.pushed + ahead - reach)
    whole = (total[back + 1 :] - start, recorded[back + 1 :] - start_seen)
    for width in WIDTHS[least_steps(noise, settings) <= WIDTHS].tolist():
        skipped = max(0, width - back - 1)
        if skipped >= count:
            break
        end, begin = slice(back + 1 + skipped, None), slice(back + 1 + skipped - width, back + 1 + count - width)
        inside = (total[end] - total[begin], recorded[end] - recorded[begin])
        rest = (whole[0][skipped:], whole[1][skipped:])
        late[skipped:] |= _may_be_late(inside, rest, reach[skipped:], np.array(width), noise, settings)
    return late


def _least_spike(noise: Noise, settings: Settings) -> Floats:
    """Lateness in each of the last steps that `_sudden` asks for at least, shape (R,)."""
    normal = live_z(len(noise.sigma), settings)
    return np.maximum(normal * np.sqrt(variance(noise, np.array(SUDDEN_STEPS))), settings.min_spike)


def _may_be_late(
    inside: tuple[Floats, Floats],
    whole: tuple[Floats, Floats],
    reach: Ints,
    width: Ints,
    noise: Noise,
    settings: Settings,
) -> Bools:
    """Whether windows reach the bars of `_lasting` but for their margins; sums and records, any shape (..., R)."""
    normal = live_z(len(noise.sigma), settings)
    mean = inside[0] / np.maximum(inside[1], 1.0)
    noisy = variance(noise, width)
    against_peers: Bools = mean >= np.maximum(np.sqrt(normal**2 * noisy + noise.spread_bar**2), settings.min_lateness)
    length = whole[1] - inside[1]
    past = np.maximum(whole[0] - inside[0], 0.0) / np.maximum(length, 1.0)
    rose = (mean - past >= np.maximum(normal * np.sqrt(noisy), settings.min_lateness)) & (length >= MIN_PAST_STEPS)
    return against_peers | (rose & (reach > width))


def variance(noise: Noise, steps: Floats | Ints) -> Floats:
    """Variance of each rank's mean over some steps, shape (W, R), for steps of shape (W, 1) or (W, R).

    Noise with a memory longer than the window is not averaged out.
    """
    share: Floats = noise.sigma**2 * np.minimum(1.0, noise.memory / np.maximum(steps, 1.0))
    return share


def _before(ring: Ring, rows: Ints, since: Ints, widths: Ints) -> tuple[Floats, Floats]:
    """Mean lateness of each rank's present state before the windows, and over how many records, shape (W, R)."""
    reach = np.minimum(since, len(ring))
    whole, records = ring.sums_each(reach, rows)
    inside, recorded = ring.sums(widths, rows)
    has_past = reach > widths[:, None]
    length = np.where(has_past, records - recorded, 0.0)
    return np.where(has_past, whole - inside, 0.0) / np.maximum(length, 1.0), length


def _sudden(
    ring: Ring, rows: Ints, since: Ints, noise: Noise, normal: float, settings: Settings
) -> tuple[Bools, Floats, Floats]:
    """Late by a spike's height in every one of the last few steps."""
    widths = np.array([SUDDEN_STEPS])
    other, length = _before(ring, rows, since, widths)
    _, recorded = ring.sums(widths, rows)
    past = np.maximum(other, 0.0)
    excess = ring.newest(SUDDEN_STEPS)[:, rows].min(axis=0) - past
    error = np.sqrt(variance(noise, widths[:, None]) + variance(noise, length))
    # Few steps tell little about a tail: never less than the whole margin of the offline rules.
    margin = np.maximum(noise.margin(normal, float(SUDDEN_STEPS), settings.live_margin_z), settings.noise_margin_z)
    bar = np.maximum(settings.min_spike, (normal + margin) * error)
    found = (excess >= bar) & (length >= MIN_PAST_STEPS) & (recorded == SUDDEN_STEPS)
    return found[0], past[0], np.where(found, excess / error, 0.0)[0]


def _lasting(
    ring: Ring, rows: Ints, since: Ints, noise: Noise, normal: float, widths: Ints, settings: Settings
) -> tuple[Bools, Floats, Floats]:
    """The two rules of `detect.candidates`, and that the lateness is spread over the window, shape (W, R)."""
    window = windows(ring, widths, rows)
    other, length = _before(ring, rows, since, widths)
    past = np.where(length >= MIN_PAST_STEPS, np.maximum(other, 0.0), 0.0)
    wide = widths[:, None]
    noisy = variance(noise, wide)
    z = normal + noise.margin(normal, wide.astype(np.float64), settings.live_margin_z)
    peers_bar = np.maximum(np.sqrt(z**2 * noisy + noise.spread_bar**2), settings.min_lateness)
    against_peers = window.mean >= peers_bar
    both = 1.0 / wide + 1.0 / np.maximum(length, 1.0)
    error = np.sqrt(noisy + variance(noise, length))
    past_bar = np.maximum(
        (normal + noise.margin(normal, 1.0 / both, settings.live_margin_z)) * error, settings.min_lateness
    )
    against_past = (window.mean - past >= past_bar) & (length >= MIN_PAST_STEPS)
    against_past &= window.mean >= settings.min_lateness
    base = np.where(against_past, past, 0.0)
    found = (against_peers | against_past) & (since >= wide) & (window.recorded >= LEAST_RECORDED * wide)
    if found.any():
        found &= window.late_share(base) >= settings.min_late_windows
        bar = np.where(against_past, past_bar, peers_bar)
        found &= window.without_latest_piece() - base >= NOT_ONE_PIECE * bar
    return found, base, (window.mean - base) / np.sqrt(noisy)
