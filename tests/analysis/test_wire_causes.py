"""Why a reduction is slow: links, interfaces, priorities, loss and sharing, each named on its fault and only then."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from verdicts import blamed, only_finding, words

from starprof.analysis import diagnose
from starprof.analysis.synthetic import Slow, SyntheticRun, Trouble
from starprof.model import causes

SLOWER = {"transfer": 30_000.0}
"""Reductions of 4 ms take 34."""

ALL = (0, 1, 2, 3)
GBIT = 125e6

FALLBACK = Trouble(
    ALL,
    SLOWER,
    stops=("nic_sample#2.tx_bytes", "nic_sample#2.rx_bytes"),
    grows={"nic_sample.tx_bytes": 30e6, "nic_sample.rx_bytes": 30e6},
)
DEGRADED = Trouble((1,), SLOWER, {"nic_sample.speed_mbit": 1000.0})
NARROW_PORT = Trouble((1,), SLOWER, {"nic_sample#2.speed_mbit": 25_000.0})
LOSSY = Trouble((1,), SLOWER, grows={"tcp_sample.retransmits": 200.0})
DROPPING = Trouble((1,), SLOWER, grows={"nic_sample.rx_dropped": 300.0})
SHARED = Trouble((1,), SLOWER, grows={"nic_sample.tx_bytes": 9.6 * GBIT})
FULL = Trouble(ALL, SLOWER, grows={"nic_sample.tx_bytes": 9.6 * GBIT, "tcp_sample.acked_bytes": 3.2 * GBIT})
UNUSED_CLASS = Trouble(
    ALL,
    SLOWER,
    stops=("nic_sample.rx_other_prio_packets",),
    grows={"nic_sample.rx_prio0_packets": 40_000.0},
)
FEWER_LINKS = Trouble((2,), SLOWER, {"gpu_sample.nvlink_active": 10.0})
LINK_ERRORS = Trouble((2,), SLOWER, grows={"gpu_sample.nvlink_errors": 50.0})

IB = {"infiniband": True}
GPUS = {"gpus": True, "nodes": 1}

FAULTS = {
    "fallback": (FALLBACK, IB, causes.WRONG_INTERFACE, "uniform", set()),
    "degraded": (DEGRADED, {}, causes.NIC_DEGRADED, "straggler", {1}),
    "narrow": (NARROW_PORT, IB, causes.NIC_DEGRADED, "straggler", {1}),
    "lossy": (LOSSY, {}, causes.PACKET_LOSS, "straggler", {1}),
    "dropping": (DROPPING, {}, causes.PACKET_LOSS, "straggler", {1}),
    "shared": (SHARED, {}, causes.SHARED_NIC, "shared", set()),
    "full": (FULL, {}, causes.NIC_BANDWIDTH, "uniform", set()),
    "class": (UNUSED_CLASS, IB, causes.PFC, "uniform", set()),
    "class of one node": (replace(UNUSED_CLASS, on=(1,)), IB, causes.PFC, "straggler", {1}),
    "fewer links": (FEWER_LINKS, GPUS, causes.NVLINK, "straggler", {2}),
    "link errors": (LINK_ERRORS, GPUS, causes.NVLINK, "straggler", {2}),
}


def verdict_of(*faults, **recipe):
    return diagnose(SyntheticRun(faults=faults, **{"nodes": 4, **recipe}).data())


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_with_its_place_onset_and_cost(name):
    fault, recipe, cause, kind, ranks = FAULTS[name]
    run = SyntheticRun(faults=(replace(fault, start=120),), **{"nodes": 4, **recipe})
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause, blamed(verdict)) == (kind, cause, ranks)
    assert finding.cause_share >= 0.8
    assert abs(finding.onset_step - 120) <= 3
    assert finding.cost_seconds == pytest.approx(run.cost_seconds(), rel=0.2)
    assert finding.action
    assert finding.verify


@pytest.mark.parametrize("name", FAULTS)
def test_the_counters_without_a_slower_reduction_are_no_finding(name):
    fault, recipe, *_ = FAULTS[name]
    assert verdict_of(replace(fault, adds={}, start=120), **recipe).findings == ()


@pytest.mark.parametrize("name", FAULTS)
def test_the_counters_of_a_healthy_node_do_not_hide_a_slow_rank(name):
    fault, recipe, *_ = FAULTS[name]
    verdict = verdict_of(Slow("backward", (3,), us=40_000, start=120), replace(fault, adds={}, start=120), **recipe)
    finding = only_finding(verdict)
    assert (finding.ranks, finding.cause) == ((3,), causes.BACKWARD_COMPUTE)


@pytest.mark.parametrize("name", ["degraded", "narrow", "lossy", "dropping", "shared", "fewer links", "link errors"])
def test_counters_that_were_odd_before_the_reduction_became_slow_explain_nothing(name):
    fault, recipe, cause, *_ = FAULTS[name]
    slow = Trouble((1,), SLOWER, start=120)
    verdict = verdict_of(slow, replace(fault, adds={}), **recipe)
    assert blamed(verdict) == set()
    assert only_finding(verdict).cause != cause


@pytest.mark.parametrize("name", ["degraded", "narrow", "dropping", "fewer links", "link errors"])
def test_counters_that_are_odd_everywhere_blame_nobody(name):
    fault, recipe, *_ = FAULTS[name]
    assert blamed(verdict_of(replace(fault, on=ALL, start=120), **recipe)) == set()


def test_the_fallback_to_sockets_says_how_to_see_it_in_the_logs():
    text = words(only_finding(verdict_of(replace(FALLBACK, start=120), **IB)))
    assert "moved no bytes" in text
    assert "NET/Socket" in text


def test_a_fallback_from_the_first_step_on_is_found_by_the_share_of_the_reduction():
    run = SyntheticRun(nodes=4, infiniband=True, transfer_us=45_000.0, faults=(replace(FALLBACK, adds={}),))
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause, finding.ranks) == ("uniform", causes.WRONG_INTERFACE, ())


def test_idle_infiniband_beside_a_quick_reduction_is_nothing():
    assert verdict_of(replace(FALLBACK, adds={}), **IB).findings == ()


def two_ports(sender):
    """Each node has a 10 Gbit/s and a 1 Gbit/s port on one subnet; one node sends through the slow one."""
    run = SyntheticRun(nodes=4, faults=(Trouble((1,), SLOWER, start=0),), transfer_us=20_000.0)
    data = run.data()
    samples, names = data.samples["nic_sample"], data.samples["nic"]
    seconds = (samples["mono_ns"] - samples["mono_ns"].min()) / 1e9
    wrong = samples["node"] == sender
    fast = samples.assign(tx_bytes=seconds.where(~wrong, 0.0) * 90e6, rx_bytes=seconds * 110e6, speed_mbit=10_000.0)
    slow = samples.assign(nic=5, tx_bytes=seconds.where(wrong, 0.0) * 118e6, rx_bytes=0.0, speed_mbit=1_000.0)
    data.samples["nic_sample"] = pd.concat([fast, slow], ignore_index=True)
    data.samples["nic"] = pd.concat([names, names.assign(nic=5, name="eth1")], ignore_index=True)
    return data


def test_a_node_that_receives_on_its_fast_port_and_sends_on_its_slow_one_is_named_with_the_port():
    verdict = diagnose(two_ports(sender=2))
    finding = only_finding(verdict)
    assert (finding.cause, finding.ranks, finding.nodes) == (causes.WRONG_INTERFACE, (2,), ("node2",))
    assert "sends through eth1 at 944 Mbit/s" in words(finding)


def test_loss_without_drops_says_that_the_interfaces_count_none():
    finding = only_finding(verdict_of(replace(LOSSY, start=120)))
    assert "count no more drops than usual" in words(finding)
    assert "Interfaces drop" not in words(finding)


def test_a_slow_reduction_with_standing_drop_counters_does_not_claim_drops():
    verdict = verdict_of(Trouble((1,), SLOWER, start=120))
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause) == ("inconclusive", causes.UNKNOWN)
    assert "drop" not in words(finding)


def test_a_steady_trickle_of_retransmissions_is_not_loss():
    verdict = verdict_of(Trouble((1,), SLOWER, start=120), Trouble((1,), grows={"tcp_sample.retransmits": 200.0}))
    assert only_finding(verdict).cause == causes.UNKNOWN


def test_all_packets_in_priority_0_are_normal_where_no_rdma_is_used():
    plain = Trouble(ALL, SLOWER, grows={"nic_sample.rx_prio0_packets": 40_000.0}, start=120)
    assert only_finding(verdict_of(plain)).cause == causes.UNKNOWN


def test_a_lossless_class_unused_since_boot_is_named_with_less_confidence():
    stalls = replace(UNUSED_CLASS, adds={"transfer": 60_000.0}, share=0.4)
    run = SyntheticRun(nodes=2, infiniband=True, faults=(stalls,))
    data = run.data()
    data.samples["nic_sample"].loc[data.samples["nic_sample"]["nic"] == 1, "rx_other_prio_packets"] = 0.0
    finding = only_finding(diagnose(data))
    assert (finding.cause, finding.ranks) == (causes.PFC, ())
    assert finding.confidence < 0.7
    assert "lossless class is unused" in words(finding)


def test_two_gpus_that_both_lost_links_can_be_the_two_ends_and_neither_is_blamed():
    verdict = verdict_of(replace(FEWER_LINKS, on=(1, 2), start=120), ranks=8, **GPUS)
    finding = only_finding(verdict)
    assert (finding.cause, finding.ranks) == (causes.NVLINK, ())
    assert "can't be told" in finding.next


def test_traffic_that_was_there_at_the_same_rate_before_is_not_blamed_for_a_later_rise():
    verdict = verdict_of(Trouble((1,), SLOWER, start=120), replace(SHARED, adds={}))
    assert only_finding(verdict).cause != causes.SHARED_NIC


def test_a_port_that_was_always_slower_is_the_limit_only_when_its_bytes_fill_the_reduction():
    slow = Trouble((1,), shows={"nic_sample.speed_mbit": 1000.0})
    full = verdict_of(slow, transfer_us=34_000.0)  # 4 MB take 32 ms at 1 Gbit/s
    assert (only_finding(full).cause, blamed(full)) == (causes.NIC_DEGRADED, {1})
    assert verdict_of(slow, transfer_us=150_000.0).findings == ()


def test_drops_that_a_node_always_counts_are_no_finding_though_reductions_take_long():
    assert verdict_of(replace(DROPPING, adds={}), transfer_us=40_000.0).findings == ()


def test_a_few_drops_among_very_many_packets_are_not_loss():
    data = SyntheticRun(nodes=4, faults=(replace(DROPPING, start=120),)).data()
    samples = data.samples["nic_sample"]
    samples["rx_packets"] = (samples["mono_ns"] - samples["mono_ns"].min()) / 1e9 * 8e6
    assert only_finding(diagnose(data)).cause == causes.UNKNOWN


def calling_more(calls, **recipe):
    """Ranks that make more collectives per step from step 150 on, and reduce for longer."""
    data = SyntheticRun(4, 300, faults=(Trouble(ALL, {"transfer": 60_000.0}, start=150),), **recipe).data()
    counted = np.full((4, 300), 2.0)
    counted[:, 150:] = np.asarray(calls, float).reshape(-1, 1)
    return replace(data, steps=replace(data.steps, columns={**data.steps.columns, "collectives": counted}))


def test_more_collectives_on_all_ranks_are_the_program_s_own_communication():
    verdict = diagnose(calling_more(3.0, counters=False))
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause, finding.ranks) == ("uniform", causes.COMMUNICATION_VOLUME, ())
    assert "makes 3 collectives per step, before it made 2" in words(finding)


def test_more_collectives_on_some_ranks_only_explain_nothing():
    assert only_finding(diagnose(calling_more([3.0, 3.0, 2.0, 3.0], counters=False))).cause == causes.UNKNOWN


def test_more_bytes_of_the_job_s_own_sockets_are_its_own_communication():
    more = Trouble(ALL, {"transfer": 60_000.0}, grows={"tcp_sample.acked_bytes": 200e6}, start=150)
    finding = only_finding(verdict_of(more, nodes=4))
    assert finding.cause == causes.COMMUNICATION_VOLUME
    assert "million bytes per step, before it sent" in words(finding)


def test_more_bytes_of_others_are_not_the_job_s():
    others = Trouble(ALL, {"transfer": 60_000.0}, grows={"nic_sample.tx_bytes": 200e6}, start=150)
    assert only_finding(verdict_of(others, nodes=4)).cause == causes.UNKNOWN
