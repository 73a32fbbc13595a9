"""Several late ranks of one machine are one finding that says what they share; the map is read, not assumed."""

from dataclasses import replace

import pytest
from verdicts import blamed, only_finding, words

from starprof.analysis import diagnose
from starprof.analysis.synthetic import Quota, Slow, SyntheticRun, Trouble
from starprof.model import causes

HOT = {
    "gpu_sample.sm_clock_mhz": 1000.0,
    "gpu_sample.temperature_c": 88.0,
    "gpu_sample.clock_event_reasons": 0x20,
}
COMPUTE = {"forward": 12_000.0, "backward": 22_000.0}


def data_of(*faults, **recipe):
    return SyntheticRun(faults=faults, **{"ranks": 16, "nodes": 4, **recipe}).data()


def test_all_gpus_of_one_node_that_get_hot_are_one_finding_of_that_node():
    finding = only_finding(diagnose(data_of(Trouble((4, 5, 6, 7), COMPUTE, HOT, start=100), gpus=True)))
    assert (finding.ranks, finding.cause, finding.nodes) == ((4, 5, 6, 7), causes.GPU_THERMAL, ("node1",))
    assert "Ranks 4-7 are all 4 ranks of node1" in words(finding)


def test_ranks_of_one_node_that_are_slow_in_different_phases_are_one_finding_when_no_counter_tells_more():
    phases = ("forward", "backward", "unaccounted", "forward")
    faults = [Slow(phase, (4 + i,), us=30_000, start=100) for i, phase in enumerate(phases)]
    finding = only_finding(diagnose(data_of(*faults)))
    assert finding.ranks == (4, 5, 6, 7)
    assert "all 4 ranks of node1" in words(finding)


def test_ranks_of_different_nodes_with_different_slow_phases_stay_apart():
    faults = (Slow("forward", (1,), us=30_000, start=100), Slow("backward", (6,), us=30_000, start=100))
    verdict = diagnose(data_of(*faults))
    assert {f.ranks: f.cause for f in verdict.findings} == {
        (1,): causes.FORWARD_COMPUTE,
        (6,): causes.BACKWARD_COMPUTE,
    }


def test_ranks_with_the_same_cause_on_several_nodes_are_said_to_share_no_machine():
    finding = only_finding(diagnose(data_of(Slow("forward", (1, 6, 11), us=30_000, start=100))))
    assert finding.ranks == (1, 6, 11)
    assert "share no machine" in words(finding)


def test_the_healthy_ranks_of_a_slow_group_s_machine_are_named():
    finding = only_finding(diagnose(data_of(Slow("forward", (4, 5, 6), us=30_000, start=100))))
    assert "3 of the 4 ranks of node1 (only rank 7 there is fine)" in words(finding)


def test_ranks_of_one_numa_node_are_put_down_to_it():
    bound = {r: "0-3" if r % 4 < 2 else "4-7" for r in range(16)}
    data = data_of(Slow("forward", (6, 7), us=30_000, start=100), numa_nodes=2, cpu_lists=bound)
    assert "all 2 ranks of NUMA node 1 of node1" in words(only_finding(diagnose(data)))


def test_neighbouring_ranks_are_no_machine_when_hosts_were_not_recorded():
    data = data_of(Slow("forward", (4, 5, 6, 7), us=30_000, start=100), nodes=1)
    data = replace(data, ranks=tuple(replace(info, host="") for info in data.ranks))
    finding = only_finding(diagnose(data))
    assert finding.ranks == (4, 5, 6, 7)
    assert "not recorded" in words(finding)
    assert "host of every rank" in finding.next


def test_neighbouring_ranks_that_the_map_puts_on_different_machines_are_not_grouped_by_their_numbers():
    data = data_of(Slow("forward", (3, 4), us=30_000, start=100))
    finding = only_finding(diagnose(data))
    assert "share no machine" in words(finding)


@pytest.mark.parametrize("hosts", [True, False])
def test_an_input_stall_of_a_machine_in_one_step_is_one_finding_and_the_others_only_wait(hosts):
    stalls = tuple(
        Slow("data_wait", (4 + i,), us=us, start=150, end=151) for i, us in enumerate((33e6, 33e6, 31e6, 20e6))
    )
    data = data_of(*stalls)
    if not hosts:
        data = replace(data, ranks=tuple(replace(info, host="") for info in data.ranks))
    verdict = diagnose(data)
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.kind, blamed(verdict)) == ("none", "one-off", set())
    assert finding.cause == causes.DATA_LOADING
    text = words(finding)
    assert "Ranks 4-7 were late" in text
    assert ("all 4 ranks of node1" in text) == hosts
    assert ("not recorded" in text) != hosts
    assert "second time" in finding.next


def test_two_faults_of_two_kinds_are_two_findings_with_their_own_causes():
    verdict = diagnose(data_of(Trouble((1,), COMPUTE, HOT, start=100), Quota(6, start=100), gpus=True))
    assert {f.ranks: f.cause for f in verdict.findings} == {(1,): causes.GPU_THERMAL, (6,): causes.CGROUP_THROTTLING}


def test_two_gpus_of_one_machine_with_different_faults_are_not_lumped_together():
    foreign = {"gpu_sample.foreign_processes": 1.0, "gpu_sample.foreign_memory_bytes": 9e9}
    faults = (Trouble((4,), COMPUTE, HOT, start=100), Trouble((5,), COMPUTE, foreign, start=100))
    verdict = diagnose(data_of(*faults, gpus=True))
    assert {f.ranks: f.cause for f in verdict.findings} == {
        (4,): causes.GPU_THERMAL,
        (5,): causes.GPU_FOREIGN_PROCESS,
    }


def test_everybody_slower_without_counters_says_what_to_collect():
    verdict = diagnose(data_of(Slow("backward", us=30_000, start=150), counters=False))
    assert (verdict.verdict, blamed(verdict)) == ("uniform", set())
    assert "process_sample" in only_finding(verdict).next
