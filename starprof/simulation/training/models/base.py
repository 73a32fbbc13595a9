"""What a model has to offer."""

from __future__ import annotations

from abc import ABC, abstractmethod

from starprof.simulation.training.parameters import Floats32, Labels, Layout


class Model(ABC):
    """A classifier of flat samples, with its parameters outside.

    Attributes:
        layout: of its parameters.
    """

    layout: Layout

    @abstractmethod
    def logits(self, flat: Floats32, samples: Floats32) -> Floats32:
        """Scores of each class, shape (B, C), for samples of shape (B, F)."""

    @abstractmethod
    def gradient(self, flat: Floats32, samples: Floats32, labels: Labels, weights: Floats32) -> tuple[float, Floats32]:
        """Weighted sum of the samples' losses, and its gradient for the parameters."""
