"""All parameters of a model in one flat float32 array, and its parts as views."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats32: TypeAlias = NDArray[np.float32]
Labels: TypeAlias = NDArray[np.int64]


class Layout:
    """Which part of a flat array is what.

    Attributes:
        size: numbers in all.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """In this order."""
        ends = np.cumsum([0, *(math.prod(shape) for shape in shapes.values())]).tolist()
        self._places = {
            name: (begin, end, shape)
            for (name, shape), (begin, end) in zip(shapes.items(), pairwise(ends), strict=True)
        }
        self.size = int(ends[-1])

    def parts(self, flat: Floats32) -> dict[str, Floats32]:
        """Views of it."""
        return {name: flat[begin:end].reshape(shape) for name, (begin, end, shape) in self._places.items()}

    def initial(self, random: np.random.Generator) -> Floats32:
        """Matrices with a variance of 2 over their inputs (He et al., arXiv 1502.01852), names in `_gain` 1, rest 0."""
        flat = np.zeros(self.size, np.float32)
        for name, part in self.parts(flat).items():
            if name.endswith("_gain"):
                part[...] = 1.0
            elif part.ndim > 1:
                inputs = math.prod(part.shape[:-1])
                part[...] = random.standard_normal(part.shape) * math.sqrt(2 / inputs)
        return flat


def cross_entropy(logits: Floats32, labels: Labels, weights: Floats32) -> tuple[float, Floats32]:
    """Weighted sum of the samples' losses, and its gradient for the logits.

    Args:
        logits: shape (B, C).
        labels: shape (B,).
        weights: of each sample, shape (B,); 1/B for a mean.
    """
    rows = np.arange(len(labels))
    shifted = logits - logits.max(axis=1, keepdims=True)
    exp = np.exp(shifted)
    total = exp.sum(axis=1)
    loss = float((weights * (np.log(total) - shifted[rows, labels])).sum())
    grad = exp / total[:, None]
    grad[rows, labels] -= 1.0
    return loss, grad * weights[:, None]
