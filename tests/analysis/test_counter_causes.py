"""Why a rank is slow, from counters of its host: memory, storage, steal, frequency, placement."""

import re
from dataclasses import replace

import numpy as np
import pytest
from verdicts import blamed, only_finding, words

from starprof.analysis import diagnose
from starprof.analysis.synthetic import CpuHog, Quota, Slow, SyntheticRun, Trouble
from starprof.model import causes

CPU = {"forward": 12_000.0, "backward": 22_000.0}
LOST_PER_S = 0.033 / 0.1 * 1e6
"""Those 34 ms lie in steps of about 101 ms."""

SWAP = {
    "process_sample.major_faults": 900.0,
    "node_sample.psi_memory_some_us": LOST_PER_S,
    "node_sample.swap_in_pages": 2_000.0,
}
DISK = {
    "process_sample.blkio_delay_us": LOST_PER_S,
    "disk_sample.busy_us": 900_000.0,
    "disk_sample.read_wait_us": 4_000_000.0,
}
STEAL = {"cpu_sample.steal_us": LOST_PER_S}
FREQUENCY = {"cpu_sample.freq_khz": 1_900_000.0}

FAULTS = {
    "swap": (Trouble((1,), CPU, grows=SWAP), causes.MEMORY_SWAP),
    "disk": (Trouble((1,), {"data_wait": 34_000.0}, grows=DISK), causes.STORAGE),
    "steal": (Trouble((1,), CPU, grows=STEAL), causes.CPU_CONTENTION),
    "frequency": (Trouble((1,), CPU, FREQUENCY), causes.CPU_FREQUENCY),
}
CAUSES_OF_COUNTERS = {cause for _, cause in FAULTS.values()}


def verdict_of(*faults, **recipe):
    return diagnose(SyntheticRun(faults=faults, **recipe).data())


def oddity(name, ranks, start=120):
    """The counters of a fault without the time."""
    return replace(FAULTS[name][0], on=ranks, adds={}, start=start)


def slowness(name):
    """The time of a fault without its counters."""
    return replace(FAULTS[name][0], shows={}, grows={}, start=120)


@pytest.mark.parametrize("start", [0, 120])
@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_with_rank_onset_and_cost(name, start):
    fault, cause = FAULTS[name]
    run = SyntheticRun(faults=(replace(fault, start=start),))
    finding = only_finding(diagnose(run.data()))
    assert (finding.ranks, finding.cause) == ((1,), cause)
    assert finding.cause_share >= 0.8
    assert abs(finding.onset_step - start) <= 3
    assert finding.cost_seconds == pytest.approx(run.cost_seconds(), rel=0.2)
    assert "was not the cause" in finding.verify


@pytest.mark.parametrize("name", FAULTS)
def test_odd_counters_of_a_healthy_rank_are_no_finding(name):
    assert verdict_of(oddity(name, (1,))).findings == ()


@pytest.mark.parametrize("name", FAULTS)
def test_odd_counters_of_a_victim_do_not_make_it_the_culprit(name):
    finding = only_finding(verdict_of(Slow("optimizer", (2,), us=30_000, start=120), oddity(name, (1,))))
    assert (finding.ranks, finding.cause) == ((2,), causes.OPTIMIZER)


@pytest.mark.parametrize("name", FAULTS)
def test_counters_that_are_odd_on_all_ranks_alike_explain_nothing(name):
    finding = only_finding(verdict_of(slowness(name), oddity(name, (0, 1, 2, 3))))
    assert finding.ranks == (1,)
    assert finding.cause not in CAUSES_OF_COUNTERS


@pytest.mark.parametrize("name", FAULTS)
def test_counters_that_were_odd_before_the_rank_became_slow_explain_nothing(name):
    finding = only_finding(verdict_of(slowness(name), oddity(name, (1,), start=0)))
    assert finding.ranks == (1,)
    assert finding.cause not in CAUSES_OF_COUNTERS


@pytest.mark.parametrize("name", ["swap", "disk", "steal"])
def test_counted_time_that_covers_too_little_is_quoted_but_not_named(name):
    fault = FAULTS[name][0]
    half = {key: 0.5 * value for key, value in fault.grows.items()}
    finding = only_finding(verdict_of(replace(fault, grows=half, start=120)))
    assert finding.cause not in CAUSES_OF_COUNTERS
    assert "% " in words(finding)
    assert "cover" in words(finding)


def test_swapping_names_the_faults_and_the_stalled_time():
    text = words(only_finding(verdict_of(replace(FAULTS["swap"][0], start=120))))
    assert re.search(r"(89\d|90\d) major page faults per second", text)
    assert "from swap" in text


