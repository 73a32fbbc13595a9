"""What late ranks share: a link of the chain from the GPU to the switch is named when it, and only it, holds them."""

from dataclasses import replace

import pytest
from verdicts import blamed, only_finding, words

from starprof.analysis import diagnose
from starprof.analysis.counters import Counters
from starprof.analysis.synthetic import Slow, SyntheticRun, Trouble
from starprof.analysis.synthetic.rails import Railed
from starprof.analysis.topology import explaining
from starprof.model import causes

LEAVES = {0: ("s0", "leaf1"), 1: ("s0", "leaf1"), 2: ("s0", "leaf2"), 3: ("s0", "leaf2")}
RUN = SyntheticRun(ranks=16, nodes=4, steps=160, gpus=True, numa_nodes=2, counters=True)
HERE = Railed(RUN, rails=4, above=LEAVES)


TELLING = ("nic", "nic_sample", "tcp", "tcp_sample", "gpu")
"""What is about places; without the other counters the tests are quick."""


def verdict_of(railed):
    data = railed.data()
    return diagnose(replace(data, samples={name: data.samples[name] for name in TELLING}))


def names(run, late):
    everybody = run.ranks
    return [element.name for element in explaining(Counters(run), everybody, [everybody[rank] for rank in late])]


@pytest.mark.parametrize(
    ("late", "found"),
    [
        ((4, 5), ["NUMA node 0 of node1"]),
        ((4, 5, 6, 7), ["node1"]),
        ((4, 5, 6), ["node1"]),
        (tuple(range(8)), ["switch leaf1"]),
        ((0, 1, 2, 4, 5, 7), ["switch leaf1"]),
        ((4, 8), []),
        ((0, 4, 8, 12), []),
        (tuple(range(16)), []),
        ((4, 5, 8), []),
    ],
)
def test_the_innermost_element_that_holds_the_late_ranks_explains_them(late, found):
    bound = {rank: "0-3" if rank % 4 < 2 else "4-7" for rank in range(16)}
    run = replace(HERE, run=replace(RUN, cpu_lists=bound)).data()
    assert names(run, late) == found


def test_an_interface_that_serves_just_the_late_ranks_explains_them():
    run = replace(HERE, run=replace(RUN, numa_nodes=1), rails=2).data()
    assert names(run, (4, 5)) == ["interface mlx5_0/1 of node1"]


def test_ranks_that_share_one_card_are_put_down_to_it():
    run = HERE.data()
    ranks = tuple(replace(i, gpu_uuid=run.ranks[4].gpu_uuid) if i.rank == 5 else i for i in run.ranks)
    assert names(replace(run, ranks=ranks), (4, 5))[0] == "one GPU of node1"


def test_two_elements_that_hold_the_same_ranks_are_both_named_with_the_test_that_tells_them_apart():
    slow = replace(RUN, faults=(Slow("forward", (4, 5), us=30_000, start=60),))
    finding = only_finding(verdict_of(replace(HERE, run=slow, rails=2)))
    assert finding.ranks == (4, 5)
    text = words(finding)
    assert "NUMA node 0 of node1 and interface mlx5_0/1 of node1 explain that equally well" in text
    assert "use another NUMA node but the same interface (interface mlx5_0/1 of node1)" in finding.next


def test_a_node_that_is_alone_below_its_switch_can_t_be_told_from_it():
    run = replace(HERE, above={**LEAVES, 1: ("s0", "leaf3")}).data()
    assert names(run, (4, 5, 6, 7)) == ["node1", "switch leaf3"]


def test_ranks_below_one_leaf_switch_that_are_slow_in_different_phases_are_one_finding():
    phases = ("forward", "backward", "unaccounted", "forward") * 2
    faults = tuple(Slow(phase, (rank,), us=30_000, start=60) for rank, phase in enumerate(phases))
    finding = only_finding(verdict_of(replace(HERE, run=replace(RUN, faults=faults))))
    assert finding.ranks == tuple(range(8))
    assert "all 8 ranks of switch leaf1" in words(finding)


def test_switches_are_not_guessed_from_the_names_of_the_nodes():
    slow = replace(RUN, faults=(Slow("forward", tuple(range(8)), us=30_000, start=60),))
    finding = only_finding(verdict_of(replace(HERE, run=slow, above={})))
    assert "share no machine" in words(finding)
    assert "switch" not in words(finding)


def links_between(leaves, slow_leaf):
    """Sockets between nodes are slow where just one end is below a leaf."""
    slower = replace(RUN, ranks=8, nodes=8, faults=(Trouble((0,), {"transfer": 30_000.0}, start=60),), numa_nodes=1)
    data = Railed(slower, rails=1, rdma=False, above=leaves).data()
    names, samples = data.samples["tcp"], data.samples["tcp_sample"]
    below = {node for node, above in leaves.items() if above[-1] == slow_leaf}
    far = names["remote"].str.extract(r"10\.0\.0\.(\d+):")[0].astype(int) - 1
    crossing = names["socket"][names["node"].isin(below) != far.isin(below)]
    start = data.steps.start_mono_ns[0][60]
    hit = samples["socket"].isin(crossing) & (samples["mono_ns"] >= start)
    samples.loc[hit, "rtt_us"] = 20_000.0
    samples.loc[hit, "delivery_bytes_per_s"] = 5e6
    return replace(data, samples={name: data.samples[name] for name in TELLING})


def test_a_slow_uplink_names_the_switch_and_no_rank():
    leaves = {node: ("s0", f"leaf{node // 2}") for node in range(8)}
    verdict = diagnose(links_between(leaves, "leaf1"))
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause, blamed(verdict)) == ("shared", causes.NETWORK_PATH, set())
    assert "Only links that leave switch leaf1 are slow" in words(finding)


def test_between_two_switches_it_can_t_be_told_whose_uplink_is_slow():
    leaves = {node: ("s0", f"leaf{node // 4}") for node in range(8)}
    finding = only_finding(diagnose(links_between(leaves, "leaf1")))
    assert finding.ranks == ()
    assert "Only links between switch leaf0 and switch leaf1 are slow" in words(finding)
    assert "third switch" in finding.next
