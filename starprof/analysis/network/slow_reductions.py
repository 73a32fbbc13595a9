"""Reductions that take longer: since when, where, why, and whether a late rank is behind it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from starprof.analysis.causes.base import longest_run
from starprof.analysis.findings import Context
from starprof.analysis.network.links import Windows
from starprof.analysis.network.location import locate
from starprof.analysis.own_time import OwnTime
from starprof.analysis.shared import slow_from_the_start, transfer_rises
from starprof.analysis.slowness import Slowness
from starprof.analysis.wire import WireCase, explain_wire, partly_explained

COLLATERAL_SLACK = 10
HIGH_TRANSFER_SHARE = 0.2
SLOWER_RATE = 0.3
QUICK_STEPS = 5.0
"""Percentile of the transfers that counts as what the reduction takes when nothing disturbs it."""


def slow_reductions(context: Context) -> list[Slowness]:
    """Rises of the transfer, or a transfer that was slow from the start, with place and cause of the slow link."""
    own, settings = context.own, context.settings
    result = []
    for rise in transfer_rises(own, settings):
        past = longest_run(~rise.steps)
        windows = Windows(own, (rise.start, rise.end), past if past[1] - past[0] >= settings.min_slow_steps else None)
        place = locate(windows, context.counters)
        case = WireCase(context.own, context.counters, windows, rise.before_us, rise.after_us, place)
        wire = explain_wire(case, settings)
        if wire is None:
            place = replace(place, partly=partly_explained(case))
        result.append(replace(rise, place=place, wire=wire))
    if result or max(np.median(own.transfer), np.mean(own.transfer)) < HIGH_TRANSFER_SHARE * own.healthy_step_us:
        return result
    return _always_slow(context)


def _always_slow(context: Context) -> list[Slowness]:
    """A transfer that takes much of the step in the whole run: only what counters explain is a finding."""
    own = context.own
    windows = Windows(own, (0, own.shape[1]), None)
    place = locate(windows, context.counters)
    typical = float(np.median(own.transfer))
    case = WireCase(own, context.counters, windows, float("nan"), typical, place)
    wire = explain_wire(case, context.settings)
    if wire is not None:
        # Without a known speed ratio at least what the quickest steps show could be had.
        quick = float(np.percentile(own.transfer, QUICK_STEPS))
        left = own.transfer * wire.remaining if wire.remaining == wire.remaining else np.minimum(own.transfer, quick)
        return [replace(slow_from_the_start(own, own.transfer - left), place=place, wire=wire)]
    if len(place.places) != 1 or place.slow is None or place.fast is None:
        return []
    ratio = place.slow.bytes_per_s / place.fast.bytes_per_s
    if not ratio <= SLOWER_RATE:
        return []
    # What the same transfer would take at the rate that the other links show.
    return [replace(slow_from_the_start(own, own.transfer * (1.0 - ratio)), place=place)]


def collateral(ranks: list[Slowness], network: list[Slowness]) -> tuple[list[Slowness], list[Slowness]]:
    """A slower reduction that begins with a rank's slowness, and that no counter explains, is part of it."""
    left = []
    for rise in network:
        near = [i for i, s in enumerate(ranks) if s.blame and abs(s.start - rise.start) <= COLLATERAL_SLACK]
        if explained(rise) or not near:
            left.append(rise)
            continue
        culprit = ranks[near[0]]
        ranks[near[0]] = replace(culprit, reduction=replace(culprit.reduction, transfer=rise.reduction.transfer))
    return ranks, left


def explained(rise: Slowness) -> bool:
    """Counters show where or why the reduction got slow."""
    place = rise.place
    return rise.wire is not None or (place is not None and bool(place.places or place.switches or place.all_alike))


def rise_share(own: OwnTime, rise: Slowness) -> float:
    """The rise as a share of the healthy step."""
    return (rise.after_us - rise.before_us) / own.healthy_step_us
