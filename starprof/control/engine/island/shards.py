"""This rank's shards of a model's parameters, as plain parameters that flat tensors can be made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import Parameter

from starprof.control.engine.dtensors import local
from starprof.control.engine.flat import Flat, Layout
from starprof.control.engine.gradients import gradients_of


class Shards:
    """Every parameter with a twin: a plain one, whose gradient is this rank's part of the parameter's (`Gradients`).

    Attributes:
        parameters: as the model has them.
        layout: of the twins.
    """

    def __init__(self, parameters: Sequence[Parameter], settings_bytes: int) -> None:
        """Make twins of these, which share the shards' memory; see `Layout` for the bytes."""
        self.parameters = parameters
        self._twins = [Parameter(local(parameter.detach())) for parameter in parameters]
        self.layout = Layout(self._twins, settings_bytes)
        self._gradients = gradients_of(self.layout)

    def collect(self, flat: Flat) -> None:
        """See `Gradients`."""
        self._show()
        self._gradients.collect(flat)

    def put(self, flat: Flat, scale: float = 1.0) -> None:
        """See `Gradients`."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
        self._show()
        self._gradients.put(flat, scale)
        for parameter, twin in zip(self.parameters, self._twins, strict=True):
            if twin.grad is None:
                parameter.grad = None

    def _show(self) -> None:
        for parameter, twin in zip(self.parameters, self._twins, strict=True):
            twin.grad = local(parameter.grad)
