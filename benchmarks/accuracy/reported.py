"""Faults that people have reported, each as a small generated input with its right answer.

A case is one function of this module and its line in `REPORTS`. Figures that a report does not give are invented.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import reported_devices
from truth import Case, Truth, answer

from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.importers.base import JOB, WALL, run_of
from starprof.importers.load import load
from starprof.importers.source import Source
from starprof.model.rundata import RankInfo, RunData

_HERE = [Source("generated", Path(__file__))]


def one_slow_gpu_of_384() -> RunData:
    """One GPU in 48 nodes computes 5.7 % longer from a step on; what everybody sees is a 5.7 % longer step."""
    slow = Slow("forward", (137,), factor=1.19, start=200)
    return SyntheticRun(384, 400, nodes=48, cv=0.01, spread=0.003, faults=(slow,), counters=False).data()


def the_same_as_a_log_shows_it() -> RunData:
    """Only the job's own step times: 105.16 s becomes 111.1 s."""
    rng = np.random.default_rng(1)
    seconds = np.where(np.arange(120) < 60, 105.16, 111.14) * (1 + 0.004 * rng.standard_normal(120))
    ranks = [RankInfo(0, 0, "")]
    return run_of(
        "generated", _HERE, ranks=ranks, steps=range(42722, 42842), columns={"dur_us": seconds[None] * 1e6}, timing=JOB
    )


def unbound_hosts_take_turns() -> RunData:
    """Six of eight ranks lose 35-56 ms of host time, other ones in each step, where alone it takes 0.2 ms."""
    rng = np.random.default_rng(5)
    slow = np.argsort(rng.random((8, 300)), axis=0) < 6
    host_us = np.where(slow, rng.uniform(35_000, 56_000, (8, 300)), 200.0)
    rest_us = 14_000 * (1 + 0.01 * rng.standard_normal((8, 300)))
    return _synchronised(host_us + rest_us, "unaccounted_us", host_us)


def everything_ten_times_slower() -> RunData:
    """A wrong launcher option slows all ranks from the first step on."""
    slow = {name: 10 * us for name, us in SyntheticRun().phases_us.items()}
    return SyntheticRun(16, 300, phases_us=slow, counters=False).data()


def input_stall_of_one_host() -> RunData:
    """In one step four neighbouring ranks wait minutes for data; the others show the same step time."""
    stall = Slow("data_wait", (144, 145, 146, 147), us=330e6, start=173, end=174)
    phases = {"data_wait": 30_000.0, "forward": 16e6, "backward": 32e6, "optimizer": 400_000.0}
    return SyntheticRun(
        512, 300, nodes=64, phases_us=phases, cv=0.01, spread=0.002, faults=(stall,), counters=False
    ).data()


def collector_pauses_on_every_rank() -> RunData:
    """Python's collector pauses 1.4 s on one rank or another, at different steps."""
    return SyntheticRun(8, 400, faults=(Slow("gc", None, us=1.4e6, share=0.05, rotating=True),), counters=False).data()


def evaluation_on_rank_0_only() -> RunData:
    """Rank 0 evaluates every 50 steps, the others wait."""
    return SyntheticRun(4, 400, faults=(Slow("eval", (0,), us=3e6, every=50, start=49),), counters=False).data()


def checkpoint_on_rank_0() -> RunData:
    """Rank 0 saves every 10 steps."""
    return SyntheticRun(8, 400, faults=(Slow("checkpoint", (0,), us=0.8e6, every=10, start=9),), counters=False).data()


def compilation_on_a_cold_rank() -> RunData:
    """One rank compiles for 90 s in the first step while the others wait."""
    return SyntheticRun(2, 300, faults=(Slow("compile", (1,), us=90e6, end=1),), counters=False).data()


def all_four_change_level_together() -> RunData:
    """0.9 s a step become 3.3 s on all ranks alike."""
    phases = {"forward": 300_000.0, "backward": 580_000.0, "optimizer": 20_000.0}
    slow = Slow("backward", None, us=2.4e6, start=150)
    return SyntheticRun(4, 300, phases_us=phases, faults=(slow,), counters=False).data()


def slow_inside_backward() -> RunData:
    """200 ms more inside one rank's backward pass: all ranks' backward passes last equally long."""
    return SyntheticRun(4, 200, faults=(Slow("backward", (1,), us=200_000.0),), counters=False).data()


def slow_inside_backward_as_wall_times_show_it() -> RunData:
    """The same job where only whole steps were timed: it can't be told."""
    run = slow_inside_backward()
    wall = run.steps["dur_us"]
    return run_of("generated", _HERE, ranks=run.ranks, steps=run.steps.steps, columns={"dur_us": wall}, timing=WALL)


def a_rank_that_was_never_recorded() -> RunData:
    """Three of four ranks left records."""
    return SyntheticRun(4, 300, missing_ranks=(2,), counters=False).data()


