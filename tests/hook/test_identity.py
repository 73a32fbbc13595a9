import pytest

from starprof.hook import identity


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({"RANK": "3", "SLURM_PROCID": "5"}, 3),
        ({"SLURM_PROCID": "5"}, 5),
        ({"OMPI_COMM_WORLD_RANK": "2"}, 2),
        ({"PMI_RANK": "4"}, 4),
        ({"RANK": ""}, 0),
        ({}, 0),
    ],
)
def test_the_rank_comes_from_the_launchers_variables(environ, rank):
    assert identity.global_rank(environ) == rank


def test_elastic_restarts_are_attempts():
    assert identity.attempt({"TORCHELASTIC_RESTART_COUNT": "2"}) == 2
    assert identity.attempt({}) == 0


@pytest.mark.parametrize(
    ("names", "coordinate", "shape", "roles"),
    [
        (("dp", "tp"), [1, 3], (2, 4), {"dp": 1, "tp": 3}),
        (("dp_replicate", "dp_shard"), [1, 2], (2, 4), {"dp": 6}),
        (("pp", "x"), [2, 0], (4, 1), {"pp": 2}),
        (None, [0], (1,), {}),
        (("dp",), None, (1,), {}),
    ],
)
def test_roles_are_places_in_a_device_mesh(names, coordinate, shape, roles):
    assert identity.mesh_position(names, coordinate, shape) == roles


@pytest.mark.parametrize(("numbers", "text"), [({0, 1, 2, 8}, "0-2,8"), ({5}, "5"), (set(), ""), ({1, 3}, "1,3")])
def test_sets_of_cpus_are_written_as_lists(numbers, text):
    assert identity.number_list(numbers) == text
    assert identity.numbers_of(text) == numbers


@pytest.fixture
def sys_tree(tmp_path):
    for node, cpus in ((0, "0-3\n"), (1, "4-7\n")):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus)
    gpu = tmp_path / "bus/pci/devices/0000:3b:00.0"
    gpu.mkdir(parents=True)
    (gpu / "numa_node").write_text("1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("cpus", "bus", "node"),
    [({4, 5}, None, 1), ({0, 4}, None, None), ({0}, "0000:3b:00.0", 1), ({0}, "0000:99:00.0", None)],
)
def test_the_numa_node_is_that_of_the_gpu_or_of_all_cpus(sys_tree, cpus, bus, node):
    assert identity.numa_node(cpus, bus, sys_tree) == node


def test_what_chooses_the_interfaces_is_told_and_nothing_else_of_the_environment():
    environ = {"NCCL_IB_HCA": "=mlx5_3", "NCCL_SOCKET_IFNAME": "", "NCCL_DEBUG": "INFO", "SECRET": "x"}
    assert identity.network_variables(environ) == {"NCCL_IB_HCA": "=mlx5_3"}
