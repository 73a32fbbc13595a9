"""Collectives that Python calls: time in the call, and in `Work.wait` for asynchronous ones.

DDP's own reduction is in C++ and is seen through arrivals; FSDP2, plain loops, pipelines and the user's own
barriers come through here.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch.distributed as dist

from starprof.hook.identity import mesh_position
from starprof.hook.lateimport import after_import
from starprof.hook.phases import BLOCKED
from starprof.hook.session import Hook

COLLECTIVES = (
    "_all_gather_base",
    "_reduce_scatter_base",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
)


def install(hook: Hook) -> None:
    """Wrap the collectives, waiting for them, and making process groups and device meshes."""
    if not dist.is_available():
        return
    from torch.distributed import device_mesh, distributed_c10d

    recorder = hook.recorder
    enter_wait, leave = hook.span(BLOCKED)

    def enter(_args: Any, _kwargs: Any) -> int | None:
        token = recorder.enter(BLOCKED)
        if token is not None and token != BLOCKED:
            recorder.collectives += 1
            if recorder.sync_point:
                recorder.sync_point = False
                recorder.arrival_ns = recorder.machine.since
        return token

    for name in COLLECTIVES:
        hook.wrap(distributed_c10d, name, enter, leave)
        if hasattr(dist, name):
            setattr(dist, name, getattr(distributed_c10d, name))
    hook.wrap(dist.Work, "wait", enter_wait, leave)
    hook.wrap(distributed_c10d, "init_process_group", _always, lambda _token, _result: _group_made(hook))
    dist.init_process_group = distributed_c10d.init_process_group
    hook.wrap(device_mesh.DeviceMesh, "__init__", lambda args, _kwargs: args[0], lambda mesh, _: _mesh_made(hook, mesh))
    after_import(
        "torch.distributed._functional_collectives", lambda module: hook.guard.attempt(_functional, hook, module)
    )


def _always(_args: Any, _kwargs: Any) -> bool:
    return True


def _group_made(hook: Hook) -> None:
    if dist.is_initialized():
        hook.recorder.follow_rank()


def _mesh_made(hook: Hook, mesh: Any) -> None:
    """The first mesh with named dimensions tells the roles."""
    names = getattr(mesh, "mesh_dim_names", None)
    roles = mesh_position(names, mesh.get_coordinate(), tuple(mesh.shape)) if names else {}
    if len(roles) > len(hook.recorder.roles):
        hook.recorder.roles = roles
        hook.recorder.describe()


def _functional(hook: Hook, module: ModuleType) -> None:
    """Functional collectives block where their result is first used."""
    hook.wrap(module, "wait_tensor", *hook.span(BLOCKED))
