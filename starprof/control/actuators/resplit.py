"""Divides the samples of a step by the ranks' speed (LB-BSP); the mean over all samples stays exact.

Needs a loop that draws its batches by `starprof.balanced`, which weighs losses by their samples.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from starprof.control.actuators import orders
from starprof.control.actuators.base import Actuator, Request, ordered
from starprof.control.actuators.change import Change, RefusedError
from starprof.control.actuators.measure import Watch
from starprof.errors import UsageError
from starprof.sync.policies.lb_bsp import split

FEWEST_STEPS = 5
LOOK_S = 30.0


def plan(request: Request) -> list[Change]:
    """See `base.Actuator`; the value is `auto`, or `RANK=SAMPLES,...` for all ranks."""
    if request.ranks is not None:
        raise UsageError("a division is of all ranks: leave --rank away")
    parts = by_speed(request) if request.value == "auto" else _parts(request.value)
    told = ", ".join(f"{rank}: {samples}" for rank, samples in sorted(parts.items()))
    return ordered(
        request, "resplit", orders.SPLIT, {str(r): n for r, n in parts.items()}, f"samples of each rank {told}"
    )


def by_speed(request: Request) -> dict[int, int]:
    """As many samples for each as it works off in the same time, by its steps of the next moments.

    Raises:
        RefusedError: too few steps were made, or the samples of a step are not known.
    """
    watch = Watch(request.job)
    try:
        deadline_s = time.monotonic() + LOOK_S
        while time.monotonic() < deadline_s and min(watch.steps().values(), default=0) < FEWEST_STEPS:
            time.sleep(0.1)
        seen = watch.end()
    finally:
        watch.close()
    return parts_by_speed(seen.own_s, seen.samples)


def parts_by_speed(own_s: Mapping[int, float], samples: Mapping[int, float]) -> dict[int, int]:
    """Parts of the same total in proportion to samples per second of own work.

    Raises:
        RefusedError: somebody's speed is not known.
    """
    unknown = [rank for rank in own_s if own_s[rank] <= 0 or samples.get(rank, 0.0) <= 0]
    if unknown or len(own_s) < 2:
        raise RefusedError("the ranks' speeds are not known: too few steps, or the samples of a step are not seen")
    speed = {rank: samples[rank] / own_s[rank] for rank in own_s}
    return split(speed, max(round(sum(samples[rank] for rank in own_s)), len(own_s)))


def _parts(text: str) -> dict[int, int]:
    parts = {}
    for word in text.split(","):
        rank, _, samples = word.partition("=")
        if not rank.strip().isdecimal() or not samples.strip().isdecimal() or int(samples) < 1:
            raise UsageError(f"a division is written as 0=24,1=40 or auto, not {text!r}")
        parts[int(rank)] = int(samples)
    return parts


ACTUATOR = Actuator(
    "resplit", "auto|RANK=N,...", "divides samples by the ranks' speed", "control and starprof.balanced", plan
)
