"""When a rank's own backward pass is over: its last gradient of the step is accumulated.

In a synchronised backward pass every rank takes equally long, so the moment of the last gradient is what tells
the rank that is waited for from those that wait. Which parameter comes last is learned: hooks on all parameters
note the order during the first steps (and again at a few later ones), then only the last ones keep a hook, and
the one that completes the first bucket. Several models and losses have several last parameters. FSDP2 has no
such moment: its gradients are set after the reduction.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor

from starprof.hook.boundary import Guard, uncompiled
from starprof.hook.recorder import Recorder

FIRST_BUCKET_BYTES = 1 << 20
"""DDP's first bucket: the first gradients up to this size."""
LEARN_STEPS = 3
"""Steps of the first learning: DDP re-orders its buckets in its second one."""
CHECK_STEPS = 2
CHECK_AT = frozenset((16, 128, 1024))
CHECK_EVERY = 4096
MISSES_BEFORE_LEARNING = 2
MAX_LAST = 16

Synced = Callable[[], bool]
"""Whether the backward pass under way reduces gradients."""


def never_synced() -> bool:
    """For parameters outside DDP."""
    return False


def ddp_synced(ddp: Any) -> Synced:
    """DDP decides in the forward pass whether the backward pass reduces, and notes it in an attribute."""
    reference = weakref.ref(ddp)

    def synced() -> bool:
        module = reference()
        return module is not None and module.require_forward_param_sync

    return synced


def _compiles_backward() -> bool:
    """Compiled autograd would trace hooks into its graph: the arrival is not seen there."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))


class ArrivalTracker:
    """Keeps the hooks on parameters.

    Attributes:
        learning: steps that hooks stay on all parameters.
    """

    def __init__(self, recorder: Recorder, guard: Guard) -> None:
        self._recorder = recorder
        self._guard = guard
        self._parameters: dict[int, tuple[weakref.ref[Tensor], Synced]] = {}
        self._handles: list[Any] = []
        self._order: list[int] = []
        self._last: dict[int, None] = {}
        self._first: dict[int, None] = {}
        self.learning = 0
        self._fired = False
        self._synced = False
        self._misses = 0
        self._next_relearn = 0

    def track(self, parameters: Iterable[Tensor], synced: Synced = never_synced) -> None:
        """Follow these parameters too; those of a DDP stay with it, or go to the newer one."""
        new = False
        for parameter in parameters:
            known = id(parameter) in self._parameters and synced is never_synced
            if not known and parameter.requires_grad and parameter.is_leaf:
                self._parameters[id(parameter)] = (weakref.ref(parameter), synced)
                new = True
        if new:
            self.learn(LEARN_STEPS)

    def learn(self, steps: int) -> None:
        """Put hooks on all parameters for the next steps."""
        with uncompiled():
            self._learn(steps)

    def _learn(self, steps: int) -> None:
        if _compiles_backward():
            return
        self._remove_hooks()
        self._recorder.attend()
        self.learning = steps
        self._order.clear()
        hooks: dict[Synced, Callable[..., None]] = {}
        for key, (reference, synced) in list(self._parameters.items()):
            parameter = reference()
            if parameter is None:
                del self._parameters[key]
                self._last.pop(key, None)
                self._first.pop(key, None)
            elif parameter.requires_grad:
                hook = hooks.get(synced) or hooks.setdefault(
                    synced, self._guard.callback(partial(self._note_order, synced))
                )
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _keep_learned(self) -> None:
        """Leave hooks only where they are needed."""
        self._remove_hooks()
        for key in {**self._last, **self._first}:
            entry = self._parameters.get(key)
            parameter = entry[0]() if entry else None
            if entry is None or parameter is None or not parameter.requires_grad:
                continue
            if key in self._first:
                hook = self._guard.callback(self._first_bucket)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
            if key in self._last:
                hook = self._guard.callback(partial(self._arrived, entry[1]))
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    # Hooks, called by autograd.

    def _arrived(self, synced: Synced, _parameter: Tensor) -> None:
        recorder = self._recorder
        if not recorder.depth:
            return
        waits = synced is not never_synced and synced()
        recorder.arrival_ns = recorder.machine.arrive(waits)
        self._fired = True
        self._synced = waits
        if recorder.gpu is not None:
            recorder.gpu.arrive()

    def _note_order(self, synced: Synced, parameter: Tensor) -> None:
        self._arrived(synced, parameter)
        self._order.append(id(parameter))

    def _first_bucket(self, _parameter: Tensor) -> None:
        recorder = self._recorder
        if recorder.depth:
            recorder.first_bucket_ns = recorder.clock()

    # Called by the loop.

    def end_of_backward(self) -> None:
        """A backward pass is over: look at the order, and at whether there was an arrival."""
        if self._order:
            self._learn_from_order()
        fired, self._fired = self._fired, False
        if fired:
            self._misses = 0
            # Without DDP the gradients are reduced by the next collective, if by any.
            self._recorder.sync_point = not self._synced
        elif self._last and not self.learning:
            self._misses += 1
            if self._misses >= MISSES_BEFORE_LEARNING and self._recorder.step >= self._next_relearn:
                self._next_relearn = 2 * self._recorder.step + LEARN_STEPS
                self.learn(LEARN_STEPS)

    def _learn_from_order(self) -> None:
        order, self._order = self._order, []
        self._last.pop(order[-1], None)
        self._last[order[-1]] = None
        while len(self._last) > MAX_LAST:
            del self._last[next(iter(self._last))]
        if self._parameters[order[0]][1] is never_synced:
            return  # no bucket is filled
        size = 0
        for key in order:
            parameter = self._parameters[key][0]()
            size += parameter.numel() * parameter.element_size() if parameter is not None else 0
            if size >= FIRST_BUCKET_BYTES:
                break
        self._first[key] = None

    def end_of_step(self, step: int) -> int:
        """Stop learning when it was long enough, and check from time to time. Returns when to call again."""
        if self.learning:
            self.learning -= 1
            if not self.learning:
                self._keep_learned()
        elif is_check(step):
            self._first.clear()
            self.learn(CHECK_STEPS)
        return step + 1 if self.learning else next_check(step)


def is_check(step: int) -> bool:
    """Whether the order is learned again after this step."""
    return step in CHECK_AT or step % CHECK_EVERY == CHECK_EVERY - 1


def next_check(step: int) -> int:
    """The first check after a step."""
    regular = step - (step + 1) % CHECK_EVERY + CHECK_EVERY
    return min([regular, *(check for check in CHECK_AT if check > step)])