def test_storage_names_the_busy_device_and_how_to_refute_it():
    text = words(only_finding(verdict_of(replace(FAULTS["disk"][0], start=120))))
    assert "nvme0n1 was busy 93 %" in text
    assert "second pass" in text


def test_a_slow_loader_on_a_quiet_disk_is_data_loading():
    finding = only_finding(verdict_of(Slow("data_wait", (1,), us=34_000, start=120)))
    assert finding.cause == causes.DATA_LOADING


def numa_run(**recipe) -> SyntheticRun:
    phases = {**SyntheticRun().phases_us, "h2d": 6_000.0}
    return SyntheticRun(gpus=True, numa_nodes=2, phases_us=phases, **recipe)


NEAR = {0: "0-3", 1: "0-3", 2: "4-7", 3: "4-7"}
COPIES = Slow("h2d", (1,), us=12_000)


def test_a_rank_bound_away_from_its_gpu_is_a_numa_mismatch_with_the_table_and_the_cure():
    finding = only_finding(diagnose(numa_run(faults=(COPIES,), cpu_lists={**NEAR, 1: "4-7"}).data()))
    assert (finding.ranks, finding.cause) == ((1,), causes.NUMA)
    text = words(finding)
    assert "rank 1: GPU on NUMA node 0, cores 4-7 (NUMA node 1): mismatch" in text
    assert "rank 2: GPU on NUMA node 1, cores 4-7 (NUMA node 1);" in text
    assert "numactl --cpunodebind=0 --membind=0" in text


def test_ranks_that_are_all_bound_away_from_their_gpus_do_not_make_one_of_them_slow():
    crossed = {0: "4-7", 1: "4-7", 2: "0-3", 3: "0-3"}
    finding = only_finding(diagnose(numa_run(faults=(COPIES,), cpu_lists=crossed).data()))
    assert (finding.ranks, finding.cause) == ((1,), causes.HOST_TO_DEVICE)


def test_a_mismatch_without_slowness_is_no_finding():
    assert diagnose(numa_run(cpu_lists={**NEAR, 1: "4-7"}).data()).findings == ()


def test_a_slow_backward_pass_is_not_explained_by_a_numa_mismatch():
    run = numa_run(faults=(Slow("backward", (1,), us=30_000),), cpu_lists={**NEAR, 1: "4-7"})
    assert only_finding(diagnose(run.data())).cause == causes.BACKWARD_COMPUTE


def rotating_data(cpus_seen=None, allowed=None, phase="unaccounted", us=40_000.0, share=1.0, **recipe):
    """A changing rank loses time in each step; `cpus_seen` is what the processes' last CPU looks like."""
    fault = Trouble(tuple(range(8)), {phase: us}, rotating=True, share=share)
    run = SyntheticRun(ranks=8, gpus=True, faults=(fault,), **{"numa_nodes": 8, "cores": 64, **recipe})
    data = run.data()
    samples = data.samples["process_sample"]
    if cpus_seen is not None:
        samples["last_cpu"] = cpus_seen(len(samples))
    if allowed is not None:
        samples["allowed_cpus"] = allowed
    return data


def wandering(n):
    return np.random.default_rng(0).integers(0, 64, n).astype(float)


def test_unbound_ranks_that_stall_in_turns_on_a_numa_host_are_an_affinity_matter_and_nobody_is_blamed():
    verdict = diagnose(rotating_data(wandering))
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.kind, blamed(verdict)) == ("rotating", "rotating", set())
    assert finding.cause == causes.AFFINITY
    text = words(finding)
    assert "8 NUMA domains" in text or "8 NUMA nodes" in text
    assert "Bind each rank" in text
    assert "do not exchange nodes" in text
    assert "at most" in finding.verify


@pytest.mark.parametrize(
    "recipe",
    [
        {"cpus_seen": wandering, "allowed": 8.0},  # bound
        {"cpus_seen": wandering, "numa_nodes": 1},  # one NUMA node only
        {},  # unbound, but each stays where it is
        {"cpus_seen": wandering, "phase": "backward"},  # on the GPU
    ],
)
def test_ranks_that_stall_in_turns_for_another_reason_are_not_put_down_to_affinity(recipe):
    verdict = diagnose(rotating_data(**recipe))
    assert (verdict.verdict, blamed(verdict)) == ("rotating", set())
    assert only_finding(verdict).cause != causes.AFFINITY


