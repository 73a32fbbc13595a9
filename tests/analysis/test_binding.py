"""Where ranks may run and where their GPUs are, from whatever the node's row tells."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starprof.analysis.binding import bindings, cpus_in, numa_of_cpus
from starprof.analysis.synthetic import SyntheticRun


def run(**recipe):
    return SyntheticRun(steps=20, gpus=True, numa_nodes=2, **recipe).data()


def test_each_rank_has_its_gpu_numa_node_and_cores_and_a_command_that_binds_it():
    table = bindings(run(cpu_lists={0: "0-3", 1: "4-7", 2: "4-7", 3: "0-7"}))
    assert [(b.gpu_numa, b.cpu_numa, b.remote, b.unbound) for b in table] == [
        (0, (0,), False, False),
        (0, (1,), True, False),
        (1, (1,), False, False),
        (1, (0, 1), False, True),
    ]
    assert table[1].command == "numactl --cpunodebind=0 --membind=0"
    assert table[1].words().endswith("mismatch")


def test_without_a_map_of_cpus_nothing_is_called_a_mismatch():
    data = run(cpu_lists={0: "4-7"})
    data = replace(data, nodes=data.nodes.assign(detail=None))
    assert [(b.cpu_numa, b.remote) for b in bindings(data)] == [((), False)] * 4


def test_the_numa_node_of_a_gpu_that_was_not_sampled_comes_from_the_rank_s_own_record():
    data = run()
    data.samples.clear()
    data = replace(data, ranks=tuple(replace(info, numa_node=1) for info in data.ranks))
    assert {b.gpu_numa for b in bindings(data)} == {1}


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8", {0, 1, 2, 3, 8}), ("", set()), ("x-2,-5,3-", {3}), ("5-4", set()), ("0-99999999999", set())],
)
def test_lists_of_cpus(text, cpus):
    assert cpus_in(text) == cpus


@given(st.text())
def test_any_text_as_a_list_of_cpus_gives_a_bounded_set(text):
    assert all(0 <= cpu <= 1 << 16 for cpu in cpus_in(text))


values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(values | st.builds(lambda v: {"numa_cpus": v}, values))
def test_any_detail_of_a_node_is_read_or_left_out(value):
    assert all(isinstance(n, int) for pair in numa_of_cpus(json.dumps(value)).items() for n in pair)


@given(st.text())
def test_a_detail_that_is_no_json_tells_nothing(text):
    assert isinstance(numa_of_cpus(text), dict)


def test_deeply_nested_details_tell_nothing():
    assert numa_of_cpus("[" * 200_000) == {}
