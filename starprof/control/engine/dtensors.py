"""Parameters and gradients of which a rank has a part only, without asking for the others' parts."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def local(tensor: Any) -> Any:
    """The part of a DTensor that is here; another tensor as it is. DTensor's own functions may call collectives."""
    return getattr(tensor, "_local_tensor", tensor)


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor, known without importing what defines it."""
    return hasattr(tensor, "_local_tensor")


def sharded_like(part: Tensor, like: Any) -> Tensor:
    """The tensor of which this is the part that is here, spread over ranks as another one of its shape is."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def replicated(value: Tensor, like: Tensor) -> Tensor:
    """A tensor that all ranks have: a DTensor on the mesh of another one that is one."""
    if not is_sharded(like):
        return value
    from torch.distributed.tensor import DTensor, Replicate

    mesh = like.device_mesh
    return DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)
