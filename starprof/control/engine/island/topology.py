"""Which ranks hold a replica together, read from the mesh that a model is sharded over."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.nn import Module

from starprof.errors import StarprofError

ONLY_RESOURCES = "nobody can be left behind there, and only resource actions are possible"


class NoIslandsError(StarprofError):
    """The model isn't one of islands; the message says what it is."""


@dataclass(frozen=True, slots=True)
class Island:
    """A group of ranks with one replica, seen from one of them.

    Attributes:
        ranks: of the island, in the order of their shards.
        position: of this rank's shard.
        leaders: the first rank of every island, which is also the island's name.
    """

    ranks: tuple[int, ...]
    position: int
    leaders: tuple[int, ...]

    @property
    def name(self) -> int:
        """The first of its ranks."""
        return self.ranks[0]

    @property
    def leads(self) -> bool:
        """Whether this rank does."""
        return self.position == 0

    @property
    def followers(self) -> tuple[int, ...]:
        """All ranks but the leader."""
        return self.ranks[1:]


def island_of(model: Module) -> Island:
    """The island of this rank.

    Raises:
        NoIslandsError: there are none, or they are not what rounds can be made of.
    """
    meshes = {id(group.mesh_info.mesh): group.mesh_info for group in groups(model)}
    if not meshes:
        raise NoIslandsError("fully_shard has no parameters to shard in this model; apply it to modules that have some")
    if len(meshes) > 1:
        raise NoIslandsError(f"the model is sharded over {len(meshes)} different meshes; rounds work with one")
    (info,) = meshes.values()
    if info.shard_mesh_dim is None:
        raise NoIslandsError("the model is in replicate(), which rounds don't know; use DistributedDataParallel")
    if info.replicate_mesh_dim is None or info.mesh.size(info.replicate_mesh_dim) == 1:
        raise NoIslandsError(
            f"the model is in FSDP without replicas, where every rank owns a part of each parameter: {ONLY_RESOURCES}; "
            "a mesh of two dimensions (HSDP) makes replicas"
        )
    if info.mesh.ndim != len((info.shard_mesh_dim, info.replicate_mesh_dim)):
        raise NoIslandsError(f"the model's mesh has {info.mesh.ndim} dimensions; rounds know replicas and shards only")
    return _found(info.mesh.mesh.movedim(info.shard_mesh_dim, -1).tolist(), dist.get_rank(), dist.get_world_size())


def _found(rows: list[list[int]], rank: int, world: int) -> Island:
    """The island of a rank; each row is one."""
    if sorted(place for row in rows for place in row) != list(range(world)):
        raise NoIslandsError("the model's mesh has not all ranks of the job, each once; make it of all of them")
    (ranks,) = (row for row in rows if rank in row)
    return Island(tuple(ranks), ranks.index(rank), tuple(sorted(row[0] for row in rows)))


def is_root(model: Any) -> bool:
    """Whether it is a module that fully_shard was applied to."""
    return hasattr(model, "_get_fsdp_state")


def groups(model: Module) -> Iterator[Any]:
    """The groups of parameters that FSDP reduces together; known from the model's first forward pass on."""
    state = model._get_fsdp_state()
    for inner in state._state_ctx.all_states:
        yield from inner._fsdp_param_groups


def inside_only(info: Any) -> Any:
    """What FSDP goes by, without the replicas: it reduces inside of the island, and leaves that in the gradients.

    It asks the class whether there are replicas to reduce over. Groups of processes are the same ones.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

    inside = copy.copy(info)
    inside.__class__ = FSDPMeshInfo
    return inside
