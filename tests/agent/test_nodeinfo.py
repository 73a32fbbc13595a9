"""What the agent tells of its node, from a fake tree."""

import json

from starprof.agent.nodeinfo import node_row
from starprof.collectors.base import NodeContext
from starprof.model.schema import BY_NAME


def detail_of(tmp_path):
    context = NodeContext(proc=tmp_path / "proc", sys=tmp_path / "sys")
    names = BY_NAME["node"].names
    row = dict(zip(names, node_row(context), strict=True))
    return row["numa_nodes"], json.loads(row["detail"])


def test_the_cpus_of_every_numa_node_are_told(tmp_path):
    for number, cpus in enumerate(("0-3,8-11", "4-7,12-15")):
        folder = tmp_path / "sys/devices/system/node" / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    (tmp_path / "sys/devices/system/node/power").mkdir()
    count, detail = detail_of(tmp_path)
    assert (count, detail["numa_cpus"]) == (2, {"0": "0-3,8-11", "1": "4-7,12-15"})


def test_a_node_without_numa_files_tells_no_map(tmp_path):
    count, detail = detail_of(tmp_path)
    assert count is None
    assert "numa_cpus" not in detail
