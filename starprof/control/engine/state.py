"""All of a rank that an update changes, as bytes, for a rank whose own state is void."""

from __future__ import annotations

import io
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from starprof.control.engine.dtensors import is_sharded, local, sharded_like

Untaken = list[tuple[str, dict[str, Any]]]
"""Kind and state of what another rank's loop has used, and this one's has not yet."""


class State:
    """The state of one model and of what belongs to it; of what is sharded, this rank's part."""

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
                "optimizers": [_packed(optimizer.state_dict()) for optimizer in self._optimizers],
                "others": [(kind_of(other), other.state_dict()) for other in self._others],
            },
            stream,
        )
        return stream.getvalue()

    def load(self, state: bytearray) -> Untaken:
        """Become as another rank was; parameters stay the objects that they are.

        What is first used at the end of some epoch, such as an average of the last ones, may be known to one of the two
        ranks only. What the other one does not know it keeps as it is.

        Returns:
            What this rank does not know yet; it has that state as soon as it does.

        Raises:
            ValueError: it is the state of another model.
        """
        read = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
        tensors = list(self._tensors())
        theirs = read["tensors"]
        if [t.shape for t in tensors] != [t.shape for t in theirs]:
            raise ValueError("another rank's state is that of another model")
        if len(self._optimizers) != len(read["optimizers"]):
            raise ValueError("another rank's state has other optimizers")
        with torch.no_grad():
            for tensor, value in zip(tensors, theirs, strict=True):
                tensor.copy_(value)
        for optimizer, packed in zip(self._optimizers, read["optimizers"], strict=True):
            value = _unpacked(packed, optimizer)
            optimizer.load_state_dict(value)
            _keep_types(optimizer, value)
        theirs_of: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        for kind, value in read["others"]:
            theirs_of[kind].append(value)
        for other in self._others:
            if theirs_of[kind_of(other)]:
                other.load_state_dict(theirs_of[kind_of(other)].popleft())
        return [(kind, value) for kind, values in theirs_of.items() for value in values]

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from map(local, self._model.parameters())
        yield from map(local, self._model.buffers())


def kind_of(other: Any) -> str:
    """By what it is told apart from what else belongs to a model, on all ranks alike."""
    return f"{type(other).__module__}.{type(other).__qualname__}"


def _packed(state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state, of what is sharded only what is here, and which values those are."""
    values = {place: {name: local(value) for name, value in own.items()} for place, own in state["state"].items()}
    sharded = [(place, name) for place, own in state["state"].items() for name in own if is_sharded(own[name])]
    return {**state, "state": values, "sharded": sharded}


def _unpacked(packed: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """The state as it was before `_packed`, for this rank's parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    places = [place for group in packed["param_groups"] for place in group["params"]]
    of = dict(zip(places, parameters, strict=True))
    for place, name in packed.pop("sharded"):
        values = packed["state"][place]
        values[name] = sharded_like(values[name], of[place])
    return packed


def _keep_types(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Undo what torch does on loading: it makes a parameter's state of the parameter's type, such as a float32 copy."""
    places = [place for group in state["param_groups"] for place in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, parameter in zip(places, parameters, strict=True):
        mine = optimizer.state.get(parameter, {})
        for name, value in state["state"].get(place, {}).items():
            if torch.is_tensor(value) and torch.is_tensor(mine.get(name)) and mine[name].dtype != value.dtype:
                mine[name] = value.to(mine[name].device)
