"""Who this rank is: rank numbers, roles, device, CPUs; the columns of table `rank`.

Precedence for the rank: an initialised process group, then the variables of the launchers (torchrun, Slurm,
Open MPI, PMI), then 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from starprof.model import env
from starprof.model.rundata import GPU_PCI, TIMEOUT_S

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
ATTEMPT_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
NETWORK_VARIABLES = ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "GLOO_SOCKET_IFNAME")
MAX_CHOICE = 500

MESH_ROLES: Mapping[str, str] = {
    "dp": "dp",
    "ddp": "dp",
    "data": "dp",
    "dp_replicate": "dp",
    "replicate": "dp",
    "fsdp": "dp",
    "dp_shard": "dp",
    "shard": "dp",
    "tp": "tp",
    "tensor": "tp",
    "model": "tp",
    "pp": "pp",
    "pipe": "pp",
    "pipeline": "pp",
    "stage": "pp",
}
"""Usual names of device-mesh dimensions and the role that a position in them is."""


def first_number(variables: tuple[str, ...], environ: Mapping[str, str]) -> int | None:
    """The first of these variables that holds a number."""
    for name in variables:
        value = environ.get(name, "")
        if value.removeprefix("-").isdecimal():
            return int(value)
    return None


def in_process_group() -> bool:
    """Whether torch.distributed is initialised here."""
    return bool(dist.is_available() and dist.is_initialized())


def global_rank(environ: Mapping[str, str] = os.environ) -> int:
    """This process's rank."""
    if in_process_group():
        return int(dist.get_rank())
    return first_number(RANK_VARIABLES, environ) or 0


def attempt(environ: Mapping[str, str] = os.environ) -> int:
    """Which start of the job this is: elastic launchers count restarts."""
    return first_number((ATTEMPT_VARIABLE,), environ) or 0


def node(environ: Mapping[str, str] = os.environ) -> int:
    """Node id that the recorder gave this machine."""
    return first_number((env.NODE,), environ) or 0


def mesh_position(
    names: tuple[str, ...] | None, coordinate: list[int] | None, shape: tuple[int, ...]
) -> dict[str, int]:
    """Roles from a device mesh: {"dp": 1, "tp": 0}; several data-parallel dimensions count as one.

    Args:
        names: the mesh's dimension names, None when it has none.
        coordinate: this rank's place in each dimension, None when it is not part of the mesh.
        shape: size of each dimension.
    """
    roles: dict[str, int] = {}
    if not names or coordinate is None:
        return roles
    for name, place, size in zip(names, coordinate, shape, strict=True):
        role = MESH_ROLES.get(name)
        if role is not None:
            roles[role] = roles.get(role, 0) * size + place
    return roles


def number_list(numbers: set[int]) -> str:
    """{0, 1, 2, 8} -> "0-2,8"."""
    parts: list[str] = []
    run: list[int] = []
    for number in [*sorted(numbers), None]:
        if run and number != run[-1] + 1:
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        if number is not None:
            run.append(number)
    return ",".join(parts)


def numbers_of(text: str) -> set[int]:
    """Inverse of `number_list`: "0-2,8" -> {0, 1, 2, 8}."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if part:
            low, _, high = part.partition("-")
            numbers.update(range(int(low), int(high or low) + 1))
    return numbers


def numa_node(cpus: set[int], gpu_bus_id: str | None, sys: Path = Path("/sys")) -> int | None:
    """NUMA node of the GPU, else of the CPUs when they all lie in one."""
    try:
        if gpu_bus_id is not None:
            gpu_node = int((sys / "bus/pci/devices" / gpu_bus_id / "numa_node").read_text())
            return gpu_node if gpu_node >= 0 else None
        for folder in (sys / "devices/system/node").glob("node[0-9]*"):
            if cpus <= numbers_of((folder / "cpulist").read_text()):
                return int(folder.name.removeprefix("node"))
    except (OSError, ValueError):
        return None
    return None


def _gpu() -> tuple[str, str | None, str | None]:
    """(device, UUID, PCI address) of the GPU this rank computes on; nothing is initialised for it."""
    if not torch.cuda.is_initialized():
        return "cpu", None, None
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    bus = None
    if hasattr(properties, "pci_bus_id"):
        bus = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    return f"cuda:{index}", None if uuid is None else f"GPU-{uuid}", bus


def _device_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What chooses and numbers the devices of this process, for the agent, which sees all GPUs of the node."""
    return {name: environ[name] for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER") if name in environ}


def network_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What chooses the interfaces of this process; names of interfaces, nothing else."""
    return {name: environ[name][:MAX_CHOICE] for name in NETWORK_VARIABLES if environ.get(name)}


def _of_device(device: str, bus: str | None) -> dict[str, str]:
    """Facts of a rank that computes on a GPU."""
    if device == "cpu":
        return {}
    return {**_device_variables(), **({GPU_PCI: bus} if bus is not None else {})}


def _timeout(device: str) -> dict[str, float]:
    """How long the default process group waits for a collective; nothing where its backend does not tell."""
    try:
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device(device.partition(":")[0]))
        return {TIMEOUT_S: backend.options._timeout.total_seconds()}
    except (AttributeError, RuntimeError, ValueError):
        return {}


def describe(framework: str, roles: Mapping[str, int], detail: Mapping[str, Any]) -> dict[str, Any]:
    """The row of table `rank` as far as it is known now."""
    grouped = in_process_group()
    device, uuid, bus = _gpu()
    cpus = os.sched_getaffinity(0)
    return {
        "attempt": attempt(),
        "rank": global_rank(),
        "node": node(),
        "local_rank": first_number(LOCAL_RANK_VARIABLES, os.environ),
        "world_size": dist.get_world_size() if grouped else first_number(WORLD_SIZE_VARIABLES, os.environ) or 1,
        "pid": os.getpid(),
        "device": device,
        "gpu_uuid": uuid,
        "numa_node": numa_node(cpus, bus),
        "cpus": number_list(cpus),
        **{f"role_{role}": roles.get(role) for role in ("dp", "tp", "pp")},
        "framework": framework,
        "backend": dist.get_backend() if grouped else None,
        "torch_version": str(torch.__version__),
        "detail": {**detail, **network_variables(), **_of_device(device, bus), **(_timeout(device) if grouped else {})},
    }
