"""Reported slowness that lasts: one GPU, everybody, from the start or from a step on, and what only wall times show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from inputs import Report, job_series, wall_times
from truth import answer

from starprof.analysis.synthetic import Slow, SyntheticRun, Trouble
from starprof.model.events import HOOK_NOTE
from starprof.model.rundata import RunData


def one_slow_gpu_of_384() -> RunData:
    """One GPU in 48 nodes computes a little longer from a step on; what everybody sees is a 5.7 % longer step."""
    slow = Trouble((137,), {"forward": 1_350.0, "backward": 2_500.0}, start=200)
    return SyntheticRun(384, 400, nodes=48, cv=0.01, spread=0.003, faults=(slow,), gpus=True, rate_hz=0.5).data()


def the_same_as_a_log_shows_it() -> RunData:
    """Only the job's own step times: 105.16, 105.17, 106.25, 110.17, 111.14 s where it begins."""
    rng = np.random.default_rng(1)
    seconds = np.where(np.arange(120) < 60, 105.16, 111.14) * (1 + 0.004 * rng.standard_normal(120))
    seconds[58:63] = 105.16, 105.17, 106.25, 110.17, 111.14
    return job_series(seconds, 42_722)


def everything_ten_times_slower() -> RunData:
    """A wrong launcher option slows all ranks from the first step on."""
    slow = {name: 10 * us for name, us in SyntheticRun().phases_us.items()}
    return SyntheticRun(16, 300, phases_us=slow, counters=False).data()


def all_four_change_level_together() -> RunData:
    """0.9 s a step become 3.3 s on all ranks alike, in no phase more than in the others."""
    phases = {"forward": 300_000.0, "backward": 580_000.0, "optimizer": 20_000.0}
    slower = tuple(Slow(name, None, factor=3.6, start=150) for name in phases)
    return SyntheticRun(4, 300, phases_us=phases, faults=slower, counters=False).data()


def slow_epochs_between_fast_ones() -> RunData:
    """The level switches in the middle of epochs, there and back, on all four ranks."""
    stretches = ((60, 130), (190, 240), (310, 400))
    slower = tuple(Slow(n, None, factor=3.0, start=a, end=b) for n in ("forward", "backward") for a, b in stretches)
    return SyntheticRun(4, 400, faults=slower, counters=False).data()


def four_changing_ranks_as_wall_times_show_them() -> RunData:
    """The same where only whole steps were timed."""
    return wall_times(all_four_change_level_together())


def slow_inside_backward() -> RunData:
    """200 ms more inside one rank's backward pass: all ranks' backward passes last equally long."""
    return SyntheticRun(4, 200, faults=(Slow("backward", (1,), us=200_000.0),), counters=False).data()


def slow_inside_backward_as_wall_times_show_it() -> RunData:
    """The same job where only whole steps were timed: it can't be told."""
    return wall_times(slow_inside_backward())


def a_rank_that_was_never_recorded() -> RunData:
    """Three of four ranks left records."""
    return SyntheticRun(4, 300, missing_ranks=(2,), counters=False).data()


def a_hook_that_was_never_called() -> RunData:
    """All ranks are known, none left a record."""
    return SyntheticRun(4, 300, missing_ranks=(0, 1, 2, 3), counters=False).data()


def a_loop_without_an_optimizer_step() -> RunData:
    """The hook was active in a plain loop and saw no end of a step."""
    data = SyntheticRun(2, 300, missing_ranks=(0, 1), counters=False).data()
    noted = data.events.reindex(range(2)).assign(kind=HOOK_NOTE, rank=[0, 1], detail="no step boundary seen")
    return replace(data, events=noted)


def chronic_and_one_off() -> RunData:
    """Rank 7 of 64 is 8 % slower in every step, rank 40 five times slower in one."""
    own_us = sum(SyntheticRun().phases_us.values())
    faults = (Slow("forward", (7,), us=0.08 * own_us), Slow("forward", (40,), us=4 * own_us, start=111, end=112))
    return SyntheticRun(64, 400, cv=0.02, spread=0.005, faults=faults, counters=False).data()


def a_sleep_on_one_rank() -> RunData:
    """One of four ranks sleeps in its loop in every step."""
    return SyntheticRun(4, 300, faults=(Slow("unaccounted", (2,), us=25_000.0),)).data()


def work_on_rank_0_in_every_step() -> RunData:
    """Rank 0 logs in every step, the others wait in a barrier."""
    return SyntheticRun(4, 300, faults=(Slow("unaccounted", (0,), us=16_000.0),)).data()


REPORTS: tuple[Report, ...] = (
    (
        one_slow_gpu_of_384,
        answer(
            "straggler",
            ranks=(137,),
            causes=("gpu-compute",),
            kinds=("chronic",),
            onset=200,
            says=("waited", "reduction itself takes", "20 %"),
        ),
    ),
    (
        the_same_as_a_log_shows_it,
        answer(
            "inconclusive",
            causes=("unknown",),
            kinds=("chronic",),
            onset=42_782,
            says=("5.6 %|5.7 %", "each rank's own time", "restart without"),
        ),
    ),
    (everything_ten_times_slower, answer("none", "uniform", says=("configuration", "run that was healthy"))),
    (
        all_four_change_level_together,
        answer("uniform", causes=("unknown",), onset=150, says=("counters were not collected", "no rank|no straggler")),
    ),
    (slow_epochs_between_fast_ones, answer("uniform", onsets=(60, 190, 310))),
    (four_changing_ranks_as_wall_times_show_them, answer("inconclusive", says=("record",))),
    (slow_inside_backward, answer("straggler", ranks=(1,), causes=("backward-compute",), says=("arrived last",))),
    (slow_inside_backward_as_wall_times_show_it, answer("inconclusive", says=("waiting", "record"))),
    (a_rank_that_was_never_recorded, answer("inconclusive", says=("no samples from rank 2",), never=("nan",))),
    (a_hook_that_was_never_called, answer("inconclusive", says=("no step records", "hook"), never=("nan",))),
    (a_loop_without_an_optimizer_step, answer("inconclusive", says=("no step boundary seen", "ranks 0 and 1"))),
    (
        chronic_and_one_off,
        answer("straggler", ranks=(7,), kinds=("chronic",), onset=0, onsets=(0, 111), says=("rank 40", "no pattern")),
    ),
    (
        a_sleep_on_one_rank,
        answer("straggler", ranks=(2,), causes=("user-code",), onset=0, never=("rank == 0",)),
    ),
    (work_on_rank_0_in_every_step, answer("straggler", ranks=(0,), causes=("user-code",), says=("rank == 0",))),
)
