"""Copies from host to device: `Tensor.to` and `Tensor.cuda`, wrapped only once there is a device to copy to."""

from __future__ import annotations

from typing import Any

import torch

from starprof.hook.phases import H2D
from starprof.hook.session import Hook


def install(hook: Hook) -> None:
    """Wait for the GPU."""
    hook.recorder.use_gpu.append(lambda: wrap_copies(hook))


def wrap_copies(hook: Hook, device_type: str = "cuda") -> None:
    """Time what copies a CPU tensor to a device of this type.

    Only the calling thread's time: a copy from pinned memory goes on while the thread does.
    """
    recorder = hook.recorder

    def leave(token: int, _result: Any) -> None:
        recorder.machine.leave(token)

    def enter_to(args: Any, kwargs: Any) -> int | None:
        if args[0].device.type != "cpu":
            return None
        target = args[1] if len(args) > 1 else kwargs.get("device", kwargs.get("other"))
        return recorder.enter(H2D) if _device_type(target) == device_type else None

    def enter_cuda(args: Any, _kwargs: Any) -> int | None:
        return recorder.enter(H2D) if args[0].device.type == "cpu" else None

    hook.wrap(torch.Tensor, "to", enter_to, leave)
    if device_type == "cuda":
        hook.wrap(torch.Tensor, "cuda", enter_cuda, leave)


def _device_type(target: Any) -> str | None:
    if isinstance(target, str):
        return target.partition(":")[0]
    if isinstance(target, int) and not isinstance(target, bool):
        return "cuda"
    if isinstance(target, torch.Tensor):
        return str(target.device.type)
    return str(target.type) if isinstance(target, torch.device) else None
