"""Gradients of a model as one flat tensor, so that a round is one reduction.

    [ gradients | 1 where a parameter has a gradient, else 0 | bytes of the update's settings, one number each ]

A contribution is multiplied by its weight, settings are put in by one contributor only: the sum over contributors holds
the update, which parameters it concerns, and the settings to apply it with, the same bits for everybody who gets it.

Sums are in float32 for half precision too: a weighted sum of half gradients would lose in every addition what the
gradients still have, and everybody rounds the same sum to the same half gradients. `gradients` is the way between flat
tensors and the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch

PIECE = 1 << 16
"""Elements of a sum at a time: in float64 they stay in a core's own cache."""

SETTINGS_BYTES = 1024
"""Room for the hyper-parameters of an update, as text."""


class Layout:
    """Where what lies in the flat tensor.

    Attributes:
        parameters: those that take part, in the order that all ranks have them in.
        device: that they are on, all of them.
        dtype: of the flat tensor: float64 if any parameter is, else float32.
        edges: where each parameter begins, and where the last one ends.
        size: its number of elements.
        settings_bytes: room for settings.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], settings_bytes: int = SETTINGS_BYTES) -> None:
        """Lay out these parameters, of which there is at least one."""
        self.parameters = tuple(parameters)
        self.device = self.parameters[0].device
        self.dtype = torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32
        self.settings_bytes = settings_bytes
        self.edges = list(accumulate((p.numel() for p in self.parameters), initial=0))
        self._flags = slice(self.edges[-1], self.edges[-1] + len(self.parameters))
        self._settings = slice(self._flags.stop, self._flags.stop + settings_bytes)
        self.size = self._settings.stop

    @property
    def bytes(self) -> int:
        """Of a flat tensor."""
        return int(self.size * self.dtype.itemsize)


class Flat:
    """One flat tensor in the host's memory. Reused, never made during a step.

    Attributes:
        layout: of it.
        tensor: all of it.
        views: the gradients, in the shapes of their parameters.
        factor: what the gradients are still to be multiplied by, in a rank's own contribution.
        copied: event after which a device has done with it; None where there is no device.
    """

    def __init__(self, layout: Layout) -> None:
        """Make it, uninitialised; in pinned memory, where a device is to copy from and to it by itself."""
        self.layout = layout
        self.tensor = torch.empty(layout.size, dtype=layout.dtype, pin_memory=layout.device.type == "cuda")
        self.views = [
            self.tensor[begin:end].view(p.shape)
            for p, (begin, end) in zip(layout.parameters, pairwise(layout.edges), strict=True)
        ]
        self.factor = 1.0
        self.copied: Any = None
        self._values = self.tensor[: layout.edges[-1]]
        self._flags = self.tensor[layout._flags]
        self._settings = self.tensor[layout._settings]

    def settle(self) -> None:
        """Wait until no device reads or writes it any more."""
        if self.copied is not None:
            self.copied.synchronize()

    def take(self, other: Flat, weight: float) -> None:
        """Become another one's weighted contribution, without settings."""
        torch.mul(other._values, weight * other.factor, out=self._values)
        self._flags.copy_(other._flags)
        self._settings.zero_()
        self.factor = 1.0

    def add(self, other: Flat, weight: float) -> None:
        """Add another weighted contribution of the same rank."""
        self._values.add_(other._values, alpha=weight * other.factor)
        self._flags.add_(other._flags)

    def squared_norm(self) -> float:
        """Of the gradients, with what they are still to be multiplied by."""
        return self.factor**2 * dot(self._values, self._values)

    def product(self, other: Flat) -> float:
        """Inner product of the gradients of two flat tensors that nothing is to be multiplied by."""
        return dot(self._values, other._values)

    @property
    def used(self) -> list[bool]:
        """Of each parameter, whether somebody has a gradient."""
        return [flag != 0 for flag in self._flags.tolist()]

    @used.setter
    def used(self, used: Sequence[bool]) -> None:
        if all(used):
            self._flags.fill_(1.0)
        else:
            self._flags.copy_(torch.tensor(used))

    @property
    def settings(self) -> bytes:
        """What was written there, without the padding."""
        return bytes(self._settings.to(torch.uint8).tolist()).rstrip(b"\0")

    @settings.setter
    def settings(self, text: bytes) -> None:
        if len(text) > self.layout.settings_bytes:
            raise ValueError(f"{len(text)} bytes of settings, and room for {self.layout.settings_bytes}")
        self._settings.zero_()
        self._settings[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self.tensor.dtype)


def dot(one: torch.Tensor, other: torch.Tensor) -> float:
    """Inner product of two vectors in the host's memory, summed in float64 whatever their type.

    In pieces: the whole of them in float64 would be twice the memory, and a float32 sum loses four digits.
    """
    total = 0.0
    for a, b in zip(one.split(PIECE), other.split(PIECE), strict=True):
        left = a.double()
        total += float(torch.dot(left, left if one is other else b.double()))
    return total


class Pool:
    """Flat tensors that are not in use; they are given back, and taken, from any thread.

    Attributes:
        layout: of each.
    """

    def __init__(self, layout: Layout) -> None:
        """Begin with none."""
        self.layout = layout
        self._free: list[Flat] = []

    def take(self) -> Flat:
        """One whose values don't matter any more."""
        try:
            flat = self._free.pop()
        except IndexError:
            return Flat(self.layout)
        flat.settle()
        return flat

    def give(self, flat: Flat) -> None:
        """It is not needed any more."""
        self._free.append(flat)
