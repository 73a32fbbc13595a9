"""Training for real while time is simulated: what staleness and dropped gradients do to a model is a result here.

Each worker draws its batches at random from all samples, by a stream of its own, so that its n-th batch is the same
under every mode. Gradients are computed on the parameters that their worker was released with, when they are applied;
those of one update that share parameters are computed in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from starprof.simulation.training.base import Measured, Training, TrainingRun
from starprof.simulation.training.models.base import Model
from starprof.simulation.training.parameters import Floats32, Labels, cross_entropy
from starprof.sync.policies import Gradient, Update

SERVERS_OWN = 128
"""Samples by which gradients are scored."""


def diverging() -> np.errstate:
    """Numbers may become too large: that is a result of the training, which its evaluation tells."""
    return np.errstate(over="ignore", invalid="ignore")


@dataclass(frozen=True, eq=False)
class Data:
    """Samples, one a row, with features of about unit size, and their classes from 0; and held-out ones."""

    samples: Floats32
    labels: Labels
    test_samples: Floats32
    test_labels: Labels

    @property
    def features(self) -> int:
        """Of each sample."""
        return int(self.samples.shape[1])

    @property
    def classes(self) -> int:
        """In all."""
        return int(self.labels.max()) + 1


@dataclass(frozen=True, eq=False)
class RealTraining(Training):
    """SGD on a real model, as its workers' gradients come.

    Attributes:
        model: that is trained.
        data: that it is trained on.
        rate: learning rate, as the user has tuned it for synchronous steps of all workers.
        momentum: of the optimizer's step, made for each update.
        weight_decay: added to the gradient.
        cosine_over: iterations of the training over which the rate falls to 0; None: it stays.
        evaluate_every: iterations of the training between two evaluations.
    """

    model: Model
    data: Data
    rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    cosine_over: float | None = None
    evaluate_every: float = 10.0

    def start(self, batches: dict[int, int], seed: int) -> TrainingRun:
        """See `Training`."""
        return _Running(self, batches, seed)

    def rate_at(self, progress: float) -> float:
        """Learning rate after so many iterations."""
        if self.cosine_over is None:
            return self.rate
        return self.rate * 0.5 * (1 + math.cos(math.pi * min(1.0, progress / self.cosine_over)))


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """Parameters and the optimizer's moment; never changed in place, so that workers may keep them."""

    flat: Floats32
    moment: Floats32


