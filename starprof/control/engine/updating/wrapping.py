"""Puts wrappers around the operations of an update, and takes them off again."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from torch.amp import GradScaler
from torch.compiler import is_dynamo_compiling
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from starprof.control.engine.updating.operations import CLIPS, Kind, Operation

OWNERS: dict[Kind, type] = {
    Kind.UNSCALE: GradScaler,
    Kind.SCALED_STEP: GradScaler,
    Kind.RESCALE: GradScaler,
    Kind.SCHEDULE: LRScheduler,
    Kind.AVERAGE: AveragedModel,
}


@dataclass(slots=True)
class Call:
    """A call of the user's that is looked at.

    Attributes:
        args: that it is made with.
        kwargs: the same.
        operation: what it is; None if it has nothing to do with the model.
        left_out: it is not made.
        result: what the user gets then.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    operation: Operation | None = None
    left_out: bool = False
    result: Any = None


class Observer(Protocol):
    """Who looks at the calls. Neither function may raise."""

    def begin(self, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Before a call; None if it is of no interest."""
        ...

    def end(self, call: Call) -> None:
        """After a call that `begin` has answered, if it was made."""
        ...


class Wrapping:
    """All wrappers of one observer.

    Functions are replaced wherever a loaded module holds them by name (`from torch.nn.utils import clip_grad_norm_`),
    methods in every class of the family that has its own. Where neither reaches, the changes to gradients are noticed.
    """

    def __init__(self, observer: Observer) -> None:
        """Nothing is wrapped yet."""
        self._observer = observer
        self._token = object()
        self._undo: list[Callable[[], None]] = []
        self._originals: dict[Kind, Callable[..., Any]] = {}

    def install(self) -> None:
        """Wrap all but the optimizers' steps."""
        for kind in CLIPS:
            self._function(kind)
        for kind, owner in OWNERS.items():
            for cls in _family(owner):
                self._method(kind, cls)

    def optimizer(self, optimizer: Optimizer) -> None:
        """Wrap an optimizer's step: in its class, and where a schedule has put a wrapper of its own into the object."""
        cls = next((cls for cls in type(optimizer).__mro__ if "step" in vars(cls)), None)
        if cls is not None:
            self._method(Kind.STEP, cls)
        inner = vars(optimizer).get("step")
        if inner is not None and not self._is_ours(inner):
            self._own_step(optimizer, inner)

    def restore(self) -> None:
        """Take all wrappers off again, where nobody has put another one around."""
        while self._undo:
            self._undo.pop()()
        self._originals = {}

    def clip(self, kind: Kind) -> Callable[..., Any]:
        """The function itself."""
        return self._originals.get(kind) or getattr(clip_grad, kind.value)

    def _function(self, kind: Kind) -> None:
        original = getattr(clip_grad, kind.value)
        wrapper = self._around(kind, original)
        self._originals[kind] = original
        replace_everywhere(original, wrapper)
        self._undo.append(lambda: replace_everywhere(wrapper, original))

    def _method(self, kind: Kind, cls: type) -> None:
        name = kind.value.partition(".")[2]
        original = vars(cls).get(name)
        if original is None or self._is_ours(original):
            return
        wrapper = self._around(kind, original)
        setattr(cls, name, wrapper)

        def undo() -> None:
            if vars(cls).get(name) is wrapper:
                setattr(cls, name, original)

        self._undo.append(undo)

    def _own_step(self, optimizer: Optimizer, inner: Callable[..., Any]) -> None:
        """A schedule's wrapper is called without the optimizer, and must stay one for the next schedule."""
        reference = weakref.ref(optimizer)
        whole = self._around(Kind.STEP, lambda _optimizer, *args, **kwargs: inner(*args, **kwargs))

        @functools.wraps(inner)
        def step(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return inner(*args, **kwargs)
            return whole(reference(), *args, **kwargs)

        step.starprof_wraps = self._token  # type: ignore[attr-defined]
        vars(optimizer)["step"] = step

        def undo() -> None:
            alive = reference()
            if alive is not None and vars(alive).get("step") is step:
                vars(alive)["step"] = inner

        self._undo.append(undo)

    def _is_ours(self, function: Any) -> bool:
        """Whether it is one of these wrappers, or one that was made around one: `wraps` copies the mark."""
        return getattr(function, "starprof_wraps", None) is self._token

    def _around(self, kind: Kind, original: Callable[..., Any]) -> Callable[..., Any]:
        """The user's function is called once with its own result, or not at all where the observer leaves it out."""
        observer = self._observer

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return original(*args, **kwargs)
            call = observer.begin(kind, args, kwargs)
            if call is None:
                return original(*args, **kwargs)
            if call.left_out:
                return call.result
            try:
                return original(*call.args, **call.kwargs)
            finally:
                observer.end(call)

        wrapper.starprof_wraps = self._token  # type: ignore[attr-defined]
        return wrapper


def _family(owner: type) -> Iterator[type]:
    yield owner
    subclasses: list[type] = owner.__subclasses__()
    for cls in subclasses:
        yield from _family(cls)


def replace_everywhere(old: Any, new: Any) -> None:
    """In every loaded module that holds `old` by some name."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name, value in list(vars(module).items()):
                if value is old:
                    setattr(module, name, new)