def chronic_and_one_off() -> RunData:
    """Rank 7 of 64 is 8 % slower in every step, rank 40 five times slower in one."""
    own_us = sum(SyntheticRun().phases_us.values())
    faults = (Slow("forward", (7,), us=0.08 * own_us), Slow("forward", (40,), us=4 * own_us, start=111, end=112))
    return SyntheticRun(64, 400, cv=0.02, spread=0.005, faults=faults, counters=False).data()


def a_rank_that_never_joined_a_collective() -> RunData:
    """Four ranks' flight recorders: three wait in call 8, which rank 2 never scheduled."""
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(4):
            calls = range(1, 8 if rank == 2 else 9)
            entries = [
                {
                    "record_id": n,
                    "pg_id": 0,
                    "process_group": ["0", "default_pg"],
                    "collective_seq_id": n,
                    "p2p_seq_id": 0,
                    "op_id": n,
                    "profiling_name": "nccl:all_reduce",
                    "input_sizes": [[1024]],
                    "input_dtypes": ["Float"],
                    "state": "completed" if n < 8 else "scheduled",
                    "is_p2p": False,
                }
                for n in calls
            ]
            dump = {
                "version": "2.9",
                "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
                "entries": entries,
            }
            (Path(folder) / f"dump_{rank}.json").write_text(json.dumps(dump))
        return load([folder])


def a_table_of_arrivals() -> RunData:
    """Collective statistics of eight ranks: rank 4 waits least, by far."""
    rng = np.random.default_rng(7)
    lines = [
        "rank,Process Group Name,Collective name,Group size,dur_sum,dur_mean,dur_std,dur_min,dur_max,operation_count"
    ]
    for rank in range(8):
        mean = 11_700.0 if rank == 4 else float(rng.uniform(26_000, 72_000))
        lines.append(f"{rank},0,_reduce_scatter_base,8,{160 * mean},{mean},{mean / 12},{mean * 0.8},{mean * 1.2},160")
    return _text("nccl_summary_long.csv", "\n".join(lines) + "\n")


def half_bandwidth_between_some_hosts() -> RunData:
    """Five pairs were tested; two are quick."""
    return _text(
        "pairs.csv",
        "host_a,host_b,busbw_GBps\nn644,n699,49.36\nn632,n641,88.36\nn284,n678,49.28\nn641,n644,49.30\nn404,n699,86.81\n",
    )


REPORTS: tuple[tuple[Callable[[], RunData], Truth], ...] = (
    (one_slow_gpu_of_384, answer("straggler", ranks=(137,), causes=("forward-compute", "gpu-compute"), onset=200)),
    (the_same_as_a_log_shows_it, answer("inconclusive", causes=("unknown",), onset=42782)),
    (unbound_hosts_take_turns, answer("rotating")),
    (everything_ten_times_slower, answer("none", "uniform", "inconclusive")),
    (
        input_stall_of_one_host,
        answer("none", "straggler", tolerated=frozenset({144, 145, 146, 147}), causes=("data-loading",), says=("144",)),
    ),
    (collector_pauses_on_every_rank, answer("rotating", "none", causes=("gc",))),
    (evaluation_on_rank_0_only, answer("none", causes=("evaluation",))),
    (checkpoint_on_rank_0, answer("none", causes=("checkpoint",))),
    (compilation_on_a_cold_rank, answer("none")),
    (all_four_change_level_together, answer("uniform")),
    (slow_inside_backward, answer("straggler", ranks=(1,), causes=("backward-compute",))),
    (slow_inside_backward_as_wall_times_show_it, answer("inconclusive")),
    (a_rank_that_was_never_recorded, answer("inconclusive", says=("rank 2",))),
    (chronic_and_one_off, answer("straggler", ranks=(7,), tolerated=frozenset({40}), says=("40",))),
    (a_rank_that_never_joined_a_collective, answer("hang", ranks=(2,), causes=("missing-collective",), says=("8",))),
    (a_table_of_arrivals, answer("straggler", ranks=(4,))),
    (
        half_bandwidth_between_some_hosts,
        answer("straggler", "inconclusive", nodes=frozenset({"n644"}), says=("284", "678")),
    ),
)


def cases() -> Iterator[Case]:
    """All of them."""
    for make, truth in (*REPORTS, *reported_devices.REPORTS):
        yield Case(make.__name__.replace("_", " "), truth, make)


def _synchronised(own_us: np.ndarray, part: str, part_us: np.ndarray) -> RunData:
    """Ranks that wait for the last one in every step."""
    longest = own_us.max(axis=0) + 2_000.0
    columns = {
        "dur_us": np.broadcast_to(longest, own_us.shape).copy(),
        "blocked_us": longest - own_us,
        "forward_us": own_us - part_us,
        part: part_us,
    }
    ranks = [RankInfo(i, 0, "host") for i in range(len(own_us))]
    return run_of("generated", _HERE, ranks=ranks, steps=range(own_us.shape[1]), columns=columns)


def _text(name: str, content: str) -> RunData:
    """A file as somebody would have it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(content)
        return load([str(path)])
