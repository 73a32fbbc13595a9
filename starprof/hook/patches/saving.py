"""Saving checkpoints: torch.save, torch.distributed.checkpoint, safetensors."""

from __future__ import annotations

from types import ModuleType

import torch

from starprof.hook.lateimport import after_import
from starprof.hook.phases import CHECKPOINT
from starprof.hook.session import Hook

LATE: dict[str, tuple[str, ...]] = {
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    "safetensors.torch": ("save_file", "save_model"),
}
"""Modules that load late (if ever) and their functions."""


def install(hook: Hook) -> None:
    """Wrap what writes checkpoints."""
    hook.wrap(torch, "save", *hook.span(CHECKPOINT))
    for name, functions in LATE.items():

        def wrap_all(module: ModuleType, functions: tuple[str, ...] = functions) -> None:
            for function in functions:
                hook.wrap(module, function, *hook.span(CHECKPOINT))

        after_import(name, lambda module, wrap_all=wrap_all: hook.guard.attempt(wrap_all, module))  # type: ignore[misc]
