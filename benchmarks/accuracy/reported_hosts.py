"""Reported faults of hosts: bindings, threads, quotas, and counters of theirs that look like a fault and are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from inputs import Report, with_samples
from truth import answer

from starprof.analysis.synthetic import CpuHog, Quota, Slow, SyntheticRun, Trouble
from starprof.model.rundata import RunData


def unbound_hosts_take_turns() -> RunData:
    """Six of eight ranks lose 35-56 ms of host time, other ones in each step, where alone it takes 0.2 ms."""
    rng = np.random.default_rng(5)
    phases = {"unaccounted": 200.0, "forward": 4_500.0, "backward": 8_500.0, "optimizer": 1_000.0}
    run = SyntheticRun(8, 300, phases_us=phases, cv=0.01, numa_nodes=8, cores=64, gpus=True)
    run.own_us["unaccounted"][:] += _in_turn(rng, 35_000, 56_000)
    data = run.data()
    samples = data.samples["process_sample"].copy()
    samples["last_cpu"] = rng.integers(64, size=len(samples)).astype(float)
    return with_samples(data, process_sample=samples)


def the_same_without_counters() -> RunData:
    """Only step records: the stalls take turns, and why is not known."""
    phases = {"unaccounted": 200.0, "forward": 4_500.0, "backward": 8_500.0, "optimizer": 1_000.0}
    run = SyntheticRun(8, 300, phases_us=phases, cv=0.01, counters=False)
    run.own_us["unaccounted"][:] += _in_turn(np.random.default_rng(6), 35_000, 56_000)
    return run.data()


def _in_turn(rng: np.random.Generator, low: float, high: float) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    slow = np.argsort(rng.random((8, 300)), axis=0) < 6
    return np.where(slow, rng.uniform(low, high, (8, 300)), 0.0)


def all_threads_of_a_job_on_one_core() -> RunData:
    """One process and its four loader workers may run on CPU 0 only; the other seven are idle."""
    phases = {"data_wait": 90_000.0, "forward": 12_000.0, "backward": 24_000.0, "optimizer": 3_000.0}
    data = SyntheticRun(1, 300, phases_us=phases, cpu_lists={0: "0"}).data()
    samples = data.samples["process_sample"]
    seconds = (samples["mono_ns"] - samples["mono_ns"].min()) / 1e9
    main = samples.assign(
        allowed_cpus=1.0,
        last_cpu=0.0,
        threads=9.0,
        cpu_us=seconds * 0.3e6,
        on_cpu_us=seconds * 0.3e6,
        run_delay_us=seconds * 0.25e6,
    )
    workers = [
        main.assign(
            pid=2000 + i, is_rank=0, threads=1.0, cpu_us=seconds * 0.17e6, run_delay_us=np.nan, on_cpu_us=np.nan
        )
        for i in range(4)
    ]
    cpus = data.samples["cpu_sample"].copy()
    at = (cpus["mono_ns"] - cpus["mono_ns"].min()) / 1e9
    for number in range(1, 8):
        idle = cpus[cpus["cpu"] == 0].assign(cpu=number, user_us=0.0)
        idle["idle_us"] = at[cpus["cpu"] == 0] * 1e6
        cpus = pd.concat([cpus, idle], ignore_index=True)
    full = cpus["cpu"].isin([0, -1])
    cpus.loc[full, "user_us"] = (cpus.loc[full, "mono_ns"] - cpus["mono_ns"].min()) / 1e9 * 0.99e6
    return with_samples(data, process_sample=pd.concat([main, *workers], ignore_index=True), cpu_sample=cpus)


def ranks_of_a_node_on_one_core() -> RunData:
    """Four ranks of a host of 16 CPUs that all may run on CPU 3 only, from the start."""
    data = SyntheticRun(4, 300, cores=16, cpu_lists=dict.fromkeys(range(4), "3")).data()
    samples = data.samples["process_sample"].copy()
    seconds = (samples["mono_ns"] - samples["mono_ns"].min()) / 1e9
    samples = samples.assign(
        allowed_cpus=1.0,
        last_cpu=3.0,
        cpu_us=seconds * 0.245e6,
        on_cpu_us=seconds * 0.245e6,
        run_delay_us=seconds * 0.7e6,
    )
    return with_samples(data, process_sample=samples)


def more_threads_than_cores() -> RunData:
    """Eight ranks with 36 threads each on 36 cores: all are slow alike, a fifth of their time is the loader's."""
    phases = {"data_wait": 150_000.0, "forward": 250_000.0, "backward": 420_000.0, "optimizer": 40_000.0}
    data = SyntheticRun(8, 200, phases_us=phases, cores=36).data()
    samples = data.samples["process_sample"].copy()
    seconds = (samples["mono_ns"] - samples["mono_ns"].min()) / 1e9
    return with_samples(data, process_sample=samples.assign(threads=36.0, run_delay_us=seconds * 0.55e6))


