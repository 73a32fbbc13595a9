"""What the agent tells of its node, from a fake tree."""

import json

import pytest

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


def card(sys, link, path, numa):
    """A PCI device below its bridges, and the link that sysfs has to it."""
    device = sys / "devices" / path
    device.mkdir(parents=True, exist_ok=True)
    (device / "numa_node").write_text(f"{numa}\n")
    place = sys / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(device)


def test_the_place_of_cards_and_gpus_in_the_pci_tree_is_told(tmp_path):
    sys, proc = tmp_path / "sys", tmp_path / "proc"
    switch = "pci0000:15/0000:15:01.0/0000:16:00.0"
    card(sys, "class/net/eth0/device", "pci0000:00/0000:00:03.0/virtio0", -1)
    card(sys, "class/infiniband/mlx5_0/device", f"{switch}/0000:17:00.0/0000:18:00.0", 0)
    card(sys, "bus/pci/devices/0000:1b:00.0", f"{switch}/0000:17:01.0/0000:1b:00.0", 0)
    (proc / "driver/nvidia/gpus/0000:1B:00.0").mkdir(parents=True)
    (sys / "class/net/lo").mkdir()
    (sys / "class/net/bond0").mkdir()
    assert detail_of(tmp_path)[1]["pci"] == {
        "eth0": {"path": "pci0000:00/0000:00:03.0"},
        "mlx5_0": {"path": f"{switch}/0000:17:00.0/0000:18:00.0", "numa": 0},
        "0000:1b:00.0": {"path": f"{switch}/0000:17:01.0/0000:1b:00.0", "numa": 0},
    }


@pytest.mark.parametrize(
    ("environ", "topology"),
    [
        (
            {"SLURM_TOPOLOGY_ADDR": "s0.s4.n7", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"},
            {"address": "s0.s4.n7", "pattern": "switch.switch.node"},
        ),
        ({"SLURM_TOPOLOGY_ADDR": "s0.s4.n7"}, None),
        ({}, None),
    ],
)
def test_where_slurm_puts_the_node_in_the_network_is_told(tmp_path, environ, topology):
    context = NodeContext(proc=tmp_path / "proc", sys=tmp_path / "sys")
    row = dict(zip(BY_NAME["node"].names, node_row(context, environ), strict=True))
    assert json.loads(row["detail"]).get("topology") == topology
