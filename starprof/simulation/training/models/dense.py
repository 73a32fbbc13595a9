"""Logistic regression, and a multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from starprof.simulation.training.models.base import Model
from starprof.simulation.training.parameters import Floats32, Labels, Layout, cross_entropy


class Dense(Model):
    """Linear layers with ReLU between them; without hidden ones it is logistic regression."""

    def __init__(self, features: int, classes: int, hidden: Sequence[int] = ()) -> None:
        """With so many units in each hidden layer."""
        sizes = [features, *hidden, classes]
        self.layers = len(sizes) - 1
        shapes: dict[str, tuple[int, ...]] = {}
        for place, (inputs, outputs) in enumerate(pairwise(sizes)):
            shapes[f"w{place}"] = (inputs, outputs)
            shapes[f"b{place}"] = (outputs,)
        self.layout = Layout(shapes)

    def _forward(self, parts: dict[str, Floats32], samples: Floats32) -> list[Floats32]:
        """What goes into each layer, and the logits."""
        values = [samples]
        for place in range(self.layers):
            out = values[-1] @ parts[f"w{place}"] + parts[f"b{place}"]
            values.append(np.maximum(out, 0.0) if place + 1 < self.layers else out)
        return values

    def logits(self, flat: Floats32, samples: Floats32) -> Floats32:
        """See `Model`."""
        return self._forward(self.layout.parts(flat), samples)[-1]

    def gradient(self, flat: Floats32, samples: Floats32, labels: Labels, weights: Floats32) -> tuple[float, Floats32]:
        """See `Model`."""
        parts = self.layout.parts(flat)
        values = self._forward(parts, samples)
        loss, back = cross_entropy(values[-1], labels, weights)
        result = np.empty(self.layout.size, np.float32)
        grads = self.layout.parts(result)
        for place in reversed(range(self.layers)):
            np.matmul(values[place].T, back, out=grads[f"w{place}"])
            grads[f"b{place}"][...] = back.sum(axis=0)
            if place:
                back = (back @ parts[f"w{place}"].T) * (values[place] > 0)
        return loss, result
