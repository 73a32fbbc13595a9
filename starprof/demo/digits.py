"""The handwritten digits that ship with scikit-learn, to train on in simulated time."""

from __future__ import annotations

import numpy as np

from starprof.errors import UsageError
from starprof.simulation import Data
from starprof.simulation.training.models.base import Model
from starprof.simulation.training.models.cnn import Cnn
from starprof.simulation.training.models.dense import Dense
from starprof.simulation.training.models.transformer import Transformer

HELD_OUT = 360
SIDE = 8

MODELS = ("logistic", "mlp", "cnn", "transformer")
"""By the names of `model`."""


def digits() -> Data:
    """1,437 pictures to learn from and 360 held-out ones, pixels from 0 to 1; always the same.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise UsageError("real training needs scikit-learn's digits: pip install 'starprof[demo]'") from error
    pictures, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    samples, classes = (pictures[order] / 16).astype(np.float32), labels[order].astype(np.int64)
    return Data(samples[HELD_OUT:], classes[HELD_OUT:], samples[:HELD_OUT], classes[:HELD_OUT])


def model(name: str) -> Model:
    """A small model for them.

    Raises:
        UsageError: there is none of this name.
    """
    features, classes = SIDE * SIDE, 10
    match name:
        case "logistic":
            return Dense(features, classes)
        case "mlp":
            return Dense(features, classes, (32,))
        case "cnn":
            return Cnn(SIDE, classes)
        case "transformer":
            return Transformer(features, classes, tokens=SIDE)
    raise UsageError(f"no model is called {name!r}; there are {', '.join(MODELS)}")
