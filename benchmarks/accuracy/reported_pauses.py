"""Reported pauses: collectors, evaluations, checkpoints, compilation; who waits meanwhile, and for how long yet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from inputs import Report, with_samples
from truth import answer

from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.model.rundata import RunData

SAME_STEP = ("in the same step", "does not make one shorter|no pause shorter|does not shorten")


def collector_pauses_on_every_rank() -> RunData:
    """Python's collector pauses 1.4 s on one rank or another, at different steps."""
    return SyntheticRun(8, 400, faults=(Slow("gc", None, us=1.4e6, share=0.05, rotating=True),), counters=False).data()


def the_same_without_a_hook_for_it() -> RunData:
    """The pauses fall into whatever the process was doing."""
    rng = np.random.default_rng(15)
    phases = ("forward", "backward", "optimizer", "unaccounted")
    steps = rng.choice(np.arange(20, 400), 20, replace=False)
    faults = tuple(
        Slow(phases[i % 4], (int(rng.integers(8)),), us=1.4e6, start=int(s), end=int(s) + 1)
        for i, s in enumerate(sorted(steps))
    )
    return SyntheticRun(8, 400, faults=faults, counters=False).data()


def evaluation_on_rank_0_only() -> RunData:
    """Rank 0 evaluates every 50 steps, the others wait."""
    return SyntheticRun(4, 400, faults=(Slow("eval", (0,), us=3e6, every=50, start=49),), counters=False).data()


def evaluation_near_the_limit() -> RunData:
    """Rank 0 evaluates for up to 3,590 s; after 3,600 s of waiting the watchdog would end the job."""
    phases = {"forward": 1.2e6, "backward": 2.4e6, "optimizer": 1e5}
    evals = tuple(
        Slow("eval", (0,), us=s * 1e6, start=k, end=k + 1) for k, s in ((99, 3_420), (199, 3_505), (299, 3_590))
    )
    run = SyntheticRun(4, 350, phases_us=phases, faults=evals, counters=False).data()
    return replace(run, ranks=tuple(replace(r, detail={**r.detail, "timeout_s": 3600.0}) for r in run.ranks))


def evaluation_far_from_the_limit() -> RunData:
    """The same job whose evaluations take a tenth of that."""
    phases = {"forward": 1.2e6, "backward": 2.4e6, "optimizer": 1e5}
    run = SyntheticRun(
        4, 350, phases_us=phases, faults=(Slow("eval", (0,), us=359e6, every=100, start=99),), counters=False
    ).data()
    return replace(run, ranks=tuple(replace(r, detail={**r.detail, "timeout_s": 3600.0}) for r in run.ranks))


def checkpoint_on_rank_0() -> RunData:
    """Rank 0 saves every 10 steps."""
    return SyntheticRun(8, 400, faults=(Slow("checkpoint", (0,), us=0.8e6, every=10, start=9),), counters=False).data()


def a_save_that_only_its_bytes_show() -> RunData:
    """Every 20 steps rank 0 is late outside all phases, and its process writes 3 GB meanwhile."""
    data = SyntheticRun(8, 400, faults=(Slow("unaccounted", (0,), us=2e6, every=20, start=19),)).data()
    samples = data.samples["process_sample"].copy()
    mine = samples["rank"] == 0
    times = samples.loc[mine, "mono_ns"].to_numpy(float)
    starts = data.steps.start_mono_ns[0, 19::20].astype(float)
    written = np.sum([np.clip((times - s) / 2e9, 0.0, 1.0) * 3e9 for s in starts], axis=0)
    samples["write_bytes"] = 0.0
    samples.loc[mine, "write_bytes"] = written
    return with_samples(data, process_sample=samples)


def a_gather_before_the_save_near_the_limit() -> RunData:
    """Two gathers of the state take 109.5 and 118.3 s, then one 560 s; the watchdog waits 600 s."""
    phases = {"forward": 0.4e6, "backward": 0.8e6, "optimizer": 1e5}
    saves = tuple(
        Slow("checkpoint", (0,), us=s * 1e6, start=k, end=k + 1) for k, s in ((99, 109.5), (199, 118.3), (299, 560.0))
    )
    run = SyntheticRun(8, 330, phases_us=phases, faults=saves, counters=False).data()
    return replace(run, ranks=tuple(replace(r, detail={**r.detail, "timeout_s": 600.0}) for r in run.ranks))


def compilation_on_a_cold_rank() -> RunData:
    """One rank compiles for 90 s in the first step while the others wait."""
    return SyntheticRun(2, 300, faults=(Slow("compile", (1,), us=90e6, end=1),), counters=False).data()


def a_recompilation_of_one_rank_later() -> RunData:
    """The same, and the rank compiles once more for a new shape in step 180."""
    cold = Slow("compile", (1,), us=90e6, end=1)
    again = Slow("compile", (1,), us=25e6, start=180, end=181)
    return SyntheticRun(2, 300, faults=(cold, again), counters=False).data()


def descriptors_that_are_never_closed() -> RunData:
    """Steps get longer and longer while one process of the job keeps ever more files open."""
    data = SyntheticRun(4, 400, faults=(Slow("data_wait", None, us=60_000.0, trend=True, start=0),)).data()
    samples = data.samples["process_sample"].copy()
    seconds = (samples["mono_ns"] - samples["mono_ns"].min()) / 1e9
    samples["fds"] = 40.0
    samples.loc[samples["rank"] == 1, "fds"] = np.minimum(np.rint(60.0 + 5.0 * seconds), 250.0)
    return with_samples(data, process_sample=samples)


REPORTS: tuple[Report, ...] = (
    (
        collector_pauses_on_every_rank,
        answer("rotating", "none", causes=("gc",), kinds=("rotating",), says=("garbage collector", *SAME_STEP)),
    ),
    (
        the_same_without_a_hook_for_it,
        answer("rotating", causes=("host-pause",), says=("garbage collector", "was not recorded", *SAME_STEP)),
    ),
    (
        evaluation_on_rank_0_only,
        answer("none", causes=("evaluation",), kinds=("periodic",), says=("rank 0", "every 50 steps")),
    ),
    (
        evaluation_near_the_limit,
        answer(
            "none",
            causes=("evaluation",),
            says=("rank 0", "99.7 %", "3600 s", "limit", "makes nothing faster"),
        ),
    ),
    (evaluation_far_from_the_limit, answer("none", causes=("evaluation",), never=("limit",))),
    (
        checkpoint_on_rank_0,
        answer("none", causes=("checkpoint",), kinds=("periodic",), says=("every 10 steps",)),
    ),
    (
        a_save_that_only_its_bytes_show,
        answer("none", causes=("checkpoint",), kinds=("periodic",), says=("every 20 steps", "GB", "written|wrote")),
    ),
    (
        a_gather_before_the_save_near_the_limit,
        answer("none", causes=("checkpoint",), says=("93.3 %", "600 s", "makes nothing faster")),
    ),
    (
        compilation_on_a_cold_rank,
        answer("none", says=("rank 1", "compil", "90 s", "warm-up")),
    ),
    (
        a_recompilation_of_one_rank_later,
        answer("none", causes=("compile",), kinds=("one-off",), onset=180, says=("rank 1", "step 180", "25 s")),
    ),
    (
        descriptors_that_are_never_closed,
        answer("uniform", says=("rank 1", "file descriptors", "250", "candidate")),
    ),
)
