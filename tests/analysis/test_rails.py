"""Nodes with several interfaces: a slow one names itself and the ranks it serves, never the node's other ranks."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verdicts import blamed, only_finding, words

from starprof.analysis import diagnose
from starprof.analysis.counters import Counters
from starprof.analysis.machine import address, machine
from starprof.analysis.network.rails import rails, selects
from starprof.analysis.synthetic import SyntheticRun, Trouble
from starprof.analysis.synthetic.rails import Railed
from starprof.model import causes

SLOWER = Trouble((0,), {"transfer": 30_000.0}, start=80)
RUN = SyntheticRun(ranks=16, nodes=4, steps=180, gpus=True, faults=(SLOWER,))
SLOW = Railed(RUN, rails=4, slow=(1, 2), start=80, speed_mbit=50_000.0)


def rail_map(railed):
    data = railed.data()
    return rails(data, Counters(data))


def test_each_rank_is_served_by_the_interface_nearest_to_its_gpu():
    found = rail_map(SLOW)
    assert [found.of_rank[r].nics for r in range(4)] == [("mlx5_0/1",), ("mlx5_1/1",), ("mlx5_2/1",), ("mlx5_3/1",)]
    assert "inferred" in found.of_rank[0].how


def test_two_gpus_below_one_bridge_share_its_interface():
    found = rail_map(replace(SLOW, rails=2))
    assert [found.of_rank[r].nics for r in range(4)] == [("mlx5_0/1",)] * 2 + [("mlx5_1/1",)] * 2


def test_the_address_that_a_rank_s_sockets_are_bound_to_is_its_interface():
    found = rail_map(replace(SLOW, rdma=False, placed=False))
    assert [(found.of_rank[r].nics, found.of_rank[r].certainty) for r in range(4)] == [
        ((f"eth{r}",), 1.0) for r in range(4)
    ]


def test_what_the_environment_chooses_counts_before_the_place():
    chosen = {r: {"NCCL_IB_HCA": f"=mlx5_{3 - r % 4}:1"} for r in range(16)}
    found = rail_map(replace(SLOW, chosen=chosen))
    assert [found.of_rank[r].nics for r in range(4)] == [("mlx5_3/1",), ("mlx5_2/1",), ("mlx5_1/1",), ("mlx5_0/1",)]


def test_without_places_sockets_and_choice_the_map_is_not_known():
    found = rail_map(replace(SLOW, placed=False))
    assert all(not rail.nics for rail in found.of_rank.values())
    assert found.users(RUN.data().ranks, 1, "mlx5_2/1") == ()


def test_interfaces_whose_bytes_are_those_of_one_rank_each_are_matched():
    data = replace(SLOW, rdma=False, placed=False).data()
    data.samples["nic"]["addresses"] = None
    for table, key, columns in (
        ("nic_sample", "nic", ["rx_bytes", "tx_bytes"]),
        ("tcp_sample", "rank", ["acked_bytes", "received_bytes"]),
    ):
        frame = data.samples[table]
        if key == "rank":
            place = frame["socket"].map(data.samples["tcp"].set_index("socket")["rank"]) % 4
        else:
            place = frame["nic"] - 10
        frame[columns] = frame[columns].mul(2.0**place, axis=0)
    found = rails(data, Counters(data))
    assert [found.of_rank[r].nics for r in range(4)] == [(f"eth{r}",) for r in range(4)]
    assert "as many bytes" in found.of_rank[0].how


def test_equal_bytes_on_all_interfaces_match_nobody():
    data = replace(SLOW, rdma=False, placed=False).data()
    data.samples["nic"]["addresses"] = None
    assert not any(rail.known for rail in rails(data, Counters(data)).of_rank.values())


def test_a_slow_rail_names_itself_and_the_rank_that_uses_it():
    verdict = diagnose(SLOW.data())
    finding = only_finding(verdict)
    assert (finding.cause, finding.ranks, finding.nodes) == (causes.NIC_DEGRADED, (6,), ("node1",))
    assert "mlx5_2/1 of node1 runs at 50000 Mbit/s" in words(finding)
    assert abs(finding.onset_step - 80) <= 3


def test_a_slow_rail_that_serves_two_ranks_names_both():
    assert blamed(diagnose(replace(SLOW, rails=2, slow=(1, 1)).data())) == {6, 7}


def test_without_the_map_the_finding_stays_with_the_node_and_says_so():
    finding = only_finding(diagnose(replace(SLOW, placed=False).data()))
    assert (finding.ranks, finding.nodes) == ((4, 5, 6, 7), ("node1",))
    assert "serves which rank is not known" in words(finding)
    assert "mlx5_2/1" in words(finding)


def test_sockets_of_one_interface_that_are_slow_name_it():
    run = replace(SLOW, rdma=False, speed_mbit=None)
    finding = only_finding(diagnose(run.data()))
    assert (finding.cause, finding.ranks) == (causes.NIC_BANDWIDTH, (6,))
    assert "Only its sockets on eth2 are slow" in words(finding)


def test_errors_of_one_port_name_it():
    finding = only_finding(diagnose(replace(SLOW, speed_mbit=None, errors_per_s=40.0).data()))
    assert (finding.cause, finding.ranks) == (causes.NIC_DEGRADED, (6,))
    assert "40.0 errors/s" in words(finding)


def test_a_lower_speed_without_a_slower_reduction_is_no_finding():
    healthy = replace(RUN, faults=())
    assert diagnose(replace(SLOW, run=healthy).data()).findings == ()


def test_a_map_that_holds_for_some_ranks_only_is_none():
    data = SLOW.data()
    ranks = tuple(replace(i, gpu_uuid=None) if i.rank == 5 else i for i in data.ranks)
    found = rails(replace(data, ranks=ranks), Counters(data))
    assert found.users(data.ranks, 1, "mlx5_2/1") == ()
    assert found.users(data.ranks, 2, "mlx5_2/1") == (10,)


@pytest.mark.parametrize(
    ("spec", "nic", "selected"),
    [
        ("mlx5", "mlx5_0/1", True),
        ("mlx5_1", "mlx5_10/1", True),
        ("=mlx5_1", "mlx5_10/1", False),
        ("=mlx5_1:2", "mlx5_1/1", False),
        ("mlx5_0,mlx5_1:1", "mlx5_1/1", True),
        ("^mlx5_3", "mlx5_3/1", False),
        ("^=mlx5_3", "mlx5_30/1", True),
        ("eth", "eth4", True),
        ("^docker,lo", "eth4", True),
    ],
)
def test_what_nccl_s_variables_select(spec, nic, selected):
    assert selects(spec, nic) is selected


@given(st.text(), st.text())
def test_any_text_selects_or_not(spec, nic):
    assert selects(spec, nic) in (True, False)


@pytest.mark.parametrize(
    ("pci", "same"),
    [("00000000:65:00.0", "0000:65:00.0"), ("PCI:0000:65:00", "0000:65:00.0"), ("0000:65:00.1", "0000:65:00.1")],
)
def test_pci_addresses_are_one_however_they_are_written(pci, same):
    assert address(pci) == same


@given(st.text())
def test_any_text_has_an_address(pci):
    assert isinstance(address(pci), str)


values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["path", "numa", "address", "pattern", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(values | st.builds(lambda a, b: {"pci": a, "topology": b}, values, values))
def test_any_detail_of_a_node_is_read_or_left_out(value):
    found = machine(json.dumps(value))
    assert all(isinstance(part, str) for device in found.devices.values() for part in device.path)
    assert all(level.name for level in found.levels)


def test_a_topology_whose_pattern_does_not_fit_tells_nothing():
    def levels(told, pattern):
        return [level.name for level in machine(json.dumps({"topology": {"address": told, "pattern": pattern}})).levels]

    assert levels("s0.s4.n7", "switch.switch.node") == ["s0", "s4"]
    assert levels("s0.s4.n7.example.org", "switch.switch.node") == ["s0", "s4"]
    assert levels("n7", "node") == []
    assert levels("s0.n7", "switch.switch.node") == []
