"""The operations that make up an update, as they can be compared and done again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from numbers import Real
from typing import Any

from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from starprof.control.engine.updating.parts import Parts, UpdatingError


class Kind(Enum):
    """What a loop may do with gradients, by the name that users know it by."""

    CLIP_NORM = "clip_grad_norm_"
    CLIP_VALUE = "clip_grad_value_"
    UNSCALE = "GradScaler.unscale_"
    SCALED_STEP = "GradScaler.step"
    STEP = "Optimizer.step"
    RESCALE = "GradScaler.update"
    SCHEDULE = "LRScheduler.step"
    AVERAGE = "AveragedModel.update_parameters"


CLIPS = frozenset({Kind.CLIP_NORM, Kind.CLIP_VALUE})
STEPS = frozenset({Kind.SCALED_STEP, Kind.STEP})
PACED = frozenset({Kind.SCHEDULE, Kind.AVERAGE})
"""What goes with the iterations of the training, of which an update may be a fraction."""
_BARE = frozenset({Kind.STEP, Kind.SCHEDULE})
"""Without arguments they are what they are by their object alone."""
READS_GRADIENTS = CLIPS | STEPS | {Kind.UNSCALE}
"""Wrong once unknown code has changed the gradients; and without effect, always, in an update that is left out."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One of them. Equal ones do the same to the same objects.

    Attributes:
        kind: what it is.
        name: of the object that does it, for people.
        target: the object whose method it is; for clipping None.
        places: of the parameters that are clipped, in the model's order.
        args: the other arguments: plain values, or weak references to objects of the user's.
        kwargs: the same by name.
        problem: why it can't be done again; "" if it can.
    """

    kind: Kind
    name: str
    target: weakref.ref[Any] | None
    places: tuple[int, ...] = ()
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    problem: str = ""

    def again(self, parts: Parts, clip: Callable[[Kind], Callable[..., Any]]) -> Callable[[], Any]:
        """What does it again, once called.

        Raises:
            UpdatingError: an object that it needs is gone.
        """
        args = [_alive(value) for value in self.args]
        kwargs = {name: _alive(value) for name, value in self.kwargs}
        if self.kind in CLIPS:
            function, tensors = clip(self.kind), parts.at(self.places)
            return lambda: function(tensors, *args, **kwargs)
        method = getattr(_alive(self.target), self.kind.value.partition(".")[2])
        return lambda: method(*args, **kwargs)

    def of(self, optimizer: Optimizer) -> bool:
        """Whether it steps this optimizer."""
        if self.kind is Kind.STEP:
            return self.target is not None and self.target() is optimizer
        return self.kind is Kind.SCALED_STEP and any(
            isinstance(value, weakref.ref) and value() is optimizer
            for value in (*self.args, *(value for _, value in self.kwargs))
        )


def _alive(value: Any) -> Any:
    if not isinstance(value, weakref.ref):
        return value
    target = value()
    if target is None:
        raise UpdatingError("an object that the training loop made its updates with is gone")
    return target


def capture(kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], parts: Parts) -> Operation | None:
    """What a call is, None if it has nothing to do with the model. The parameters to clip must be a list."""
    if kind in CLIPS:
        return _clipping(kind, args, kwargs, parts)
    target, rest = args[0], args[1:]
    if not _concerned(kind, target, rest, kwargs, parts):
        return None
    return _held(kind, target, (), rest, kwargs, _problem_of(target, rest, kwargs, parts))


class Captured:
    """Calls that were captured before: in most loops all are the same ones in every iteration."""

    def __init__(self, parts: Parts) -> None:
        """Of updates of these parts."""
        self._parts = parts
        self._bare: dict[tuple[Kind, int], Operation] = {}

    def of(self, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:
        """See `capture`."""
        if kind not in _BARE or len(args) != 1 or kwargs:
            return capture(kind, args, kwargs, self._parts)
        target = args[0]
        known = self._bare.get((kind, id(target)))
        if known is not None and known.target is not None and known.target() is target:
            return known
        found = capture(kind, args, kwargs, self._parts)
        if found is not None:
            self._bare[kind, id(target)] = found
        return found


def _clipping(kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], parts: Parts) -> Operation | None:
    tensors = args[0] if args else kwargs["parameters"]
    places = parts.places([tensors] if isinstance(tensors, Tensor) else tensors)
    if all(place < 0 for place in places):
        return None
    rest = {name: value for name, value in kwargs.items() if name != "parameters"}
    problem = "it clips tensors that are not the model's along with those of the model" if min(places) < 0 else ""
    return _held(kind, None, places, args[1:], rest, problem)


def _concerned(kind: Kind, target: Any, rest: tuple[Any, ...], kwargs: dict[str, Any], parts: Parts) -> bool:
    if kind in (Kind.UNSCALE, Kind.SCALED_STEP):
        ours = parts.has(rest[0] if rest else kwargs.get("optimizer"))
        if ours:
            parts.scalers.add(target)
        return ours
    if kind is Kind.RESCALE:
        return target in parts.scalers
    if kind is Kind.STEP:
        return parts.has(target)
    if kind is Kind.SCHEDULE:
        return parts.has(getattr(target, "optimizer", None))
    return parts.belongs(rest[0] if rest else kwargs["model"])


def _problem_of(target: Any, rest: tuple[Any, ...], kwargs: dict[str, Any], parts: Parts) -> str:
    if isinstance(target, ReduceLROnPlateau):
        return "it depends on a metric of this rank; call it once an epoch, after the loop over the loader"
    if isinstance(target, GradScaler) and len(parts.scalers) > 1:
        return "there is more than one GradScaler"
    values = (*rest, *kwargs.values())
    if not isinstance(target, LRScheduler) and any(callable(v) and not isinstance(v, Module) for v in values):
        return "it is called with a closure, which computes gradients again"
    return ""


def _held(
    kind: Kind,
    target: Any,
    places: tuple[int, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    problem: str,
) -> Operation:
    held = [_hold(value) for value in args]
    named = [(name, _hold(value)) for name, value in sorted(kwargs.items())]
    unknown = [value for value in (*held, *(value for _, value in named)) if isinstance(value, _Unknown)]
    if unknown and not problem:
        problem = f"its argument of type {unknown[0].type} can't be used again"
    name = kind.value
    if target is not None:
        name = f"{type(target).__name__}.{kind.value.partition('.')[2]}"
    reference = None if target is None else weakref.ref(target)
    return Operation(kind, name, reference, places, tuple(held), tuple(named), problem)


@dataclass(frozen=True, slots=True)
class _Unknown:
    """Stands for an argument that is kept neither by value nor by reference."""

    type: str


def _hold(value: Any) -> Any:
    """A plain value as it is, an object of the user's by weak reference."""
    if value is None or isinstance(value, bool | str | Real):
        return value
    if isinstance(value, Optimizer | Module):
        return weakref.ref(value)
    return _Unknown(type(value).__name__)