def test_a_run_queue_that_holds_the_lost_time_of_changing_ranks_is_oversubscription():
    data = rotating_data(numa_nodes=1)
    samples = data.samples["process_sample"]
    seconds = (samples["mono_ns"] - samples["mono_ns"].min()) / 1e9
    samples["run_delay_us"] = seconds * 50_000.0
    finding = only_finding(diagnose(data))
    assert (finding.cause, finding.ranks) == (causes.OVERSUBSCRIPTION, ())
    assert "OMP_NUM_THREADS" in finding.action


@pytest.mark.parametrize("regular", [True, False])
def test_rare_long_pauses_anywhere_in_the_step_are_host_pauses_and_say_what_is_not_known(regular):
    rng = np.random.default_rng(3)
    steps = range(12, 400, 10) if regular else np.sort(rng.choice(np.arange(12, 400), 39, replace=False))
    ranks = [i % 8 if regular else int(rng.integers(8)) for i in range(len(steps))]
    faults = tuple(
        Slow(str(rng.choice(["forward", "backward", "unaccounted"])), (r,), us=1_400_000, start=int(s), end=int(s) + 1)
        for r, s in zip(ranks, steps, strict=True)
    )
    data = SyntheticRun(ranks=8, faults=faults, counters=False).data()
    data.steps.columns["gc_us"][:] = np.nan
    verdict = diagnose(data)
    assert (verdict.verdict, blamed(verdict)) == ("rotating", set())
    assert {finding.cause for finding in verdict.findings} == {causes.HOST_PAUSE}
    text = words(verdict.findings[0])
    assert "not recorded" in text
    assert "same step" in text
    assert "does not make one shorter" in text


def test_pauses_of_the_collector_that_the_hook_timed_are_garbage_collection_and_growing_ones_a_trend():
    lengths = np.linspace(300_000, 1_200_000, 12)
    faults = tuple(Slow("gc", (1,), us=us, start=20 + 30 * i, end=21 + 30 * i) for i, us in enumerate(lengths))
    finding = only_finding(verdict_of(*faults, counters=False))
    assert (finding.cause, finding.kind) == (causes.GC, "trend")


def test_a_quota_that_stops_all_ranks_from_the_first_step_on_is_uniform_and_priced():
    run = SyntheticRun(faults=tuple(Quota(rank, share=1.0) for rank in range(4)))
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause, finding.ranks) == ("uniform", causes.CGROUP_THROTTLING, ())
    assert finding.cost_seconds == pytest.approx(run.cost_seconds(), rel=0.25)


def queued(data, us_per_second, ranks):
    samples = data.samples["process_sample"]
    seconds = (samples["mono_ns"] - samples["mono_ns"].min()) / 1e9
    samples["run_delay_us"] += seconds * us_per_second * samples["rank"].isin(ranks)
    samples["threads"] = 36.0
    return data


def test_a_run_queue_that_takes_a_third_of_all_ranks_time_is_told_with_threads_and_cores_and_nobody_is_blamed():
    verdict = diagnose(queued(SyntheticRun().data(), 400_000.0, range(4)))
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause, finding.ranks) == ("none", causes.OVERSUBSCRIPTION, ())
    text = words(finding)
    assert "4 ranks have 144 threads for 8 CPUs" in text
    assert "OMP_NUM_THREADS=2" in text


@pytest.mark.parametrize(("rate", "ranks"), [(100_000.0, range(4)), (400_000.0, (0, 1))])
def test_a_short_run_queue_or_one_of_some_ranks_is_no_finding_by_itself(rate, ranks):
    assert diagnose(queued(SyntheticRun().data(), rate, ranks)).findings == ()


@pytest.mark.parametrize("fault", [CpuHog(1), Quota(1)])
def test_counters_of_lost_time_that_all_ranks_show_alike_do_not_explain_one_of_them(fault):
    data = SyntheticRun(faults=(fault,)).data()
    process, groups = data.samples["process_sample"], data.samples["cgroup_sample"]
    mine = process.loc[process["rank"] == 1, "run_delay_us"].to_numpy()
    for rank in (0, 2, 3):
        process.loc[process["rank"] == rank, "run_delay_us"] = mine
        groups.loc[groups["cgroup"] == 1 + rank, "throttled_us"] = groups.loc[
            groups["cgroup"] == 2, "throttled_us"
        ].values
    finding = next(f for f in diagnose(data).findings if f.ranks)
    assert finding.ranks == (1,)
    assert finding.cause not in (causes.CPU_CONTENTION, causes.CGROUP_THROTTLING)


def test_a_trace_of_throttling_as_every_pod_shows_is_not_blamed_for_everybodys_time():
    run = SyntheticRun(faults=tuple(Quota(rank, us=30.0, share=0.011) for rank in range(4)))
    assert diagnose(run.data()).findings == ()
