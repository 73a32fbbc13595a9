"""Models: wrapping in DDP or torch.compile tells the roots, `train` and `eval` tell evaluation."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from starprof.hook.arrival import ddp_synced
from starprof.hook.lateimport import after_import
from starprof.hook.phases import BLOCKED
from starprof.hook.roots import SLOT, RootCall
from starprof.hook.session import Hook


def install(hook: Hook) -> None:
    """Wrap DDP's constructor and buffer broadcast, `Module.train` and in-place `Module.compile`."""
    hook.wrap(DistributedDataParallel, "__init__", _self, lambda ddp, _result: _ddp_made(hook, ddp))
    # Broadcasting buffers waits for rank 0, in C++, inside DDP's forward.
    hook.wrap(DistributedDataParallel, "_sync_buffers", *hook.span(BLOCKED))
    hook.wrap(Module, "train", lambda args, kwargs: hook.roots.mode_changed(args, kwargs))
    hook.wrap(Module, "compile", _self, lambda module, _result: _compiled_in_place(hook, module))
    hook.wrap(Module, "_replicate_for_data_parallel", _self, lambda _module, replica: _forget(replica))
    after_import("torch._dynamo.eval_frame", lambda module: hook.guard.attempt(_wrap_compiled, hook, module))


def _self(args: Any, _kwargs: Any) -> Any:
    return args[0]


def _ddp_made(hook: Hook, ddp: Any) -> None:
    if not hasattr(ddp, "reducer"):
        return  # the constructor failed
    recorder = hook.recorder
    if not recorder.activate():
        return
    hook.roots.drop(ddp.module)
    hook.roots.add(ddp)
    hook.arrival.track(ddp.module.parameters(), ddp_synced(ddp))
    recorder.framework = "ddp"
    recorder.roles.setdefault("dp", dist.get_rank(ddp.process_group))
    recorder.detail["ddp_bucket_bytes"] = getattr(ddp, "bucket_bytes_cap", None)
    recorder.describe()


def _compiled_in_place(hook: Hook, module: Module) -> None:
    """`module.compile()` has replaced our entry."""
    if any(root is module for root in hook.roots.modules()):
        hook.roots.add(module)


def _forget(replica: Any) -> None:
    """A replica shares its original's attributes, and would call the original."""
    if isinstance(replica, Module) and isinstance(call := replica.__dict__.get(SLOT), RootCall):
        replica.__dict__[SLOT] = call.inner


def _wrap_compiled(hook: Hook, eval_frame: ModuleType) -> None:
    def enter(args: Any, kwargs: Any) -> Any:
        inner = args[1] if len(args) > 1 else kwargs.get("mod")
        if not any(root is inner for root in hook.roots.modules()):
            return None
        # Its call is what torch.compile traces: it must be torch's own.
        hook.roots.drop(inner)
        return args[0]

    hook.wrap(eval_frame.OptimizedModule, "__init__", enter, lambda module, _result: hook.roots.add(module))
