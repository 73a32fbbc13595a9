import pytest
from device_lab import SECOND_NS, Recorded, write_tree

from starprof.collectors.base import NodeContext, Unavailable
from starprof.collectors.numa import NumaCollector

T0 = 100 * SECOND_NS
ROOT = "devices/system/node"


def numa_node(number, free_kb, local, other, miss):
    return {
        f"{ROOT}/node{number}/meminfo": f"Node {number} MemTotal: 999 kB\nNode {number} MemFree:      {free_kb} kB\n",
        f"{ROOT}/node{number}/numastat": (
            f"numa_hit 1\nnuma_miss {miss}\nnuma_foreign 2\ninterleave_hit 3\nlocal_node {local}\nother_node {other}\n"
        ),
    }


def sampled(context):
    collector, rows = NumaCollector(), Recorded()
    collector.open(context, rows)
    collector.sample(T0, rows)
    collector.close()
    return {r["numa_node"]: r for r in rows["numa_sample"]}


def test_each_node_has_free_bytes_and_page_counters(tmp_path):
    write_tree(tmp_path, {**numa_node(0, 1000, 5, 6, 7), **numa_node(10, 2000, 8, 9, 10), f"{ROOT}/online": "0,10\n"})
    rows = sampled(NodeContext(sys=tmp_path))
    assert set(rows) == {0, 10}
    row = rows[10]
    assert row["free_bytes"] == 2000 * 1024
    assert (row["local_pages"], row["other_pages"], row["miss_pages"]) == (8, 9, 10)


def test_a_kernel_without_page_counters_leaves_them_null(tmp_path):
    files = numa_node(0, 1000, 5, 6, 7)
    del files[f"{ROOT}/node0/numastat"]
    write_tree(tmp_path, files)
    row = sampled(NodeContext(sys=tmp_path))[0]
    assert (row["free_bytes"], row["local_pages"]) == (1000 * 1024, None)


def test_a_machine_that_lists_no_numa_node_says_so(tmp_path):
    with pytest.raises(Unavailable, match="no NUMA node"):
        NumaCollector().open(NodeContext(sys=tmp_path), Recorded())
