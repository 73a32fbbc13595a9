"""Where the engine sits in DistributedDataParallel: around an iteration's first forward and last backward pass.

The last one is that which would have synchronised. In rounds DDP must not reduce, and the user's code must not notice:
what it reads and sets as `require_backward_grad_sync` (`no_sync` does, some loops do it by hand) stays its own wish,
and DDP is told no.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.parallel import DistributedDataParallel as Model

WISH = "require_backward_grad_sync"


class Driver(Protocol):
    """What drives one model's ranks.

    Attributes:
        native: DDP reduces itself.
    """

    native: bool

    def before_step(self) -> None:
        """Before an iteration's first forward pass."""
        ...

    def before_backward(self, roots: Any) -> None:
        """A backward pass that synchronises begins at these."""
        ...

    def after_backward(self) -> None:
        """The gradients of an iteration are there; reduced, where steps are native."""
        ...


class _Watched:
    """One model: who drives it, its parameters (DDP doesn't notice either if they change), and where it is."""

    __slots__ = ("driver", "fill", "in_iteration", "on_cuda", "parameters", "seen", "sync_due")

    def __init__(self, driver: Driver | None, parameters: list[torch.nn.Parameter]) -> None:
        self.driver = driver
        self.parameters = parameters
        self.on_cuda = any(parameter.is_cuda for parameter in parameters)
        self.fill = False
        self.in_iteration = False
        self.sync_due = False
        self.seen: list[tuple[ref[torch.Tensor] | None, int]] = []

    def look(self) -> None:
        """Note the gradients before a backward pass, without keeping them in memory."""
        gradients = [parameter.grad for parameter in self.parameters]
        self.seen = [(None, -1) if g is None else (ref(g), g._version) for g in gradients]

    def has_changed(self) -> bool:
        """Whether any gradient has since."""
        for parameter, (seen, version) in zip(self.parameters, self.seen, strict=True):
            gradient = parameter.grad
            if gradient is not None and (gradient._version != version or seen is None or seen() is not gradient):
                return True
        return False

    def is_captured(self) -> bool:
        """Whether the work is only noted, for a CUDA graph: none of ours may be in it."""
        return self.on_cuda and bool(torch.cuda.is_current_stream_capturing())


class DdpPatches:
    """All of it; in place from `install` to `remove`."""

    def __init__(self, meet: Callable[[Model], Driver | None]) -> None:
        """Nothing is patched yet.

        Args:
            meet: called at a model's first forward pass with gradients; who drives it, None for nobody.
        """
        self._meet = meet
        self._models: WeakKeyDictionary[Model, _Watched] = WeakKeyDictionary()
        self._originals: list[tuple[Any, str, Any]] = []
        self._depth = 0
        self._last: Model | None = None

    def install(self) -> None:
        """Patch DDP and `torch.autograd.backward`."""
        self._replace(Model, "forward", self._around_forward(Model.forward))
        self._replace(Model, "no_sync", _no_sync)
        self._replace(torch.autograd, "backward", self._around_backward(torch.autograd.backward))
        self._originals.append((Model, WISH, None))
        setattr(Model, WISH, _Wish(self._in_rounds))

    def remove(self) -> None:
        """Put everything back; models keep the wishes that users had set."""
        for holder, name, original in reversed(self._originals):
            if original is None:
                delattr(holder, name)
            else:
                setattr(holder, name, original)
        self._originals = []

    def forget(self) -> None:
        """In a forked child: its models are nobody's business."""
        self._models = WeakKeyDictionary()
        self._last = None

    def leave_alone(self, model: Model) -> None:
        """Nobody drives this model any more."""
        if model in self._models:
            self._models[model].driver = None

    def native_again(self, model: Model) -> None:
        """DDP synchronises from the next forward pass on, buffers first: rank 0's, as it always does.

        A reducer that looks for unused parameters has noted in rounds who was used, and now insists on gradients of
        them, even where they are not used this time. They get zeros for this one step, the same on all ranks.
        """
        model.require_forward_param_sync = True
        self._models[model].fill = model.find_unused_parameters and not model.static_graph

    def rounds_begin(self, model: Model) -> None:
        """The next forward pass must not send buffers round, which waits for everybody."""
        model.require_forward_param_sync = False

    def _replace(self, holder: Any, name: str, replacement: Any) -> None:
        self._originals.append((holder, name, getattr(holder, name)))
        setattr(holder, name, replacement)

    def _in_rounds(self, model: Model) -> bool:
        watched = self._models.get(model)
        return watched is not None and watched.driver is not None and not watched.driver.native

    def _around_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward(model: Model, *args: Any, **kwargs: Any) -> Any:
            if not is_dynamo_compiling() and torch.is_grad_enabled():
                self._before_forward(model)
            return original(model, *args, **kwargs)

        return forward

    def _before_forward(self, model: Model) -> None:
        watched = self._models.get(model)
        if watched is None:
            watched = self._models[model] = _Watched(self._meet(model), _parameters(model))
        if watched.driver is None or watched.is_captured():
            return
        if not watched.in_iteration:
            watched.driver.before_step()
            watched.in_iteration = True
        if model.__dict__.get(WISH, True) and not watched.sync_due:
            watched.sync_due = True
            watched.look()
        self._last = model

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or self._last is None:
                return original(*args, **kwargs)
            if not self._depth:
                self._before_backward(self._last, args[0] if args else kwargs.get("tensors"))
            self._depth += 1  # re-entrant checkpointing calls it inside a backward pass
            try:
                result = original(*args, **kwargs)
            finally:
                self._depth -= 1
            if not self._depth:
                self._after_backward()
            return result

        return backward

    def _before_backward(self, model: Model, roots: Any) -> None:
        watched = self._models.get(model)
        if watched is not None and watched.driver is not None and watched.sync_due and not watched.is_captured():
            watched.driver.before_backward(roots)
        if watched is not None and watched.fill and watched.sync_due:
            watched.fill = False
            for parameter in watched.parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)

    def _after_backward(self) -> None:
        model = self._last
        watched = None if model is None else self._models.get(model)
        if watched is None or watched.driver is None or not watched.sync_due or watched.is_captured():
            return
        if not watched.has_changed():
            return  # it was the backward pass of another model
        watched.sync_due = watched.in_iteration = False
        watched.seen = []
        watched.driver.after_backward()


class _Wish:
    """The attribute `require_backward_grad_sync`: users set and see their wish, DDP sees no while in rounds."""

    def __init__(self, in_rounds: Callable[[Model], bool]) -> None:
        self._in_rounds = in_rounds

    def __get__(self, model: Model | None, owner: type) -> Any:
        if model is None:
            return self
        return model.__dict__.get(WISH, True) and not self._in_rounds(model)

    def __set__(self, model: Model, value: bool) -> None:
        model.__dict__[WISH] = value


@contextmanager
def _no_sync(model: Model) -> Iterator[None]:
    """As DDP's own, on the wish: what that one would restore in rounds is not what the user had set."""
    wish = model.__dict__.get(WISH, True)
    model.__dict__[WISH] = False
    try:
        yield
    finally:
        model.__dict__[WISH] = wish


def _parameters(model: Model) -> list[torch.nn.Parameter]:
    """Those that DDP reduces, in the order in which the model names them."""
    ignored = model.parameters_to_ignore
    return [p for name, p in model.module.named_parameters() if p.requires_grad and name not in ignored]
