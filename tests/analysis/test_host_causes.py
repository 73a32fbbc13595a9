"""Why a rank is slow, from host counters: each rule names its cause when it covers the slowness, and only then."""

from dataclasses import replace

import pandas as pd
import pytest
from verdicts import only_finding, verdict_of, words

from starprof.analysis import diagnose
from starprof.analysis.synthetic import CpuHog, Pinned, Quota, Slow, SyntheticRun
from starprof.model import causes


@pytest.mark.parametrize("start", [0, 120])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (CpuHog(1), causes.CPU_CONTENTION),
        (Quota(1), causes.CGROUP_THROTTLING),
        (Pinned(1), causes.AFFINITY),
    ],
)
def test_each_host_fault_is_named_with_rank_onset_and_cost(fault, cause, start):
    run = SyntheticRun(faults=(replace(fault, start=start),))
    finding = only_finding(diagnose(run.data()))
    assert (finding.ranks, finding.cause) == ((1,), cause)
    assert abs(finding.onset_step - start) <= 3
    assert finding.cost_seconds == pytest.approx(run.cost_seconds(), rel=0.2)
    assert finding.cause_share >= 0.8


def test_contention_names_the_foreign_process_and_its_core():
    text = words(only_finding(verdict_of(CpuHog(1, start=120))))
    assert "99000 (stress)" in text
    assert "CPU 1" in text


def test_a_foreign_process_on_another_core_is_not_blamed():
    data = SyntheticRun(faults=(CpuHog(1, start=120),)).data()
    process = data.samples["process_sample"]
    process.loc[process["rank"] == -1, "last_cpu"] = 5
    assert only_finding(diagnose(data)).cause != causes.CPU_CONTENTION


def test_a_foreign_process_without_run_delay_of_the_rank_is_not_blamed():
    data = SyntheticRun(faults=(CpuHog(1, start=120),)).data()
    process = data.samples["process_sample"]
    process.loc[process["rank"] >= 0, "run_delay_us"] = 0.0
    finding = only_finding(diagnose(data))
    assert (finding.ranks, finding.cause) == ((1,), causes.UNKNOWN)


def test_run_delay_that_covers_too_little_leaves_the_cause_unknown_and_says_how_much_it_covers():
    data = SyntheticRun(faults=(CpuHog(1, start=120),)).data()
    process = data.samples["process_sample"]
    process.loc[process["rank"] >= 0, "run_delay_us"] *= 0.5
    finding = only_finding(diagnose(data))
    assert finding.cause == causes.UNKNOWN
    assert "covers 50 %" in words(finding)
    assert 0.4 < finding.cause_share < 0.8


def test_traces_of_throttling_are_never_blamed():
    data = SyntheticRun(faults=(Slow("backward", (1,), us=30_000), Quota(1, us=40.0, share=0.1))).data()
    finding = only_finding(diagnose(data))
    assert (finding.ranks, finding.cause) == ((1,), causes.BACKWARD_COMPUTE)


def test_without_host_counters_a_spread_slowness_is_unknown_and_says_what_to_record():
    finding = only_finding(verdict_of(CpuHog(1, start=120), counters=False))
    assert (finding.ranks, finding.cause) == ((1,), causes.UNKNOWN)
    assert "process_sample" in finding.next


def test_too_many_threads_on_a_node_are_oversubscription():
    data = SyntheticRun(cores=2, faults=(CpuHog(1, start=120),)).data()
    process = data.samples["process_sample"]
    data.samples["process_sample"] = process[process["rank"] >= 0]
    finding = only_finding(diagnose(data))
    assert finding.cause == causes.OVERSUBSCRIPTION
    assert "16 threads for 2 CPUs" in words(finding)


def test_the_tightest_of_nested_groups_is_named():
    data = SyntheticRun(faults=(Quota(1, start=80),)).data()
    outer = data.samples["cgroup"].query("cgroup == 2").assign(cgroup=50, path="/job", depth=1)
    data.samples["cgroup"] = pd.concat([data.samples["cgroup"], outer])
    roomy = data.samples["cgroup_sample"].query("cgroup == 2").assign(cgroup=50, throttled_us=0.0)
    data.samples["cgroup_sample"] = pd.concat([data.samples["cgroup_sample"], roomy])
    finding = only_finding(diagnose(data))
    assert finding.cause == causes.CGROUP_THROTTLING
    assert "/job/rank1" in words(finding)


def test_a_quota_on_everybody_is_uniform_and_names_the_quota():
    run = SyntheticRun(faults=tuple(Quota(r, start=150, share=0.95) for r in range(4)))
    verdict = diagnose(run.data())
    assert verdict.verdict == "uniform"
    assert only_finding(verdict).cause == causes.CGROUP_THROTTLING
    assert only_finding(verdict).ranks == ()
