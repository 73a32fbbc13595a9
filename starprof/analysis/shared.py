"""Slowness of everybody at once: heavier work on all ranks, or a slower network."""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.comparison import Comparison
from starprof.analysis.cost import Reduction
from starprof.analysis.level import Rise, rises
from starprof.analysis.own_time import OwnTime
from starprof.analysis.settings import Settings
from starprof.analysis.slowness import Slowness

ALL_SHARE = 0.9
MIN_OWN_RISE = 0.5
TRANSFER_FACTOR = 1.5
MIN_PARTING = 0.25


def uniform_slowness(comparison: Comparison, settings: Settings) -> list[Slowness]:
    """Everybody's own time rises together; when a minority stays fast, the others are named."""
    own = comparison.own
    if own.shape[0] < 2:
        return []
    centre = np.nanmedian(own.work, axis=0)
    risen = rises(centre, own.healthy_step_us, settings)
    found = [(rise, _uniform(own, rise, _others(own.shape[1], rise, risen))) for rise in risen]
    # Ranks are named by their own past only when they part from the others clearly.
    apart = MIN_PARTING * own.healthy_step_us
    return [s for rise, s in found if not s.blame or rise.level - rise.before >= apart]


def slower_alone(own: OwnTime, settings: Settings) -> list[Slowness]:
    """A job of one rank against its own past: there is nobody else to compare it with."""
    work = np.nan_to_num(own.work[0], nan=float(np.nanmedian(own.work[0])))
    risen = rises(work, own.healthy_step_us, settings)
    return [_uniform(own, rise, _others(own.shape[1], rise, risen)) for rise in risen]


def _others(steps: int, rise: Rise, found: list[Rise]) -> Bools:
    """Steps of the other rises: they are no past to compare with."""
    return np.asarray(np.any([_mask(steps, other) & (other is not rise) for other in found], axis=0))


def _uniform(own: OwnTime, rise: Rise, elsewhere: Bools) -> Slowness:
    inside = _mask(own.shape[1], rise)
    factor = rise.before / rise.level
    risen = _risen(own, inside, ~inside & ~elsewhere, rise)
    rows = np.flatnonzero(risen)
    gone = {int(row): np.where(inside, np.nan_to_num(own.work[row]) * (1.0 - factor), 0.0) for row in rows}
    everybody = risen.mean() >= ALL_SHARE
    until_end = rise.end == own.shape[1]
    return Slowness(
        kind="uniform" if everybody else "chronic" if until_end else "transient",
        rows=tuple(int(r) for r in rows),
        start=rise.start,
        end=rise.end,
        onset=rise.onset,
        steps=inside,
        reduction=Reduction(gone),
        source="uniform" if everybody else "rank",
        blame=not everybody,
        z=rise.z,
        before_us=rise.before,
        after_us=rise.level,
        elsewhere=elsewhere if elsewhere.any() else None,
    )


def _risen(own: OwnTime, inside: Bools, outside: Bools, rise: Rise) -> Bools:
    """Ranks whose own work rose by a good part of what the median rank's did."""
    before = np.nanmedian(own.work[:, outside], axis=1)
    during = np.nanmedian(own.work[:, inside], axis=1)
    up: Bools = during - before >= MIN_OWN_RISE * (rise.level - rise.before)
    return up


def transfer_rises(own: OwnTime, settings: Settings) -> list[Slowness]:
    """The reduction itself takes longer: the network, or extra communication; nobody is late."""
    transfer = np.nan_to_num(own.transfer, nan=0.0)
    found = []
    for rise in rises(transfer, own.healthy_step_us, settings):
        if rise.level < TRANSFER_FACTOR * max(rise.before, 1.0):
            continue
        inside = _mask(own.shape[1], rise)
        gone = np.where(inside, np.maximum(0.0, transfer - rise.before), 0.0)
        until_end = rise.end == own.shape[1]
        found.append(
            Slowness(
                kind="chronic" if until_end or rise.start == 0 else "transient",
                rows=(),
                start=rise.start,
                end=rise.end,
                onset=rise.onset,
                steps=inside,
                reduction=Reduction(transfer=gone),
                source="network",
                blame=False,
                z=rise.z,
                before_us=rise.before,
                after_us=rise.level,
            )
        )
    return found


def slow_from_the_start(own: OwnTime, excess_us: Floats) -> Slowness:
    """A transfer that was slow in the whole run, by `excess_us`, shape (S,), as the sockets show."""
    return Slowness(
        kind="chronic",
        rows=(),
        start=0,
        end=own.shape[1],
        onset=(0, 0),
        steps=np.ones(own.shape[1], bool),
        reduction=Reduction(transfer=excess_us),
        source="network",
        blame=False,
        before_us=float(np.mean(own.transfer - excess_us)),
        after_us=float(np.mean(own.transfer)),
    )


def _mask(steps: int, rise: Rise) -> Bools:
    inside = np.zeros(steps, bool)
    inside[rise.start : rise.end] = True
    return inside
