"""How far the best synchronous schedule can be from the best of any method, for workers of fixed times.

An iteration needs B gradients. Waiting for the k quickest, each as often as needed, takes t_k max(1, B/k); let S be the
smallest of these over k (arXiv 2602.03802). Whatever the method, B gradients are there after no less than

    A = min tau: sum_i floor(tau / t_i) >= B.

S <= (1 + ln min(B, n)) A, with constant 1 (derived anew here). By definition of S, t_i >= S min(1, i/B) for the i-th
quickest. Let m workers have t_i <= A. They deliver at most A sum_{i<=m} 1/t_i gradients, and that is at least B.
If m >= B, S <= t_m <= A. Else sum_{i<=m} 1/t_i <= (B/S) (1 + 1/2 + ... + 1/m) <= (B/S) (1 + ln m), and so
B <= A (B/S) (1 + ln m), which is S <= (1 + ln m) A with m <= min(B, n).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound for one job.

    Attributes:
        gradients: B that an iteration needs.
        waits_for: k at which the best synchronous schedule waits.
        synchronous_s: S.
        any_method_s: A.
        factor: 1 + ln min(B, n): no method can be better than S by more, for any times.
    """

    gradients: float
    waits_for: int
    synchronous_s: float
    any_method_s: float
    factor: float

    @property
    def ratio(self) -> float:
        """S/A, at least 1: no method can be better by more than this for these times.

        Below 1 only because S counts parts of rounds and A whole gradients.
        """
        return max(1.0, self.synchronous_s / self.any_method_s)


def bound(usual_s: Floats, gradients: float) -> Bound:
    """The bound for workers of these times.

    Args:
        usual_s: time of each worker's iteration, shape (N,).
        gradients: B, at least 1: noise scale over the batch of one gradient, where that is more than 1.
    """
    ordered = np.sort(usual_s)
    needed = max(1.0, gradients)
    counts = np.arange(1, len(ordered) + 1)
    waited = ordered * np.maximum(1.0, needed / counts)
    at = int(np.argmin(waited))
    factor = 1.0 + math.log(min(needed, len(ordered)))
    return Bound(needed, at + 1, float(waited[at]), soonest(ordered, needed), factor)


def soonest(ordered_s: Floats, gradients: float) -> float:
    """Smallest time in which workers of these times finish so many gradients."""
    low, high = 0.0, float(ordered_s[0]) * math.ceil(gradients)
    for _ in range(60):
        middle = (low + high) / 2.0
        if np.floor(middle / ordered_s * (1 + 1e-12)).sum() >= gradients:
            high = middle
        else:
            low = middle
    return high
