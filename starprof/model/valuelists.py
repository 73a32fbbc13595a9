"""Lists of values as the tables hold them: equal neighbours together, `0*7,2` for seven zeros and a two.

What belongs to the gradients of one update is mostly equal, so that a list of a thousand is as short as one of four.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import groupby

from starprof.model.ranklists import from_listed, listed

_MOST = 1 << 20
Values = tuple[float, ...]
GradientRow = tuple[int, int, int, int, float]
"""Worker, number, version of the parameters it was computed on, samples, weight."""


def listed_values(values: Iterable[float]) -> str:
    """Values as the tables hold them; whole numbers come back whole, others exactly as they were."""
    known = list(values)
    if len(known) > 1 and known.count(known[0]) == len(known):
        return f"{known[0]!r}*{len(known)}"
    parts = []
    for value, run in groupby(known):
        count = len(list(run))
        parts.append(f"{value!r}*{count}" if count > 1 else repr(value))
    return ",".join(parts)


def from_listed_values(text: str | None) -> Values:
    """The values that `listed_values` wrote; empty when the text is none of its."""
    result: list[float] = []
    for part in (text or "").split(","):
        value, _, times = part.partition("*")
        if times and not (times.isdecimal() and len(result) + int(times) <= _MOST):
            return ()
        try:
            result += [float(value) if not value.lstrip("-").isdecimal() else int(value)] * int(times or 1)
        except ValueError:
            return ()
    return tuple(result)


def gradient_cells(version: int, gradients: Iterable[GradientRow]) -> dict[str, object]:
    """The cells of table `sync_update` that tell which gradients an update of `version` is made of."""
    rows = sorted((int(w), int(n), int(v), int(s), float(weight)) for w, n, v, s, weight in gradients)
    workers, numbers, versions, samples, weights = zip(*rows, strict=True) if rows else ((),) * 5
    staleness = [version - computed_on for computed_on in versions]
    per = list(Counter(workers).values())
    return {
        "contributors": listed(workers) or None,
        "gradients": len(rows),
        "per_contributor": listed_values(per) if len(per) < len(rows) else None,
        "numbers": listed_values(numbers) or None,
        "weights": listed_values(weights) or None,
        "staleness": listed_values(staleness) or None,
        "samples": listed_values(samples) or None,
        "weight_sum": math.fsum(weights),
        "staleness_max": max(staleness, default=None),
    }


def contributors_of(contributors: str | None, per_contributor: str | None = None) -> tuple[int, ...]:
    """The rank of each gradient, in the order of the lists of values; empty when the texts don't fit together."""
    ranks = from_listed(contributors) if contributors else ()
    if per_contributor is None:
        return ranks
    counts = from_listed_values(per_contributor)
    if len(counts) != len(ranks):
        return ()
    return tuple(rank for rank, count in zip(ranks, counts, strict=True) for _ in range(int(count)))
