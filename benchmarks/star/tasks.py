"""What is trained: small real models on real handwritten digits, with learning rates tuned for synchronous steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np
from sklearn.datasets import load_digits

from starprof.simulation.training.models.base import Model
from starprof.simulation.training.models.cnn import Cnn
from starprof.simulation.training.models.dense import Dense
from starprof.simulation.training.real import Data, RealTraining, noise_scale

SIDE, CLASSES = 8, 10
TEST = 500
EVALUATE_EVERY = 4.0
NOISE_AFTER = 40
"""Steps of all workers after which the noise scale is measured that choosers are told: early, where they decide."""


@dataclass(frozen=True)
class Task:
    """A model and how it is trained.

    Attributes:
        model: makes it.
        rate: best of a grid for synchronous steps of eight workers (`python benchmarks/star tune`).
        momentum: of the optimizer.
        progress: iterations of the training.
    """

    model: Callable[[], Model]
    rate: float
    momentum: float
    progress: int


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "logistic": Task(lambda: Dense(SIDE * SIDE, CLASSES), 0.5, 0.0, 400),
        "perceptron": Task(lambda: Dense(SIDE * SIDE, CLASSES, (64,)), 0.1, 0.9, 400),
        "cnn": Task(lambda: Cnn(SIDE, CLASSES), 0.2, 0.9, 400),
    }
)

PLAIN: Mapping[str, Task] = MappingProxyType(
    {
        f"{name} plain": Task(TASKS[name].model, rate, 0.0, TASKS[name].progress)
        for name, rate in {"perceptron": 1.0, "cnn": 1.0}.items()
    }
)
"""The same without momentum: rates that move as far in the end, or half as far where that diverges (cnn)."""


@cache
def digits() -> Data:
    """Pictures of 8 x 8 pixels; the last 500 of a fixed permutation are held out."""
    samples, labels = load_digits(return_X_y=True)
    samples = ((samples - samples.mean()) / samples.std()).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:-TEST], order[-TEST:]
    return Data(samples[train], labels[train].astype(np.int64), samples[test], labels[test].astype(np.int64))


def task_of(name: str) -> Task:
    """A task of `TASKS` or `PLAIN`."""
    return TASKS.get(name) or PLAIN[name]


def training_of(name: str, rate: float | None = None) -> RealTraining:
    """The whole description, for a simulation."""
    task = task_of(name)
    return RealTraining(
        task.model(),
        digits(),
        task.rate if rate is None else rate,
        momentum=task.momentum,
        cosine_over=task.progress,
        evaluate_every=EVALUATE_EVERY,
    )


@cache
def phi_of(name: str, batch: int) -> float:
    """Gradient noise scale in samples, as a running job would measure it."""
    plain = training_of(name)
    return noise_scale(RealTraining(plain.model, plain.data, plain.rate), batch * 8, after=NOISE_AFTER)
