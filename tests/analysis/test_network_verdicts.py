"""A slow network makes everybody wait alike: only sockets and interfaces can tell whose it is, or that nobody can."""

import pytest
from verdicts import blamed, only_finding, verdict_of, words

from starprof.analysis import diagnose
from starprof.analysis.network.links import Link
from starprof.analysis.network.location import explaining, slow_pairs
from starprof.analysis.synthetic import SlowNic, SyntheticRun
from starprof.model import causes


@pytest.mark.parametrize("start", [0, 120])
def test_a_shaped_interface_is_named_with_its_node_and_cost(start):
    run = SyntheticRun(nodes=4, faults=(SlowNic(1, start=start),))
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause, finding.ranks) == ("straggler", causes.NIC_BANDWIDTH, (1,))
    assert finding.nodes == ("node1",)
    assert abs(finding.onset_step - start) <= 3
    assert finding.cost_seconds == pytest.approx(run.cost_seconds(), rel=0.2)
    assert "round trip" in words(finding)


def test_an_interface_at_a_lower_speed_is_degraded():
    finding = only_finding(verdict_of(SlowNic(1, start=120, speed_mbit=1000), nodes=4))
    assert (finding.cause, finding.nodes) == (causes.NIC_DEGRADED, ("node1",))
    assert "1000 Mbit/s" in words(finding)


def test_with_two_nodes_the_interface_that_holds_packets_back_decides():
    finding = only_finding(verdict_of(SlowNic(1, start=120), nodes=2))
    assert (finding.cause, finding.ranks, finding.nodes) == (causes.NIC_BANDWIDTH, (2, 3), ("node1",))


def test_with_two_nodes_and_silent_interfaces_both_are_named_as_possible_and_nobody_is_blamed():
    data = SyntheticRun(nodes=2, faults=(SlowNic(1, start=120),)).data()
    data.samples["nic_sample"]["qdisc_overlimits"] = 0.0
    verdict = diagnose(data)
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.ranks, finding.nodes) == ("inconclusive", (), ("node0", "node1"))
    assert "Test node0 with a third node" in finding.next


def test_one_slow_path_between_two_good_nodes_blames_neither():
    data = SyntheticRun(nodes=4, faults=(SlowNic(1, start=120),)).data()
    data.samples["nic_sample"]["qdisc_overlimits"] = 0.0
    tcp, samples = data.samples["tcp"], data.samples["tcp_sample"]
    between = tcp[tcp["rank"].isin([1, 2]) & tcp["remote"].str.startswith(("10.0.0.2:", "10.0.0.3:"))]["socket"]
    samples.loc[~samples["socket"].isin(between), ["rtt_us", "delivery_bytes_per_s"]] = [150.0, 800e6]
    verdict = diagnose(data)
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause, finding.ranks) == ("shared", causes.NETWORK_PATH, ())
    assert finding.nodes == ("node1", "node2")


def test_all_links_slow_alike_is_nobodys_fault():
    data = SyntheticRun(nodes=4, faults=(SlowNic(1, start=120),)).data()
    data.samples["nic_sample"]["qdisc_overlimits"] = 0.0
    samples = data.samples["tcp_sample"]
    slow = samples["mono_ns"] >= samples.loc[samples["rtt_us"] > 5_000, "mono_ns"].min()
    samples.loc[slow, "rtt_us"] = 20_000.0
    verdict = diagnose(data)
    assert (verdict.verdict, blamed(verdict)) == ("uniform", set())
    assert only_finding(verdict).cause == causes.NETWORK_PATH


@pytest.mark.parametrize("counters", [True, False])
def test_a_slower_reduction_without_evidence_is_inconclusive_and_says_what_to_do(counters):
    run = SyntheticRun(nodes=4, counters=counters, faults=(SlowNic(1, start=120, seen=False),))
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause, finding.ranks) == ("inconclusive", causes.UNKNOWN, ())
    assert finding.next
    assert verdict.cost.seconds == pytest.approx(run.cost_seconds(), rel=0.2)


def _link(rtt_us: float) -> Link:
    return Link(rtt_us, 50.0, float("nan"), float("nan"))


def test_the_only_node_whose_links_are_all_slow_explains_them():
    seen = {(a, b): _link(20_000.0 if 3 in (a, b) else 200.0) for a in range(5) for b in range(a + 1, 5)}
    slow = slow_pairs(seen)
    assert slow == {(0, 3), (1, 3), (2, 3), (3, 4)}
    assert explaining(seen, slow) == [3]


def test_a_single_pair_can_be_either_end():
    seen = {(0, 1): _link(20_000.0)}
    assert explaining(seen, slow_pairs(seen)) == [0, 1]


def test_round_trips_that_are_long_but_not_queued_are_not_slow():
    seen = {(0, 1): Link(30_000.0, 29_000.0, float("nan"), float("nan")), (0, 2): _link(200.0)}
    assert slow_pairs(seen) == set()
