"""Gradients of a model as one flat tensor, so that a round is one reduction.

    [ gradients | 1 where a parameter has a gradient, else 0 | bytes of the update's settings, one number each ]

A contribution is multiplied by its weight, settings are put in by one contributor only: the sum over contributors holds
the update, which parameters it concerns, and the settings to apply it with, the same bits for everybody who gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

SETTINGS_BYTES = 1024
"""Room for the hyper-parameters of an update, as text."""


class Layout:
    """Where what lies in the flat tensor.

    Attributes:
        parameters: those that take part, in the order that all ranks have them in.
        dtype: of the flat tensor: float64 if any parameter is, else float32.
        size: its number of elements.
        settings_bytes: room for settings.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], settings_bytes: int = SETTINGS_BYTES) -> None:
        """Lay out these parameters."""
        self.parameters = tuple(parameters)
        self.dtype = torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32
        self.settings_bytes = settings_bytes
        self._edges = list(accumulate((p.numel() for p in self.parameters), initial=0))
        self._flags = slice(self._edges[-1], self._edges[-1] + len(self.parameters))
        self._settings = slice(self._flags.stop, self._flags.stop + settings_bytes)
        self.size = self._settings.stop


class Flat:
    """One flat tensor and the views of it that belong to the parameters. Reused, never made during a step."""

    def __init__(self, layout: Layout) -> None:
        """Make it, uninitialised."""
        self.layout = layout
        on_device = any(p.is_cuda for p in layout.parameters)
        self.tensor = torch.empty(layout.size, dtype=layout.dtype, pin_memory=on_device)
        self._views = [
            self.tensor[begin:end].view(p.shape)
            for p, (begin, end) in zip(layout.parameters, pairwise(layout._edges), strict=True)
        ]
        self._values = self.tensor[: layout._edges[-1]]
        self._flags = self.tensor[layout._flags]
        self._settings = self.tensor[layout._settings]

    def collect(self, scale: float = 1.0) -> None:
        """Take the parameters' gradients, times `scale`; no gradient counts as zero. The settings are left alone."""
        gradients = [p.grad for p in self.layout.parameters]
        if all(g is not None for g in gradients):
            torch._foreach_copy_(self._views, gradients)
            self._flags.fill_(1.0)
        else:
            there = [place for place, g in enumerate(gradients) if g is not None]
            self._values.zero_()
            self._flags.zero_()
            if there:
                torch._foreach_copy_([self._views[i] for i in there], [gradients[i] for i in there])
                self._flags[there] = 1.0
        if scale != 1.0:
            self._values.mul_(scale)

    def take(self, other: Flat, weight: float) -> None:
        """Become another one's weighted contribution, without settings."""
        torch.mul(other._values, weight, out=self._values)
        self._flags.copy_(other._flags)
        self._settings.zero_()

    def add(self, other: Flat, weight: float) -> None:
        """Add another weighted contribution of the same rank."""
        self._values.add_(other._values, alpha=weight)
        self._flags.add_(other._flags)

    def put(self, scale: float = 1.0) -> None:
        """Make this the parameters' gradients, times `scale`; None where nobody has one."""
        used = self._flags.tolist()
        targets, sources = [], []
        for parameter, flag, view in zip(self.layout.parameters, used, self._views, strict=True):
            if not flag:
                parameter.grad = None
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            targets.append(parameter.grad)
            sources.append(view)
        if targets:
            torch._foreach_copy_(targets, sources)
            if scale != 1.0:  # never the update itself: others must get the same bits
                torch._foreach_mul_(targets, scale)

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


class Pool:
    """Flat tensors that are not in use; they are given back from any thread."""

    def __init__(self, layout: Layout) -> None:
        """Begin with none."""
        self._layout = layout
        self._free: list[Flat] = []

    def take(self) -> Flat:
        """One whose values don't matter any more."""
        return self._free.pop() if self._free else Flat(self._layout)

    def give(self, flat: Flat) -> None:
        """It is not needed any more."""
        self._free.append(flat)
