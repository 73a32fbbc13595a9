"""A worker's parameters and gradients as the shards have them: one buffer each, shard after shard, always the same."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from starprof.ps.spec import Spec, spread


class Flat:
    """Of one model.

    Attributes:
        shards: of how many the buffers are.
    """

    def __init__(self, spec: Spec, parameters: Sequence[torch.nn.Parameter], shards: int, half: str) -> None:
        """Make the buffers.

        Args:
            spec: what the model is.
            parameters: of the model, in the spec's order.
            shards: how many there are.
            half: type that gradients are sent in, "" for their own.
        """
        self.shards = shards
        self._parameters = list(parameters)
        self._places = spread(spec.sizes, shards)
        self._sizes = spec.sizes
        self._accelerated = any(one.is_cuda for one in parameters)
        dtype = getattr(torch, spec.dtype)
        self._bounds = self._bounds_of_shards()
        self._gradients = self._buffer(dtype)
        self._values = self._buffer(dtype)
        self._sent = self._buffer(getattr(torch, half)) if half else self._gradients
        self._gradient_parts = self._parts(self._gradients)
        self._value_parts = self._parts(self._values)

    def _bounds_of_shards(self) -> list[tuple[int, int]]:
        bounds, begin = [], 0
        for places in self._places:
            end = begin + sum(self._sizes[place] for place in places)
            bounds.append((begin, end))
            begin = end
        return bounds

    def _buffer(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(self._bounds[-1][1], dtype=dtype, pin_memory=self._accelerated)

    def _parts(self, flat: torch.Tensor) -> dict[int, torch.Tensor]:
        """Of each parameter, by its place."""
        parts = {}
        begin = 0
        for places in self._places:
            for place in places:
                parts[place] = flat[begin : begin + self._sizes[place]].view(self._parameters[place].shape)
                begin += self._sizes[place]
        return parts

    def into(self, shard: int) -> memoryview:
        """Where a shard's parameters go."""
        begin, end = self._bounds[shard]
        return _bytes(self._values[begin:end])

    def values(self, shard: int) -> memoryview:
        """The model's parameters of a shard as they are now."""
        with torch.no_grad():
            for place in self._places[shard]:
                self._value_parts[place].copy_(self._parameters[place])
        return self.into(shard)

    def gather(self) -> None:
        """Take the gradients from the model."""
        with torch.no_grad():
            for place, one in enumerate(self._parameters):
                if one.grad is not None:
                    self._gradient_parts[place].copy_(one.grad, non_blocking=self._accelerated)
                else:
                    self._gradient_parts[place].zero_()
        if self._accelerated:
            torch.cuda.synchronize()
        if self._sent is not self._gradients:
            self._sent.copy_(self._gradients)

    def gradients(self, shard: int) -> memoryview:
        """What was taken, of one shard."""
        begin, end = self._bounds[shard]
        return _bytes(self._sent[begin:end])

    def unused(self, shard: int) -> tuple[int, ...]:
        """Parameters of a shard without a gradient, by their place in it."""
        places = self._places[shard]
        return tuple([at for at, place in enumerate(places) if self._parameters[place].grad is None])

    def load(self) -> None:
        """Give the model the parameters that have come."""
        with torch.no_grad():
            for place, one in enumerate(self._parameters):
                one.copy_(self._value_parts[place], non_blocking=self._accelerated)
        if self._accelerated:
            torch.cuda.synchronize()


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy())
