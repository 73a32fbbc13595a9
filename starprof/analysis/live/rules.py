"""The rules of `detect` for windows that end now: late against the peers, or against the rank's own past."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy.stats import norm

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.detect import MIN_PAST_STEPS, least_steps
from starprof.analysis.noise import Noise
from starprof.analysis.live.ring import Ring
from starprof.analysis.settings import Settings

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
    """Windows of several widths that end now, shape (R, W) each: mean lateness, records, and the pieces' means.

    Attributes:
        mean: mean lateness.
        recorded: steps with a record.
        pieces: means of the equal parts of each window, shape (PIECES, R, W).
    """

    mean: Floats
    recorded: Floats
    pieces: Floats

    def late_share(self, base: Floats) -> Floats:
        """Share of the pieces in which a rank is late by a good part of the whole window's excess, shape (R, W)."""
        share: Floats = (self.pieces - base >= STAYS_LATE * (self.mean - base)).mean(axis=0)
        return share

    def without_latest_piece(self) -> Floats:
        """Mean of the pieces but for the latest one, shape (R, W): one long stall makes no lasting lateness."""
        rest: Floats = (self.pieces.sum(axis=0) - self.pieces.max(axis=0)) / (PIECES - 1)
        return rest


def windows(ring: Ring, widths: Ints) -> Window:
    """Windows of these widths, shape (W,) or per rank (R, W)."""
    edges = [np.rint(widths * (i / PIECES)).astype(np.int64) for i in range(PIECES + 1)]
    sums = [ring.sums(edge) for edge in edges]
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
    return float(norm.isf(settings.live_false_alarm_rate / (ranks * settings.live_horizon_steps)))


def look(ring: Ring, since: Ints, noise: Noise, settings: Settings) -> Alarms:
    """Judge the windows that end with the newest step.

    Args:
        ring: the last steps.
        since: per rank how many of the newest steps belong to its present state, shape (R,).
        noise: see `measure_noise`, of the same ranks.
        settings: thresholds.
    """
    normal = live_z(len(since), settings)
    found, past, z = _sudden(ring, since, noise, normal, settings)
    widths = WIDTHS[(least_steps(noise, settings) <= WIDTHS) & (len(ring) >= WIDTHS)]
    if len(widths):
        late, before, errors = _lasting(ring, since, noise, normal, widths, settings)
        errors = np.where(late, errors, 0.0)
        surest = np.argmax(errors, axis=1)[:, None]
        best = np.take_along_axis(errors, surest, axis=1)[:, 0]
        past = np.where(best > z, np.take_along_axis(before, surest, axis=1)[:, 0], past)
        found, z = found | late.any(axis=1), np.maximum(z, best)
    return Alarms(found, past, z)


def variance(noise: Noise, steps: Floats | Ints) -> Floats:
    """Variance of each rank's mean over some steps, shape (R, W), for steps of shape (W,) or (R, W).

    Noise with a memory longer than the window is not averaged out.
    """
    share: Floats = noise.sigma[:, None] ** 2 * np.minimum(1.0, noise.memory / np.maximum(steps, 1.0))
    return share


def _before(ring: Ring, since: Ints, widths: Ints) -> tuple[Floats, Floats]:
    """Mean lateness of each rank's present state before the windows, and over how many records, shape (R, W)."""
    reach = np.maximum(np.minimum(since, len(ring))[:, None], widths)
    whole, records = ring.sums(reach)
    inside, recorded = ring.sums(widths)
    length = records - recorded
    return (whole - inside) / np.maximum(length, 1.0), length


def _sudden(ring: Ring, since: Ints, noise: Noise, normal: float, settings: Settings) -> tuple[Bools, Floats, Floats]:
    """Late by a spike's height in every one of the last few steps."""
    widths = np.array([SUDDEN_STEPS])
    other, length = _before(ring, since, widths)
    _, recorded = ring.sums(widths)
    past = np.maximum(other, 0.0)
    excess = ring.newest(SUDDEN_STEPS).min(axis=1, keepdims=True) - past
    error = np.sqrt(variance(noise, widths) + variance(noise, length))
    # Few steps tell little about a tail: never less than the whole margin of the offline rules.
    margin = np.maximum(noise.margin(normal, float(SUDDEN_STEPS), settings.live_margin_z), settings.noise_margin_z)
    bar = np.maximum(settings.min_spike, (normal + margin) * error)
    found = (excess >= bar) & (length >= MIN_PAST_STEPS) & (recorded == SUDDEN_STEPS)
    return found[:, 0], past[:, 0], np.where(found, excess / error, 0.0)[:, 0]


def _lasting(
    ring: Ring, since: Ints, noise: Noise, normal: float, widths: Ints, settings: Settings
) -> tuple[Bools, Floats, Floats]:
    """The two rules of `detect.candidates`, and that the lateness is spread over the window, shape (R, W)."""
    window = windows(ring, widths)
    other, length = _before(ring, since, widths)
    past = np.where(length >= MIN_PAST_STEPS, np.maximum(other, 0.0), 0.0)
    noisy = variance(noise, widths)
    z = normal + noise.margin(normal, widths.astype(np.float64), settings.live_margin_z)
    peers_bar = np.maximum(np.sqrt(z**2 * noisy + noise.spread_bar**2), settings.min_lateness)
    against_peers = window.mean >= peers_bar
    both = 1.0 / widths + 1.0 / np.maximum(length, 1.0)
    error = np.sqrt(noisy + variance(noise, length))
    past_bar = np.maximum(
        (normal + noise.margin(normal, 1.0 / both, settings.live_margin_z)) * error, settings.min_lateness
    )
    against_past = (window.mean - past >= past_bar) & (length >= MIN_PAST_STEPS)
    against_past &= window.mean >= settings.min_lateness
    base = np.where(against_past, past, 0.0)
    found = (against_peers | against_past) & (since[:, None] >= widths) & (window.recorded >= LEAST_RECORDED * widths)
    if found.any():
        found &= window.late_share(base) >= settings.min_late_windows
        bar = np.where(against_past, past_bar, peers_bar)
        found &= window.without_latest_piece() - base >= NOT_ONE_PIECE * bar
    return found, base, (window.mean - base) / np.sqrt(noisy)
