"""What an update touches: the model's parameters, their optimizers, the loss's scaler. Keeps none of them alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from starprof.errors import StarprofError


class UpdatingError(StarprofError):
    """An update can't be made as the user's loop makes it."""


class Parts:
    """The user's objects, by weak references.

    Attributes:
        on_cuda: some of the parameters are on a GPU.
        scalers: of the loss, as far as they were seen at work on these optimizers.
    """

    def __init__(self, model: Module, optimizers: Iterable[Optimizer]) -> None:
        """Take the model's parameters, and those optimizers that hold some of them."""
        self._parameters = [weakref.ref(parameter) for parameter in model.parameters()]
        self._places = {id(parameter): place for place, parameter in enumerate(model.parameters())}
        self.on_cuda = any(parameter.is_cuda for parameter in model.parameters())
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self.scalers: weakref.WeakSet[GradScaler] = weakref.WeakSet()
        for optimizer in optimizers:
            if self.concerns(optimizer):
                self.add(optimizer)

    @property
    def parameters(self) -> list[Parameter]:
        """All parameters of the model that are alive, in its order."""
        return [parameter for reference in self._parameters if (parameter := reference()) is not None]

    @property
    def optimizers(self) -> list[Optimizer]:
        """The model's optimizers, in the order that they were met in."""
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    def add(self, optimizer: Optimizer) -> None:
        """One more optimizer of the model."""
        self._optimizers.append(weakref.ref(optimizer))

    def places(self, tensors: Iterable[Tensor]) -> tuple[int, ...]:
        """Where in the model's order these are; -1 for what is none of its parameters."""
        return tuple(self._places.get(id(tensor), -1) for tensor in tensors)

    def at(self, places: Iterable[int]) -> list[Parameter]:
        """The parameters at these places.

        Raises:
            UpdatingError: one of them is gone.
        """
        found = [self._parameters[place]() for place in places]
        alive = [parameter for parameter in found if parameter is not None]
        if len(alive) != len(found):
            raise UpdatingError("a parameter of the model is gone")
        return alive

    def has(self, optimizer: Any) -> bool:
        """Whether it is one of the model's optimizers."""
        return any(reference() is optimizer for reference in self._optimizers)

    def concerns(self, optimizer: Optimizer) -> bool:
        """Whether it holds any parameter of the model."""
        return any(id(p) in self._places for group in optimizer.param_groups for p in group["params"])

    def foreign(self, optimizer: Optimizer) -> int:
        """How many parameters it trains that are not the model's."""
        held = [p for group in optimizer.param_groups for p in group["params"]]
        return sum(p.requires_grad and id(p) not in self._places for p in held)

    def belongs(self, module: Module) -> bool:
        """Whether a module is the model, or a part of it, or around it."""
        return any(id(parameter) in self._places for parameter in module.parameters())
