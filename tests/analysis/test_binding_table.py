"""The table of where ranks run: equal places are one row, what does not fit is said, and a command binds each rank."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starprof.analysis.binding_table import FAR_NIC, REMOTE, UNBOUND, binding_table, placing, rank_list, share_of_cpus
from starprof.analysis.synthetic import SyntheticRun
from starprof.analysis.synthetic.rails import Railed


def railed(ranks=8, nodes=2, cpu_lists=None, **options):
    run = SyntheticRun(ranks, 20, nodes=nodes, gpus=True, numa_nodes=2, cores=16, cpu_lists=cpu_lists or {})
    return Railed(run, **{"rails": 4, **options}).data()


def test_ranks_beside_their_gpus_are_one_row_per_place_of_a_node_and_nothing_is_proposed():
    rows = binding_table(railed(cpu_lists={r: "0-7" if r % 4 < 2 else "8-15" for r in range(8)}))
    assert [(row.ranks, row.nodes, row.gpu_numa, row.cpu_numa, row.faults, row.command) for row in rows] == [
        ((0, 4), 2, 0, (0,), (), ""),
        ((1, 5), 2, 0, (0,), (), ""),
        ((2, 6), 2, 1, (1,), (), ""),
        ((3, 7), 2, 1, (1,), (), ""),
    ]
    assert [(row.gpu[-7:], row.nic) for row in rows][:2] == [("20:00.0", ("mlx5_0/1",)), ("21:00.0", ("mlx5_1/1",))]
    assert "fits together" in placing(rows)


def test_a_rank_on_the_wrong_socket_comes_first_with_its_share_of_the_right_cores():
    bound = {r: "0-7" if r % 4 < 2 else "8-15" for r in range(8)} | {5: "8-15"}
    first = binding_table(railed(cpu_lists=bound))[0]
    assert (first.ranks, first.faults, first.command) == ((5,), (REMOTE,), "numactl --physcpubind=4-7 --membind=0")


def test_ranks_that_may_run_anywhere_are_told_so():
    rows = binding_table(railed())
    assert {row.faults for row in rows} == {(UNBOUND,)}
    assert "8 of 8 ranks" in placing(rows)


def test_an_interface_on_the_other_socket_than_the_gpu_is_told():
    chosen = {r: {"NCCL_IB_HCA": "=mlx5_3"} for r in range(4)}
    data = railed(ranks=4, nodes=1, chosen=chosen)
    detail = data.nodes["detail"].iloc[0].replace('63:00.0"}', '63:00.0", "numa": 1}')
    rows = binding_table(replace(data, nodes=data.nodes.assign(detail=[detail])))
    assert [FAR_NIC in row.faults for row in rows] == [True, True, False, False]


def test_512_ranks_on_64_equal_nodes_are_eight_rows():
    run = SyntheticRun(512, 2, nodes=64, numa_nodes=2, cores=16, counters=False)
    addresses = {r: {"gpu_pci": f"0000:{0x20 + r % 8:02x}:00.0"} for r in range(512)}
    rows = binding_table(replace(Railed(run, chosen=addresses).data(), samples={}))
    assert [(row.nodes, row.gpu_numa) for row in rows] == [(64, 0)] * 4 + [(64, 1)] * 4
    assert rows[1].who == "1, 9, … 505 (64 ranks)"


def test_nothing_is_shown_where_nothing_is_known():
    assert binding_table(SyntheticRun(4, 20, counters=False).data()) == ()


@pytest.mark.parametrize(
    ("cpus", "index", "count", "share"),
    [
        ("0-31,64-95", 1, 4, "8-15,72-79"),
        ("0-3", 2, 4, "2"),
        ("0-3", 0, 1, "0-3"),
        ("0-2", 0, 4, ""),
        ("", 0, 1, ""),
        ("a-b", 0, 1, ""),
        ("5", 0, 1, "5"),
    ],
)
def test_cores_are_shared_so_that_hyperthreads_stay_with_their_cores(cpus, index, count, share):
    assert share_of_cpus(cpus, index, count) == share


@given(st.text(), st.integers(0, 7))
def test_any_list_of_cores_is_shared_or_not(cpus, index):
    assert isinstance(share_of_cpus(cpus, index, 8), str)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((3,), "3"),
        ((0, 8), "0, 8"),
        ((0, 1, 2, 3), "0-3"),
        ((0, 8, 16, 24), "0, 8, … 24 (4 ranks)"),
        ((0, 1, 8, 9), "0, 1, … (not evenly) 9 (4 ranks)"),
    ],
)
def test_ranks_in_short(ranks, words):
    assert rank_list(ranks) == words
