"""Reported stalls of the input and uneven work: whose data came late, which batches, which worker, and whose not."""

from __future__ import annotations

import numpy as np
from inputs import Floats, Report, job_series, noisy, waiting_for_each_other, with_columns
from truth import answer

from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.importers.base import WALL, run_of
from starprof.model.rundata import RankInfo, RunData

STALLED = {144: 332.5, 145: 332.2, 146: 195.5, 147: 312.0}


def _stall(hosts: dict[int, str] | None) -> RunData:
    """512 ranks; in step 173 four of them wait minutes for data, and all steps last equally long."""
    from inputs import HERE

    rng = np.random.default_rng(9)
    data = rng.uniform(0.01, 0.05, (512, 200))
    step = 48.6 * (1 + 0.004 * rng.standard_normal(200))
    step[173] = 381.0
    for rank, seconds in STALLED.items():
        data[rank, 173] = seconds
    whole = step + rng.uniform(-0.15, 0.15, (512, 200))
    names = sorted(set(hosts.values())) if hosts else []
    ranks = [RankInfo(r, names.index(hosts[r]) if hosts else -1, hosts[r] if hosts else "") for r in range(512)]
    columns = {"dur_us": whole * 1e6, "data_wait_us": data * 1e6}
    return run_of("generated", HERE, ranks=ranks, steps=range(200), columns=columns, timing=WALL)


def input_stall_in_logs_without_hosts() -> RunData:
    """Logs tell each rank's step and its waiting for data, not where it runs."""
    return _stall(None)


def input_stall_of_one_host() -> RunData:
    """The same where the records tell that these four are all of one machine."""
    return _stall({r: f"n{r // 4:03}" for r in range(512)})


def input_stall_of_neighbours_on_four_hosts() -> RunData:
    """The same where ranks are dealt to the machines in turn: the neighbours run on four of them."""
    return _stall({r: f"n{r % 64:02}" for r in range(512)})


def input_stall_that_the_hook_saw() -> RunData:
    """The same job recorded rank by rank."""
    stall = Slow("data_wait", (144, 145, 146, 147), us=330e6, start=173, end=174)
    phases = {"data_wait": 30_000.0, "forward": 16e6, "backward": 32e6, "optimizer": 400_000.0}
    return SyntheticRun(
        512, 300, nodes=64, phases_us=phases, cv=0.01, spread=0.002, faults=(stall,), counters=False
    ).data()


