"""STAR's predictor (arXiv 2512.09685): two layers of LSTM and a small head, evaluated in numpy.

Torch trains it (`training`) and is not needed to use it: whoever decides stays small. Inputs are relative to the
worker's own window (`history.relative`), and so is what comes out, all iterations of the rollout at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from starprof.decision.prediction.history import COLUMNS, FARTHEST, ROLLOUT, TIME, filled, relative

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from starprof.analysis.arrays import Floats

    Singles = NDArray[np.float32]

LAYERS = 2
HIDDEN = 50
NETWORK = "lstm"


@dataclass(frozen=True)
class Lstm:
    """The network.

    Attributes:
        arrays: weights by the names that torch gives them: `lstm.weight_ih_l0`, ..., `head.0.weight`, ...
    """

    arrays: Mapping[str, NDArray[Any]]
    name: str = NETWORK

    def predict(self, past: Floats) -> Floats:
        """See `baselines.Predictor`."""
        flat = past.reshape(-1, *past.shape[-2:])
        ratio = self.forward(np.log(relative(flat)).astype(np.float32))
        middle = np.median(filled(flat)[..., TIME], axis=-1, keepdims=True)
        told = np.clip(1.0 + ratio.astype(np.float64), 1.0 / FARTHEST, FARTHEST) * middle
        return told.reshape(*past.shape[:-2], ROLLOUT)

    def forward(self, inputs: Singles) -> Singles:
        """Head's outputs, shape (N, ROLLOUT), from shape (N, W, 4)."""
        layer = np.ascontiguousarray(inputs.transpose(1, 0, 2))
        for number in range(LAYERS):
            layer = self._layer(layer, number)
        hidden = np.maximum(layer[-1] @ self.arrays["head.0.weight"].T + self.arrays["head.0.bias"], 0.0)
        return np.asarray(hidden @ self.arrays["head.2.weight"].T + self.arrays["head.2.bias"], np.float32)

    def _layer(self, inputs: Singles, number: int) -> Singles:
        """Hidden states of one layer, shape (W, N, H), from (W, N, inputs)."""
        into, within = self.arrays[f"lstm.weight_ih_l{number}"], self.arrays[f"lstm.weight_hh_l{number}"]
        bias = self.arrays[f"lstm.bias_ih_l{number}"] + self.arrays[f"lstm.bias_hh_l{number}"]
        size = within.shape[1]
        # The logistic function is a tanh of half the argument: with halved rows one tanh does all four gates.
        halves = np.full(4 * size, 0.5, np.float32)
        halves[2 * size : 3 * size] = 1.0
        count, workers, width = inputs.shape
        # What doesn't depend on the state, for all iterations at once.
        ahead = inputs.reshape(-1, width) @ np.ascontiguousarray(into.T * halves)
        ahead += bias * halves
        ahead = ahead.reshape(count, workers, 4 * size)
        back = np.ascontiguousarray(within.T * halves)
        state, cell, news = (np.zeros((workers, size), np.float32) for _ in range(3))
        states, gates = np.empty((count, workers, size), np.float32), np.empty((workers, 4 * size), np.float32)
        for step in range(count):
            np.matmul(state, back, out=gates)
            gates += ahead[step]
            np.tanh(gates, out=gates)
            news[...] = gates[:, 2 * size : 3 * size]
            gates *= 0.5
            gates += 0.5
            cell *= gates[:, size : 2 * size]
            news *= gates[:, :size]
            cell += news
            np.tanh(cell, out=news)
            state = np.multiply(gates[:, 3 * size :], news, out=states[step])
        return states


def expected_shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    """Shape of every array of a network of so many hidden units."""
    shapes: dict[str, tuple[int, ...]] = {}
    for number in range(LAYERS):
        shapes[f"lstm.weight_ih_l{number}"] = (4 * hidden, COLUMNS if number == 0 else hidden)
        shapes[f"lstm.weight_hh_l{number}"] = (4 * hidden, hidden)
        shapes[f"lstm.bias_ih_l{number}"] = (4 * hidden,)
        shapes[f"lstm.bias_hh_l{number}"] = (4 * hidden,)
    return {
        **shapes,
        "head.0.weight": (hidden, hidden),
        "head.0.bias": (hidden,),
        "head.2.weight": (ROLLOUT, hidden),
        "head.2.bias": (ROLLOUT,),
    }
