"""Where the engine sits in FSDP2: around an iteration's first forward and last backward pass of the root module.

In native steps nothing of ours is in the way of FSDP's reductions. While rounds are on, its groups of parameters are
told that there are no replicas: what they reduce inside of the island is then what they leave in the gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn import Module, Parameter

from starprof.control.engine.ddp import Driver
from starprof.control.engine.dtensors import local
from starprof.control.engine.island.topology import groups, inside_only
from starprof.hook.boundary import Guard
from starprof.hook.lateimport import after_import

STATE = "torch.distributed.fsdp._fully_shard._fsdp_state"


class _Watched:
    """One model: who drives it, its shards, and where in its iteration it is."""

    __slots__ = ("driver", "in_iteration", "meshes", "parameters")

    def __init__(self, driver: Driver | None, parameters: Sequence[Parameter]) -> None:
        self.driver = driver
        self.parameters = parameters
        self.in_iteration = False
        self.meshes: list[tuple[Any, Any, Any]] = []


class FsdpPatches:
    """All of it; in place from `install` on."""

    def __init__(self, guard: Guard, meet: Callable[[Module], Driver | None]) -> None:
        """Nothing is patched yet.

        Args:
            guard: takes what goes wrong while patching.
            meet: called at a root module's first forward pass with gradients; who drives it, None for nobody.
        """
        self._guard = guard
        self._meet = meet
        self._models: WeakKeyDictionary[Module, _Watched] = WeakKeyDictionary()
        self._depth = 0
        self._last: Module | None = None

    def install(self) -> None:
        """Patch FSDP2 once the job uses it."""
        after_import(STATE, lambda module: self._guard.attempt(self._patch, module))

    def forget(self) -> None:
        """In a forked child: its models are nobody's business."""
        self._models = WeakKeyDictionary()
        self._last = None

    def rounds_begin(self, model: Module) -> None:
        """From the next backward pass on it reduces inside of the island only."""
        watched = self._models[model]
        for group in groups(model):
            whole, after = group.mesh_info, group.post_forward_mesh_info
            watched.meshes.append((group, whole, after))
            group.mesh_info = inside_only(whole)
            if after is whole:  # it is compared with the other one
                group.post_forward_mesh_info = group.mesh_info

    def native_again(self, model: Module) -> None:
        """From the next backward pass on it reduces over all replicas, as it always does."""
        watched = self._models[model]
        for group, whole, after in watched.meshes:
            group.mesh_info, group.post_forward_mesh_info = whole, after
        watched.meshes = []

    def _patch(self, module: ModuleType) -> None:
        state = module.FSDPState
        state._root_pre_forward = self._around_root(state._root_pre_forward)
        torch.autograd.backward = self._around_backward(torch.autograd.backward)

    def _around_root(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def root_pre_forward(state: Any, module: Module, *args: Any, **kwargs: Any) -> Any:
            result = original(state, module, *args, **kwargs)
            # From here on it is known whether this is the root; its parameters are still shards.
            if state._is_root and torch.is_grad_enabled() and not is_dynamo_compiling():
                self._before_forward(module)
            return result

        return root_pre_forward

    def _before_forward(self, model: Module) -> None:
        watched = self._models.get(model)
        if watched is None:
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            watched = self._models[model] = _Watched(self._meet(model), trained)
        if watched.driver is None:
            return
        if not watched.in_iteration:
            watched.driver.before_step()
            watched.in_iteration = True
        self._last = model

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            model = self._last
            watched = None if model is None or is_dynamo_compiling() or self._depth else self._models.get(model)
            if model is None or watched is None or watched.driver is None or not watched.in_iteration:
                return original(*args, **kwargs)
            before = [_note(parameter) for parameter in watched.parameters]
            self._depth += 1  # re-entrant checkpointing calls it inside a backward pass
            try:
                result = original(*args, **kwargs)
            finally:
                self._depth -= 1
            changed = any(_note(p) != note for p, note in zip(watched.parameters, before, strict=True))
            if changed and all(group.reduce_grads and group.all_reduce_grads for group in groups(model)):
                watched.in_iteration = False
                watched.driver.after_backward()
            return result

        return backward


def _note(parameter: Parameter) -> tuple[int, int] | None:
    """Tells one state of a gradient from the next."""
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), local(gradient)._version)
