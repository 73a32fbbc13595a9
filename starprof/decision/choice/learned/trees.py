"""Gradient-boosted regression trees as arrays, evaluated for many inputs at once; trained elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from starprof.analysis.arrays import Floats


@dataclass(frozen=True)
class Trees:
    """Trees of equal depth or less, laid out as heaps: node i has children 2 i + 1 and 2 i + 2.

    Attributes:
        base: what the sum of the trees is added to.
        feature: that each inner node looks at, shape (T, 2^D - 1).
        threshold: at most this goes left, same shape; where a tree ends before, both ways hold the same.
        value: of each leaf, shape (T, 2^D).
    """

    base: float
    feature: NDArray[np.int16]
    threshold: NDArray[np.float32]
    value: NDArray[np.float32]

    def predict(self, inputs: Floats) -> Floats:
        """Sums, shape (M,), for inputs of shape (M, F)."""
        inputs = inputs.astype(np.float32)
        trees, inner = self.feature.shape
        rows, tree = np.arange(len(inputs))[:, None], np.arange(trees)[None, :]
        node = np.zeros((len(inputs), trees), np.int64)
        while node.size and node.flat[0] < inner:
            right = inputs[rows, self.feature[tree, node]] > self.threshold[tree, node]
            node = 2 * node + 1 + right
        return np.asarray(self.base + self.value[tree, node - inner].sum(axis=1, dtype=np.float64))

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """To be stored under these names."""
        return {
            f"{prefix}.base": np.array(self.base),
            f"{prefix}.feature": self.feature,
            f"{prefix}.threshold": self.threshold,
            f"{prefix}.value": self.value,
        }


def from_arrays(stored: Mapping[str, NDArray[Any]], prefix: str, features: int) -> Trees:
    """The same from stored arrays.

    Raises:
        KeyError: something is missing.
        ValueError: the arrays don't fit together.
    """
    base, feature, threshold, value = (stored[f"{prefix}.{name}"] for name in ("base", "feature", "threshold", "value"))
    leaves = value.shape[1] if value.ndim == 2 else 0
    shapes_fit = feature.shape == threshold.shape == (len(value), leaves - 1) and base.shape == ()
    if not shapes_fit or leaves & (leaves - 1) or not ((feature >= 0) & (feature < features)).all():
        raise ValueError(f"the trees of {prefix} don't fit together")
    if not (np.isfinite(value).all() and np.isfinite(base) and not np.isnan(threshold).any()):
        raise ValueError(f"the trees of {prefix} hold what is no number")
    return Trees(float(base), feature, threshold, value)
