"""All of a rank that an update changes, as bytes, for a rank whose own state is void."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer


class State:
    """The state of one model and of what belongs to it."""

    def __init__(self, model: Module, optimizers: Iterable[Optimizer], others: Iterable[Any] = ()) -> None:
        """Remember whose state it is.

        Args:
            model: the module that all ranks have.
            optimizers: its optimizers, in the same order on all ranks.
            others: whatever else has `state_dict` and `load_state_dict` (schedules, the scaler of the loss), likewise.
        """
        self._model = model
        self._optimizers = list(optimizers)
        self._others = list(others)

    def save(self) -> bytes:
        """As it is now."""
        stream = io.BytesIO()
        torch.save(
            {
                "tensors": [tensor.detach() for tensor in self._tensors()],
                "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
                "others": [other.state_dict() for other in self._others],
            },
            stream,
        )
        return stream.getvalue()

    def load(self, state: bytearray) -> None:
        """Become as another rank was; parameters stay the objects that they are.

        Raises:
            ValueError: it is the state of another model.
        """
        read = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
        tensors = list(self._tensors())
        theirs = read["tensors"]
        if [t.shape for t in tensors] != [t.shape for t in theirs]:
            raise ValueError("another rank's state is that of another model")
        if len(self._optimizers) != len(read["optimizers"]) or len(self._others) != len(read["others"]):
            raise ValueError("another rank's state has other optimizers or schedules")
        with torch.no_grad():
            for tensor, value in zip(tensors, theirs, strict=True):
                tensor.copy_(value)
        for part, value in zip([*self._optimizers, *self._others], [*read["optimizers"], *read["others"]], strict=True):
            part.load_state_dict(value)

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from self._model.parameters()
        yield from self._model.buffers()
