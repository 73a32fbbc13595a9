"""The split of a series has the least cost of all that are allowed."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from starprof.analysis.changepoint import MIN_SEGMENT, segments

SIGMA, STEPS = 1.0, 21


def cost(values: np.ndarray, cuts: tuple[int, ...], penalty: float) -> float:
    edges = (0, *cuts, len(values))
    return sum(float(((values[a:b] - values[a:b].mean()) ** 2).sum()) for a, b in pairwise(edges)) + penalty * len(cuts)


@pytest.mark.parametrize("seed", range(40))
def test_no_other_split_is_cheaper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = 50.0 + rng.standard_normal(STEPS)
    for place in rng.integers(0, STEPS, rng.integers(1, 4)):
        values[place:] += rng.choice([-6.0, 4.0, 7.0])
    penalty = 4.0 * SIGMA**2 * np.log(STEPS)
    allowed = [
        cuts
        for count in range(STEPS // MIN_SEGMENT)
        for cuts in combinations(range(MIN_SEGMENT, STEPS), count)
        if all(b - a >= MIN_SEGMENT for a, b in pairwise((0, *cuts, STEPS)))
    ]
    best = min(cost(values, cuts, penalty) for cuts in allowed)
    found = tuple(part.start for part in segments(values, SIGMA, 1.0)[1:])
    assert cost(values, found, penalty) == pytest.approx(best, rel=1e-9)
