"""Times the forward pass at the models' root modules only.

Module hooks on everything cost microseconds per module call, and hooks on an instance would be pickled and copied
with the user's model. `Module.__call__` goes through the instance attribute `_compiled_call_impl` when that is
set, and torch drops it when a module is pickled or deep-copied: a root is timed through that attribute, which
costs nothing for all other modules. Roots are the outermost modules that own what an optimizer updates; models
that are wrapped (DDP, torch.compile) are known at once, others from the first optimizer step on.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import is_grad_enabled
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from starprof.hook.boundary import Guard
from starprof.hook.gpuclock import GPU_FORWARD
from starprof.hook.phases import EVAL, FORWARD, UNACCOUNTED
from starprof.hook.recorder import Recorder

SLOT = "_compiled_call_impl"
UNSEEN_STEPS = 2
"""Steps without any forward pass of a root after which their children are tried."""
DESCEND_LIMIT = 3


class RootCall(partial[Any]):
    """Stands in the `_compiled_call_impl` of a root; copies and pickles as None, which is torch's default.

    Calling it calls the root's forward, timed; as a `partial` it does so without a frame of its own.

    Attributes:
        inner: what stood in its place.
    """

    inner: Callable[..., Any] | None

    @classmethod
    def of(cls, call: Callable[..., Any], inner: Callable[..., Any] | None) -> RootCall:
        """Make one."""
        self = cls(call)
        self.inner = inner
        return self

    def __deepcopy__(self, _memo: Any) -> None:
        return None

    def __copy__(self) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class Roots:
    """The root modules known so far.

    Attributes:
        evaluating: a root is in eval mode, and nothing has shown that it is trained all the same.
    """

    def __init__(self, recorder: Recorder, guard: Guard) -> None:
        self._recorder = recorder
        self._guard = guard
        self._roots: dict[int, weakref.ref[Module]] = {}
        self._modes: set[int] = set()
        self.evaluating = False
        self._seen = False
        self._unseen_steps = 0
        self._descents = 0

    def modules(self) -> list[Module]:
        """The roots that still exist."""
        return [m for reference in self._roots.values() if (m := reference()) is not None]

    def add(self, module: Module) -> None:
        """Time this module's forward as a root's."""
        key = id(module)
        reference = self._roots.get(key)
        inner = module.__dict__.get(SLOT)
        if reference is not None and reference() is module and isinstance(inner, RootCall):
            return
        if isinstance(inner, RootCall):
            inner = inner.inner
        self._roots[key] = weakref.ref(module)
        self._modes.add(key)
        for wrapped in ("module", "_orig_mod"):
            if isinstance(module.__dict__.get("_modules", {}).get(wrapped), Module):
                self._modes.add(id(module._modules[wrapped]))
        call = self._guard.around(_caller(weakref.ref(module), inner), self._enter, self._leave)
        # Not setattr: wrappers such as torch.compile's pass attributes on to the module inside.
        module.__dict__[SLOT] = RootCall.of(call, inner)

    def drop(self, module: Module) -> None:
        """This module is inside another root now."""
        call = module.__dict__.get(SLOT)
        if isinstance(call, RootCall):
            del module.__dict__[SLOT]
            if call.inner is not None:
                module.__dict__[SLOT] = call.inner
        self._roots.pop(id(module), None)

    def learn(self, parameters: Iterable[torch.Tensor]) -> None:
        """Find the roots that own these parameters, unless the known ones do."""
        wanted = {id(p) for p in parameters}
        for module in self.modules():
            wanted -= {id(p) for p in module.parameters()}
        if wanted:
            for module in outermost_owners(wanted):
                self.add(module)

    def end_of_step(self, step: int) -> int:
        """Try the roots' children when the roots are never called themselves. Returns when to call again."""
        if self._seen or self._descents >= DESCEND_LIMIT:
            return sys.maxsize
        self._unseen_steps += 1
        if self._unseen_steps > UNSEEN_STEPS:
            self._unseen_steps = 0
            self._descents += 1
            for module in self.modules():
                for child in module.children():
                    if any(p.requires_grad for p in child.parameters()):
                        self.add(child)
        return step + 1

    # Spans.

    def _enter(self, _args: Any, _kwargs: Any) -> int | None:
        recorder = self._recorder
        if get_ident() != recorder.owner and not recorder.counts():
            return None
        training = is_grad_enabled()
        if training and self.evaluating:
            # Training in eval mode: the interval was no evaluation.
            self.evaluate(begins=False)
        self._seen = True
        machine = recorder.machine
        token = machine.enter(FORWARD if training else EVAL)
        if not recorder.started and token == UNACCOUNTED:
            recorder.begin_step_again()
        if recorder.gpu is not None and machine.current == FORWARD != token:
            recorder.gpu.begin(GPU_FORWARD)
        return token

    def _leave(self, token: int, _result: Any) -> None:
        recorder = self._recorder
        machine = recorder.machine
        if recorder.gpu is not None and machine.current == FORWARD != token:
            recorder.gpu.end(GPU_FORWARD)
        machine.leave(token)

    def mode_changed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called for every `module.train(mode)`: a root in eval mode means evaluation until it trains again."""
        if id(args[0]) in self._modes and self._recorder.counts():
            mode = args[1] if len(args) > 1 else kwargs.get("mode", True)
            self.evaluate(begins=not mode)

    def evaluate(self, *, begins: bool) -> None:
        """Begin or end an interval in which what is unaccounted is evaluation."""
        machine = self._recorder.machine
        self.evaluating = begins
        if begins and machine.current == UNACCOUNTED:
            machine.enter(EVAL)
        elif not begins and machine.current == EVAL:
            machine.leave(UNACCOUNTED)


def _caller(reference: weakref.ref[Module], inner: Callable[..., Any] | None) -> Callable[..., Any]:
    """What `__call__` would do without us; holds no strong reference, which would be a cycle."""
    if inner is not None:
        return inner

    def call(*args: Any, **kwargs: Any) -> Any:
        module = reference()
        assert module is not None  # it is just being called
        return module._call_impl(*args, **kwargs)

    return call


def outermost_owners(wanted: set[int]) -> list[Module]:
    """The outermost living modules that contain parameters with these ids; one pass over the collector's objects."""
    # type(), not isinstance: that is slower, and would run properties of lazy objects.
    classes = _subclasses(Module)
    modules = [o for o in gc.get_objects() if type(o) in classes and "_modules" in o.__dict__]
    parents: dict[int, list[Module]] = {}
    for module in modules:
        for child in module._modules.values():
            if child is not None:
                parents.setdefault(id(child), []).append(module)
    level = [m for m in modules if any(id(p) in wanted for p in m._parameters.values() if p is not None)]
    tops: dict[int, Module] = {}
    visited: set[int] = set()
    while level:
        module = level.pop()
        if id(module) in visited:
            continue
        visited.add(id(module))
        above = parents.get(id(module), [])
        level += above
        if not above:
            tops[id(module)] = module
    return list(tops.values())


def _subclasses(of: type) -> set[type]:
    found = {of}
    waiting = [of]
    while waiting:
        new: set[type] = set(waiting.pop().__subclasses__()) - found
        found |= new
        waiting += new
    return found


def framework_of(modules: list[Module], in_group: bool) -> str:
    """What carries the gradients: ddp, fsdp2, fsdp1, collectives or none."""
    for module in modules:
        if isinstance(module, DistributedDataParallel):
            return "ddp"
        names = {cls.__name__ for cls in type(module).__mro__}
        if "FSDPModule" in names:
            return "fsdp2"
        if "FullyShardedDataParallel" in names:
            return "fsdp1"
        inner = module._modules.get("_orig_mod") or module._modules.get("module")
        if inner is not None and (found := framework_of([inner], in_group)) not in ("collectives", "none"):
            return found
    return "collectives" if in_group else "none"
