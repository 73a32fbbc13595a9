"""STAR's scores as the paper has them (arXiv 2512.09685), for comparison only; `progress` has ours.

Known to be wrong: the time of an update is interpolated (for seven workers of 500 ms and one of 1000 ms it gives 67 ms
for each x up to 7, where 67, 143, 250, 334, 500, 500, 500 ms are right), the scan stops at the first local minimum,
staleness costs nothing, and learning rates are taken as tuned for every batch, which the modes don't do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from starprof.sync.policies.grouping import by_speed

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats

GROUP_DISTANCE_S = 0.050


def interpolated_s(usual_s: Floats) -> Floats:
    """Time between updates of static-x for x = 1..N, shape (N,), between 1/sum(1/t) and the longest time."""
    ordered = np.sort(usual_s)
    shortest, longest = 1.0 / float((1.0 / ordered).sum()), float(ordered[-1])
    if ordered[-1] == ordered[0]:
        return np.full(len(ordered), longest)
    return np.asarray(shortest + (longest - shortest) * (ordered - ordered[0]) / (ordered[-1] - ordered[0]))


def static_scores(times_s: Floats, phi: float, batch: float) -> Floats:
    """T_x = t_x (1 + phi/(x b)), for x = 1..N, shape (N,); `times_s` are those of the updates."""
    x = np.arange(1, len(times_s) + 1)
    return np.asarray(times_s * (1.0 + phi / (x * batch)))


def first_local_minimum(scores: Floats) -> int:
    """The x, from 1, before which the scan stops: the next score is no longer smaller."""
    rising = np.flatnonzero(np.diff(scores) >= 0)
    return int(rising[0]) + 1 if len(rising) else len(scores)


def dynamic_score(usual_s: Floats, groups: Sequence[Sequence[int]], phi: float, batch: float) -> float:
    """1 / sum over groups of 1 / ((1 + phi/(|g| b)) max t), places in `usual_s` by group."""
    rates = [1.0 / ((1.0 + phi / (len(group) * batch)) * float(usual_s[list(group)].max())) for group in groups]
    return 1.0 / sum(rates)


def groups_of(usual_s: Floats) -> list[list[int]]:
    """Places by the paper's distance, 50 ms whatever an iteration takes."""
    ordered = np.sort(usual_s)
    share = GROUP_DISTANCE_S / float(ordered[len(ordered) // 2])
    return by_speed(dict(enumerate(usual_s.tolist())), share)


def m_star(times: Floats, phi: float, batch: float) -> int:
    """The m of m-sync: argmin of mean(T_(m)) (1 + phi/(m b)) over a window of iterations, shape (W, N).

    Late workers are taken as cancelled, so that a round takes the m-th order statistic (arXiv 2602.03802).
    """
    return int(np.argmin(static_scores(np.sort(times, axis=1).mean(axis=0), phi, batch))) + 1


def scores(times: Floats, phi: float, batch: float, *, all_reduce: bool) -> list[tuple[str, dict[str, object], float]]:
    """Score of each mode that the paper's chooser looks at, with its options: less is better; ssgd first."""
    usual = times.mean(axis=0)
    workers = len(usual)
    rounds = np.sort(usual) if all_reduce else interpolated_s(usual)
    static = static_scores(rounds, phi, batch)
    x = first_local_minimum(static)
    found: list[tuple[str, dict[str, object], float]] = [("ssgd", {}, float(static[-1]))]
    if x < workers:
        found.append(("ring-x" if all_reduce else "static-x", {"x": x}, float(static[x - 1])))
    groups = groups_of(usual)
    if not all_reduce and len(groups) > 1:
        found.append(("dynamic-x", {"groups": groups}, dynamic_score(usual, groups, phi, batch)))
    return found
