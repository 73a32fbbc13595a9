"""Hyper-parameters of optimizers as plain values that another rank can be told, and set for one update."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Value = float | int | list[float | int]
Hyper = list[list[dict[str, Value]]]
"""Per optimizer, per parameter group: every number and every tuple of numbers. Goes through JSON unchanged."""
Read = Callable[[Tensor], Any]

NOTES_OF_SCHEDULES = frozenset({"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"})
"""What schedules keep in the groups for themselves; every rank has its own schedules, equally far."""


def snapshot(optimizers: Sequence[Optimizer]) -> Hyper:
    """The hyper-parameters as they are now. Switches (`amsgrad`, `fused`) are no numbers and stay out."""
    return [[_numbers(group, _read) for group in optimizer.param_groups] for optimizer in optimizers]


def marks(optimizers: Sequence[Optimizer]) -> Hyper:
    """The same, to be compared with later ones of this rank: it waits for no device.

    A number on a device stands as which tensor it is and how often that was written to.
    """
    return [[_numbers(group, _mark) for group in optimizer.param_groups] for optimizer in optimizers]


def same(one: Hyper, other: Hyper) -> bool:
    """Whether two snapshots mean the same; one of them may have been a JSON text."""
    return _shape(one) == _shape(other) and all(
        _same_value(group[key], twin[key])
        for groups, twins in zip(one, other, strict=True)
        for group, twin in zip(groups, twins, strict=True)
        for key in group
    )


class Borrowed:
    """Hyper-parameters that are set for one update and given back after it."""

    def __init__(self) -> None:
        """Nothing is set yet."""
        self._changed: list[tuple[dict[str, Any], str, Any, Value]] = []

    def take(self, optimizers: Sequence[Optimizer], hyper: Hyper) -> None:
        """Set those that differ.

        Raises:
            ValueError: the optimizers have other parameter groups than those that the values are from.
        """
        here = snapshot(optimizers)
        if _shape(here) != _shape(hyper):
            raise ValueError("the update was made with other parameter groups than this rank's optimizers have")
        for optimizer, groups, values in zip(optimizers, here, hyper, strict=True):
            for group, old, new in zip(optimizer.param_groups, groups, values, strict=True):
                for key in old:
                    if not _same_value(old[key], new[key]):
                        self._changed.append((group, key, _set(group, key, new[key]), new[key]))

    def give_back(self) -> None:
        """Set them back; what a schedule has changed since stays as the schedule wants it."""
        changed, self._changed = self._changed, []
        for group, key, old, new in changed:
            now = _plain(group[key], _read)
            if now is not None and _same_value(now, new):
                _set(group, key, old)


def _numbers(group: dict[str, Any], read: Read) -> dict[str, Value]:
    named = {key: value for key, value in group.items() if key not in NOTES_OF_SCHEDULES and key != "params"}
    plain = {key: _plain(value, read) for key, value in named.items()}
    return {key: value for key, value in plain.items() if value is not None}


def _read(value: Tensor) -> Any:
    return value.item()


def _mark(value: Tensor) -> Any:
    return value.item() if value.device.type == "cpu" else hash((id(value), value._version))


def _plain(value: Any, read: Read) -> Value | None:
    """A number or a list of numbers, None for everything else."""
    if isinstance(value, Tensor):
        return _number(read(value)) if value.ndim == 0 else None
    if isinstance(value, list | tuple):
        numbers = [_number(read(entry) if isinstance(entry, Tensor) and entry.ndim == 0 else entry) for entry in value]
        known = [number for number in numbers if number is not None]
        return known if known and len(known) == len(numbers) else None
    return _number(value)


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else None


def _set(group: dict[str, Any], key: str, value: Any) -> Any:
    """Set a hyper-parameter in the form it has; returns what it was. A tensor stays the one that it is."""
    old = group[key]
    if isinstance(old, Tensor):
        kept = old.clone()
        old.copy_(value) if isinstance(value, Tensor) else old.fill_(value)
        return kept
    if isinstance(old, list | tuple):
        if any(isinstance(entry, Tensor) for entry in old):
            kept = type(old)(entry.clone() if isinstance(entry, Tensor) else entry for entry in old)
            for entry, new in zip(old, value, strict=True):
                entry.copy_(new) if isinstance(new, Tensor) else entry.fill_(new)
            return kept
        value = type(old)(value)
    group[key] = value
    return old


def _shape(hyper: Hyper) -> list[list[list[tuple[str, int]]]]:
    def length(value: Value) -> int:
        return len(value) if isinstance(value, list) else -1

    return [[sorted((key, length(value)) for key, value in group.items()) for group in groups] for groups in hyper]


def _same_value(one: Value, other: Value) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same_value(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, list) or isinstance(other, list):
        return False
    return one == other or (math.isnan(one) and math.isnan(other))
