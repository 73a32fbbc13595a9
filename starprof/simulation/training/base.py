"""What is trained while time is simulated: an interface with two answers, real gradients and a noise-scale model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from starprof.sync.policies import Gradient, Update


@dataclass(frozen=True, slots=True)
class Measured:
    """Loss and accuracy on held-out samples."""

    loss: float
    accuracy: float


class TrainingRun(ABC):
    """One training under way. Gradients are computed when they are needed, so those that are dropped cost nothing."""

    @abstractmethod
    def begin(self, gradient: Gradient) -> None:
        """A worker begins to compute on the newest parameters that it has; samples are the most it may use."""

    @abstractmethod
    def update(self, update: Update, progress: float) -> float:
        """Apply it; how much has been learned by it. `progress` of the training before it."""

    @abstractmethod
    def step_locally(self, gradient: Gradient, progress: float) -> None:
        """Only its own worker's parameters change."""

    @abstractmethod
    def average(self, members: Sequence[int], steps: float) -> float:
        """These members go on with the mean of their parameters, after so many steps; how much has been learned."""

    @abstractmethod
    def drop(self, gradient: Gradient) -> None:
        """It will not be used."""

    @abstractmethod
    def score(self, gradient: Gradient) -> float:
        """How much the loss on the server's own samples falls by it, as Zeno++ estimates it."""

    def left(self, worker: int) -> None:  # noqa: B027 - most have nothing of it
        """A worker is gone, and with it what it had of its own."""

    def measure(self) -> Measured | None:
        """Loss and accuracy now; None: nothing is really trained."""
        return None


class Training(ABC):
    """A description from which each simulation begins anew.

    Attributes:
        evaluate_every: progress between two evaluations, in iterations.
    """

    evaluate_every: float = 1.0

    @abstractmethod
    def start(self, batches: dict[int, int], seed: int) -> TrainingRun:
        """Begin, with so many samples an iteration of each worker."""