def _loading(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """(seconds of data wait, tokens) of 100 steps: large batches come now and then, four of them stall early on."""
    large = np.zeros(100, bool)
    large[[12, 21, 33, 46, 47, 50, 58, 71, 77, 84, 90, 96]] = True
    wait = np.where(large, rng.uniform(2.0, 3.0, 100), rng.uniform(0.7, 1.5, 100))
    for step, seconds in ((46, 47.4), (47, 39.9), (50, 22.0), (71, 19.6)):
        wait[step] = seconds
    return wait, np.where(large, 20_736.0, 5_184.0)


def stalls_of_one_kind_of_batch() -> RunData:
    """A single rank, 100 steps; now and then a batch of the larger kind takes tens of seconds to load."""
    wait, tokens = _loading(np.random.default_rng(11))
    compute = noisy((1, 100), 15e6, seed=3)
    run = waiting_for_each_other({"data_wait": wait[None] * 1e6, "forward": compute})
    return with_columns(run, tokens=tokens[None])


def the_same_in_a_log() -> RunData:
    """The log tells step, waiting for data, and tokens."""
    wait, tokens = _loading(np.random.default_rng(11))
    return job_series(15.0 + wait, data_s=wait, tokens=tokens)


def stalls_of_one_kind_of_batch_on_one_of_four() -> RunData:
    """Four ranks; the larger batches of one of them stall now and then, and the others wait."""
    wait, tokens = _loading(np.random.default_rng(11))
    waits = noisy((4, 100), 1e6, 0.1, seed=4)
    waits[2] = wait * 1e6
    sizes = np.full((4, 100), 5_184.0)
    sizes[2] = tokens
    run = waiting_for_each_other({"data_wait": waits, "forward": noisy((4, 100), 15e6, seed=3)})
    return with_columns(run, tokens=sizes)


def stalls_that_no_kind_of_batch_shares() -> RunData:
    """The same stalls where small batches stall as well: sizes explain nothing."""
    wait, tokens = _loading(np.random.default_rng(11))
    tokens[[46, 71]] = 5_184.0
    run = waiting_for_each_other({"data_wait": wait[None] * 1e6, "forward": noisy((1, 100), 15e6, seed=3)})
    return with_columns(run, tokens=tokens[None])


def long_answers_for_a_changing_rank() -> RunData:
    """One rank draws the long sequences, another one in each step; balanced, 78 s a step would be 64 s."""
    rng = np.random.default_rng(13)
    ratio = np.exp(0.03 * rng.standard_normal((16, 120)))
    ratio[rng.integers(16, size=120), np.arange(120)] *= 1.95
    train = 15.0e6 * ratio
    run = waiting_for_each_other(
        {"forward": train / 3, "backward": train * 2 / 3, "user": noisy((16, 120), 48.7e6, 0.001)}
    )
    return with_columns(run, tokens=np.rint(65_536 * ratio))


def lengths_that_vary_on_four_ranks() -> RunData:
    """Four gloo ranks with sequences of varied length, compute in proportion."""
    rng = np.random.default_rng(4)
    ratio = rng.uniform(0.3, 1.7, (4, 400))
    run = waiting_for_each_other({"forward": 12_000.0 * ratio, "backward": 24_000.0 * ratio})
    return with_columns(run, tokens=np.rint(2048 * ratio))


def _worker_waits(steps: int, workers: int, slow: int, us: float) -> Floats:
    """Waiting for batches that the workers deliver in turn, one of them slowly, shape (S,)."""
    rng = np.random.default_rng(workers)
    return np.where(np.arange(steps) % workers == slow, us, 300.0) * (1 + 0.05 * rng.standard_normal(steps))


def the_slower_of_two_loader_workers() -> RunData:
    """One rank, two workers of its loader; every second batch takes half a second longer."""
    waits = _worker_waits(300, 2, 1, 450_000.0)[None]
    return waiting_for_each_other({"data_wait": waits, "forward": noisy((1, 300), 50_000.0)})


def the_slowest_of_four_loader_workers_on_all_ranks() -> RunData:
    """Four ranks whose loaders are alike: worker 2 of each is slow."""
    waits = np.stack([_worker_waits(300, 4, 2, 400_000.0)] * 4) * noisy((4, 300), 1.0, 0.02)
    return waiting_for_each_other({"data_wait": waits, "forward": noisy((4, 300), 60_000.0)})


def a_slow_loader_worker_of_one_rank() -> RunData:
    """Only rank 3 of four has a slow worker: every fifth of its batches is late."""
    waits = np.full((4, 300), 300.0)
    waits[3] = _worker_waits(300, 5, 1, 90_000.0)
    return waiting_for_each_other({"data_wait": waits, "forward": noisy((4, 300), 60_000.0)})


REPORTS: tuple[Report, ...] = (
    (
        input_stall_in_logs_without_hosts,
        answer(
            "straggler",
            ranks=tuple(STALLED),
            causes=("data-loading",),
            kinds=("one-off",),
            onset=173,
            says=("196 s to 33", "the others spent waiting", "not recorded"),
        ),
    ),
    (
        input_stall_of_one_host,
        answer(
            "straggler",
            ranks=tuple(STALLED),
            causes=("data-loading",),
            onset=173,
            says=("all 4 ranks of n036", "the others spent waiting"),
        ),
    ),
    (
        input_stall_of_neighbours_on_four_hosts,
        answer("straggler", ranks=tuple(STALLED), causes=("data-loading",), onset=173, says=("share no machine",)),
    ),
    (
        input_stall_that_the_hook_saw,
        answer(
            "none",
            "straggler",
            tolerated=frozenset(STALLED),
            causes=("data-loading",),
            onset=173,
            says=("ranks 144-147", "waited for them", "node18"),
        ),
    ),
    (
        stalls_of_one_kind_of_batch,
        answer("none", "inconclusive", causes=("data-loading",), says=("tokens", "second", "cache", "47")),
    ),
    (
        the_same_in_a_log,
        answer("inconclusive", causes=("data-loading",), says=("tokens", "second", "cache")),
    ),
    (
        stalls_of_one_kind_of_batch_on_one_of_four,
        answer("none", "straggler", tolerated=frozenset({2}), causes=("data-loading",), says=("tokens", "cache")),
    ),
    (
        stalls_that_no_kind_of_batch_shares,
        answer("none", "inconclusive", causes=("data-loading",), says=("cache",), never=("only such batches",)),
    ),
    (
        long_answers_for_a_changing_rank,
        answer(
            "workload-skew",
            causes=("sequence-length",),
            kinds=("rotating",),
            seconds=(110 * 12.0, 120 * 14.5),
            says=("tokens", "another one each time", "would save"),
        ),
    ),
    (lengths_that_vary_on_four_ranks, answer("workload-skew", causes=("sequence-length",), says=("tokens",))),
    (
        the_slower_of_two_loader_workers,
        answer("none", causes=("data-loading",), kinds=("periodic",), says=("every 2nd batch", "worker", "in order")),
    ),
    (
        the_slowest_of_four_loader_workers_on_all_ranks,
        answer("none", "uniform", causes=("data-loading",), kinds=("periodic",), says=("every 4th batch", "worker")),
    ),
    (
        a_slow_loader_worker_of_one_rank,
        answer("straggler", ranks=(3,), causes=("data-loading",), says=("every 5th batch", "worker")),
    ),
)
