"""Optimizers as shards run them: torch's own, on the shard's parameters, with the workers' hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from starprof.errors import UsageError
from starprof.ps.spec import Group, Spec

KNOWN: dict[str, type[Optimizer]] = {
    kind.__name__: kind
    for kind in (
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.Adamax,
        torch.optim.RMSprop,
        torch.optim.Adadelta,
    )
}
"""What an update of one parameter needs is with that parameter: each shard can run them on its own part."""

_NUMBERS = ("lr", "momentum", "dampening", "weight_decay", "eps", "alpha", "rho", "momentum_decay")
_PAIRS = ("betas",)
_FLAGS = ("nesterov", "amsgrad", "maximize", "centered", "decoupled_weight_decay")


def describe(model: torch.nn.Module, optimizer: Optimizer) -> tuple[Spec, list[torch.nn.Parameter]]:
    """What a model and its optimizer are to a parameter server, and the parameters in its order.

    Raises:
        UsageError: no shard could run this optimizer, or keep these parameters.
    """
    if type(optimizer).__name__ not in KNOWN or type(optimizer) is not KNOWN[type(optimizer).__name__]:
        raise UsageError(f"a parameter server has no {type(optimizer).__name__}, but {', '.join(KNOWN)}")
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    if not parameters:
        raise UsageError("the optimizer has no parameters")
    for one in parameters:
        if not one.dtype.is_floating_point or one.layout is not torch.strided:
            raise UsageError(f"a parameter server keeps real numbers in dense tensors, not {one.dtype}")
    known = {id(one): name for name, one in model.named_parameters()}
    names = tuple(known.get(id(one), f"parameter {place}") for place, one in enumerate(parameters))
    double = any(one.dtype is torch.float64 for one in parameters)
    groups, begin = [], 0
    for group in optimizer.param_groups:
        end = begin + len(group["params"])
        flags = {flag: bool(group[flag]) for flag in _FLAGS if flag in group}
        told = list(_told(group))
        numbers, values = tuple(name for name, _ in told), tuple(value for _, value in told)
        groups.append(Group(tuple(range(begin, end)), flags, numbers, values))
        begin = end
    shapes = tuple(tuple(one.shape) for one in parameters)
    kind = type(optimizer).__name__
    return Spec("float64" if double else "float32", names, shapes, kind, tuple(groups)), parameters


def hyper_of(optimizer: Optimizer) -> tuple[float, ...]:
    """The hyper-parameters as they are now, group after group."""
    return tuple([value for group in optimizer.param_groups for _, value in _told(group)])


def _told(group: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name in _NUMBERS:
        if name in group:
            yield name, float(group[name])
    for name in _PAIRS:
        if name in group:
            for place, value in enumerate(group[name]):
                yield f"{name} {place}", float(value)


class ShardOptimizer:
    """The optimizer of one shard.

    Attributes:
        tensors: the parameters, in the shard's order.
        optimizer: torch's.
    """

    def __init__(self, spec: Spec, places: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
        """Of these of the spec's parameters.

        Args:
            spec: the whole model.
            places: which of its parameters these are.
            tensors: their values, which are changed in place.
        """
        if spec.optimizer not in KNOWN:
            raise UsageError(f"a parameter server has no {spec.optimizer}")
        self.tensors = list(tensors)
        self._mine: list[int] = []
        by_place = dict(zip(places, tensors, strict=True))
        groups = []
        self._counts = [len(group.numbers) for group in spec.groups]
        for number, group in enumerate(spec.groups):
            held = [by_place[place] for place in group.parameters if place in by_place]
            if held:
                self._mine.append(number)
                groups.append({"params": held, **group.flags, **_given(group.numbers, group.values)})
        self._names = [group.numbers for group in spec.groups]
        self.optimizer = KNOWN[spec.optimizer](groups) if groups else None

    def step(self, hyper: Sequence[float]) -> None:
        """One update with these hyper-parameters; parameters whose `grad` is None stay as they are."""
        if self.optimizer is None:
            return
        begin, told = 0, []
        for names, count in zip(self._names, self._counts, strict=True):
            told.append(_given(names, hyper[begin : begin + count]))
            begin += count
        for group, number in zip(self.optimizer.param_groups, self._mine, strict=True):
            group.update(told[number])
        self.optimizer.step()

    def save(self) -> tuple[list[list[Any]], list[torch.Tensor]]:
        """The optimizer's state: what it has of each parameter, and the tensors among it, in that order."""
        told: list[list[Any]] = []
        tensors: list[torch.Tensor] = []
        state = self.optimizer.state if self.optimizer is not None else {}
        for place, one in enumerate(self.tensors):
            for name, value in sorted(state.get(one, {}).items()):
                if isinstance(value, torch.Tensor):
                    told.append([place, name, str(value.dtype).removeprefix("torch."), list(value.shape)])
                    tensors.append(value)
                else:
                    told.append([place, name, None, value])
        return told, tensors

    def load(self, told: Sequence[Sequence[Any]], tensors: Iterator[torch.Tensor]) -> None:
        """What `save` gave."""
        for place, name, dtype, value in told:
            assert self.optimizer is not None
            self.optimizer.state[self.tensors[place]][name] = value if dtype is None else next(tensors)


def _given(names: Sequence[str], values: Sequence[float]) -> dict[str, Any]:
    """Hyper-parameters of a group as torch names them."""
    group: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        base, _, place = name.partition(" ")
        if place:
            group[base] = (*group.get(base, ()), value)
        else:
            group[base] = value
    return group