class _Running(TrainingRun):
    def __init__(self, training: RealTraining, batches: dict[int, int], seed: int) -> None:
        self.training, self.model, self.data = training, training.model, training.data
        start = self.model.layout.initial(np.random.default_rng([seed, 0]))
        self.shared = _State(start, np.zeros_like(start))
        self.own: dict[int, _State] = {}
        self._streams = {worker: np.random.default_rng([seed, 1, worker]) for worker in batches}
        self._open: dict[tuple[int, int], tuple[Floats32, Labels]] = {}
        self._ready: dict[tuple[int, int], Floats32] = {}
        scored = np.random.default_rng([seed, 2]).permutation(len(self.data.labels))[:SERVERS_OWN]
        self._scored = (self.data.samples[scored], self.data.labels[scored])

    def begin(self, gradient: Gradient) -> None:
        """See `TrainingRun`."""
        rows = self._streams[gradient.worker].integers(len(self.data.labels), size=gradient.samples)
        state = self.own.get(gradient.worker, self.shared)
        self._open[gradient.worker, gradient.number] = (state.flat, rows)

    def update(self, update: Update, progress: float) -> float:
        """See `TrainingRun`."""
        with diverging():
            along = self._sum(update.gradients, update.weights)
            if update.members is None:
                self.shared = self._stepped(self.shared, along, progress)
                return sum(update.weights)
            state = self._stepped(self.own.get(update.members[0], self.shared), along, progress)
        self.own.update(dict.fromkeys(update.members, state))
        return 0.0  # counts when groups are averaged

    def step_locally(self, gradient: Gradient, progress: float) -> None:
        """See `TrainingRun`."""
        state = self.own.get(gradient.worker, self.shared)
        with diverging():
            self.own[gradient.worker] = self._stepped(state, self._sum((gradient,), (1.0,)), progress)

    def average(self, members: Sequence[int], steps: float) -> float:
        """See `TrainingRun`; moments are averaged too."""
        states = [self.own.pop(worker, self.shared) for worker in members]
        if states:
            self.shared = _State(
                np.mean([state.flat for state in states], axis=0), np.mean([state.moment for state in states], axis=0)
            )
        return steps

    def drop(self, gradient: Gradient) -> None:
        """See `TrainingRun`."""
        key = (gradient.worker, gradient.number)
        self._open.pop(key, None)
        self._ready.pop(key, None)

    def left(self, worker: int) -> None:
        """See `TrainingRun`."""
        self.own.pop(worker, None)

    def score(self, gradient: Gradient) -> float:
        """See `TrainingRun`: to first order, for a step of the whole rate (Zeno++, arXiv 1903.07020)."""
        along = self._sum((gradient,), (1.0,))
        self._ready[gradient.worker, gradient.number] = along
        samples, labels = self._scored
        weights = np.full(len(labels), 1 / len(labels), np.float32)
        _, falls = self.model.gradient(self.shared.flat, samples, labels, weights)
        return self.training.rate * float(falls @ along)

    def measure(self) -> Measured:
        """See `TrainingRun`."""
        labels = self.data.test_labels
        with diverging():
            logits = self.model.logits(self.shared.flat, self.data.test_samples)
            loss, _ = cross_entropy(logits, labels, np.full(len(labels), 1 / len(labels), np.float32))
        return Measured(loss, float((logits.argmax(axis=1) == labels).mean()))

    def _stepped(self, state: _State, along: Floats32, progress: float) -> _State:
        training = self.training
        if training.weight_decay:
            along = along + np.float32(training.weight_decay) * state.flat
        moment = np.float32(training.momentum) * state.moment + along if training.momentum else along
        return _State(state.flat - np.float32(training.rate_at(progress)) * moment, moment)

    def _sum(self, gradients: Sequence[Gradient], weights: Sequence[float]) -> Floats32:
        """Weighted sum of gradients; one pass for all that were computed on the same parameters."""
        total = np.zeros(self.model.layout.size, np.float32)
        passes: dict[int, tuple[Floats32, list[Labels], list[Floats32]]] = {}
        for gradient, weight in zip(gradients, weights, strict=True):
            key = (gradient.worker, gradient.number)
            if key in self._ready:
                total += np.float32(weight) * self._ready.pop(key)
                continue
            flat, rows = self._open.pop(key)
            used = rows[: gradient.samples]
            _, all_rows, all_weights = passes.setdefault(id(flat), (flat, [], []))
            all_rows.append(used)
            all_weights.append(np.full(len(used), weight / len(used), np.float32))
        for flat, all_rows, all_weights in passes.values():
            rows = np.concatenate(all_rows)
            total += self.model.gradient(
                flat, self.data.samples[rows], self.data.labels[rows], np.concatenate(all_weights)
            )[1]
        return total


def noise_scale(training: RealTraining, batch: int, *, after: int = 0, draws: int = 200, seed: int = 0) -> float:
    """Gradient noise scale phi in samples, after so many steps of SGD with this batch.

    From the mean square L of `draws` gradients of one batch each and the square G of their mean:
    |g|^2 ~ (n G - L)/(n - 1) and tr(cov) ~ (L - G) b n/(n - 1).

    Raises:
        ValueError: the noise hides the gradient, or a single draw can't tell them apart.
    """
    run = _Running(training, {0: batch}, seed)
    for number in range(after):
        gradient = Gradient(0, number, number, batch)
        run.begin(gradient)
        run.update(Update(number, (gradient,), (1.0,)), float(number))
    sampled = []
    for number in range(draws):
        gradient = Gradient(0, after + number, after, batch)
        run.begin(gradient)
        sampled.append(run._sum((gradient,), (1.0,)).astype(np.float64))
    mean_square = float(np.mean([g @ g for g in sampled]))
    mean = np.mean(sampled, axis=0)
    square_of_mean = float(mean @ mean)
    signal = (draws * square_of_mean - mean_square) / (draws - 1) if draws > 1 else 0.0
    if signal <= 0:
        raise ValueError(f"{draws} draws of {batch} samples can't tell the gradient from its noise")
    return (mean_square - square_of_mean) * batch * draws / (draws - 1) / signal
