"""A small convolutional network: one convolution, ReLU, mean over 2 x 2 pixels, one linear layer."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from starprof.simulation.training.models.base import Model
from starprof.simulation.training.parameters import Floats32, Labels, Layout, cross_entropy

KERNEL = 3
POOL = 2


class Cnn(Model):
    """For square pictures of one channel, without padding."""

    def __init__(self, side: int, classes: int, channels: int = 8) -> None:
        """Pictures of `side` x `side` pixels; what a 3 x 3 kernel leaves of them must be even."""
        self.side = side
        self.inner = side - KERNEL + 1
        if self.inner % POOL:
            raise ValueError(f"pictures of {side} x {side} leave {self.inner} x {self.inner}: not even")
        self.pooled = self.inner // POOL
        self.channels = channels
        self.layout = Layout(
            {
                "kernel": (KERNEL * KERNEL, channels),
                "bias": (channels,),
                "w": (self.pooled * self.pooled * channels, classes),
                "b": (classes,),
            }
        )

    def _forward(self, parts: dict[str, Floats32], samples: Floats32) -> tuple[Floats32, Floats32, Floats32]:
        """Patches (B, P, 9), maps (B, P, C), pooled (B, F)."""
        pictures = samples.reshape(-1, self.side, self.side)
        patches = sliding_window_view(pictures, (KERNEL, KERNEL), axis=(1, 2)).reshape(len(samples), -1, KERNEL**2)
        maps = np.maximum(patches @ parts["kernel"] + parts["bias"], 0.0)
        cells = maps.reshape(-1, self.pooled, POOL, self.pooled, POOL, self.channels)
        return patches, maps, cells.mean(axis=(2, 4)).reshape(len(samples), -1)

    def logits(self, flat: Floats32, samples: Floats32) -> Floats32:
        """See `Model`."""
        parts = self.layout.parts(flat)
        return self._forward(parts, samples)[2] @ parts["w"] + parts["b"]

    def gradient(self, flat: Floats32, samples: Floats32, labels: Labels, weights: Floats32) -> tuple[float, Floats32]:
        """See `Model`."""
        parts = self.layout.parts(flat)
        patches, maps, pooled = self._forward(parts, samples)
        loss, back = cross_entropy(pooled @ parts["w"] + parts["b"], labels, weights)
        result = np.empty(self.layout.size, np.float32)
        grads = self.layout.parts(result)
        np.matmul(pooled.T, back, out=grads["w"])
        grads["b"][...] = back.sum(axis=0)
        cells = (back @ parts["w"].T).reshape(-1, self.pooled, 1, self.pooled, 1, self.channels) / POOL**2
        spread = np.broadcast_to(cells, (len(samples), self.pooled, POOL, self.pooled, POOL, self.channels))
        inner = spread.reshape(-1, self.channels) * (maps.reshape(-1, self.channels) > 0)
        np.matmul(patches.reshape(-1, KERNEL**2).T, inner, out=grads["kernel"])
        grads["bias"][...] = inner.sum(axis=0)
        return loss, result