def quota_in_a_pod() -> RunData:
    """A container's CPU quota stops one rank in most periods."""
    return SyntheticRun(4, 300, faults=(Quota(2, us=60_000.0, share=0.6),)).data()


def quota_of_a_job_of_one_rank() -> RunData:
    """Half speed in a pod: the only rank is stopped in 60 % of the periods from the first step on."""
    return SyntheticRun(1, 300, faults=(Quota(0, us=60_000.0, share=0.8),)).data()


def traces_of_throttling() -> RunData:
    """34 of 3,076 periods were throttled, for 12 ms in all: nothing."""
    return SyntheticRun(4, 300, faults=(Quota(1, us=40.0, share=0.01),)).data()


def traces_of_throttling_on_a_slow_rank() -> RunData:
    """The same group belongs to a rank that is slow for another reason."""
    return SyntheticRun(4, 300, faults=(Quota(1, us=40.0, share=0.01), Slow("backward", (1,), us=15_000.0))).data()


def a_foreign_process_on_the_cores_of_one_rank() -> RunData:
    """Somebody else's process takes half of one rank's core from a step on."""
    return SyntheticRun(4, 400, faults=(CpuHog(3, share=0.5, start=150),)).data()


def a_gpu_of_the_other_socket() -> RunData:
    """One rank is bound to the cores of another NUMA node than its GPU's: copies take four times as long."""
    bound = {0: "0-3", 1: "4-7", 2: "4-7", 3: "4-7"}
    slow = Trouble((1,), {"h2d": 9_000.0})
    data = SyntheticRun(4, 300, gpus=True, numa_nodes=2, cpu_lists=bound, faults=(slow,)).data()
    return replace(data, ranks=tuple(replace(r, numa_node=r.rank // 2) for r in data.ranks))


REPORTS: tuple[Report, ...] = (
    (
        unbound_hosts_take_turns,
        answer(
            "rotating",
            causes=("affinity",),
            kinds=("rotating",),
            says=("bind each rank", "numa", "do not exchange nodes", "gain is at most"),
        ),
    ),
    (the_same_without_counters, answer("rotating", says=("record host counters|host counters", "will not help"))),
    (
        all_threads_of_a_job_on_one_core,
        answer(
            "uniform", causes=("affinity",), kinds=("uniform",), says=("1 of 8 cpus", "cpu 0", "idle", "kmp_affinity")
        ),
    ),
    (ranks_of_a_node_on_one_core, answer("uniform", causes=("affinity",), says=("1 of 16 cpus", "cpu 3"))),
    (
        more_threads_than_cores,
        answer(
            "none",
            "uniform",
            causes=("oversubscription",),
            says=("288 threads", "36 cpus", "omp_num_threads=4", "waiting for data is only 17 %|only 17 %|only 18 %"),
        ),
    ),
    (
        quota_in_a_pod,
        answer("straggler", ranks=(2,), causes=("cgroup-throttling",), says=("throttled for", "/job/rank2", "%")),
    ),
    (quota_of_a_job_of_one_rank, answer("uniform", causes=("cgroup-throttling",), says=("%", "quota"))),
    (traces_of_throttling, answer("none", never=("raise or remove",))),
    (
        traces_of_throttling_on_a_slow_rank,
        answer("straggler", ranks=(1,), causes=("backward-compute",), never=("raise or remove",)),
    ),
    (
        a_foreign_process_on_the_cores_of_one_rank,
        answer("straggler", ranks=(3,), causes=("cpu-contention",), onset=150, says=("stress",)),
    ),
    (
        a_gpu_of_the_other_socket,
        answer("straggler", ranks=(1,), causes=("numa",), says=("numactl --cpunodebind=0", "mismatch|other numa node")),
    ),
)
