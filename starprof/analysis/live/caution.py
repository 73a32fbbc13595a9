"""How large and lasting noise may be that was watched for few steps only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from starprof.analysis.arrays import Ints
from starprof.analysis.noise import MAX_POOLED_RANKS, Noise

STEADIER_HALF = 0.8
"""Mean of the lower half of normal values lies this many standard deviations below their mean."""
MEMORY_ERRORS = 2.0
"""Standard errors that a memory may be longer than it looks."""
SHORT_OF_MEMORIES = 10.0
"""A memory measured over n of its own lengths looks shorter than it is by about this many n-ths (simulated)."""


def cautious(noise: Noise, held: int, rows: Ints, ranks: int) -> Noise:
    """The noise as it may be where few steps were watched, for all ranks (those without records: as usual).

    Its size comes from the ranks that happened to be steadier, and from residuals around means of the same steps; both
    make it look smaller, by what the number of independent steps says.
    """
    memory = _cautious_memory(noise.memory, held, len(rows))
    independent = max(held / noise.memory, 4.0)
    chosen = 1.0 - STEADIER_HALF / np.sqrt(2.0 * independent)
    sigma = np.full(ranks, float(np.median(noise.sigma)))
    sigma[rows] = noise.sigma
    return replace(noise, sigma=sigma / (chosen * np.sqrt(1.0 - 1.0 / independent)), memory=memory)


def _cautious_memory(memory: float, held: int, ranks: int) -> float:
    """The memory as long as it may be: corrected for what a short look at steady ranks misses, and for its error.

    Noise with the correlation r from one step to the next has the memory (1 + r) / (1 - r), so that its logarithm is
    twice Fisher's transform of r, whose standard error is 1 / sqrt(n (1 - r^2)) for n steps of all ranks it is from.
    """
    correlated = np.sqrt(1.0 - 1.0 / memory)
    likely = memory * (1.0 + SHORT_OF_MEMORIES * memory / held * correlated)
    pooled = held * np.clip(ranks // 2, 2, MAX_POOLED_RANKS)
    error = (memory + 1.0) / np.sqrt(pooled * memory)
    return float(likely * np.exp(MEMORY_ERRORS * error))
