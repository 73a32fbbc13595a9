"""Good and slow pairs of places by their bandwidth, and what follows for the places.

A pair is slow against the good pairs' own spread, never against a limit. A good pair clears both its places; what is
left of the slow pairs then points at places, or at the path between two cleared ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from starprof.analysis.arrays import Floats
from starprof.model.collectives import UNKNOWN, kind

MIN_DROP = 0.10
"""Pairs that reach at least 1 - this of the good ones are never slow."""
SPREADS = 4.0
"""A gap is a step down when it is this many standard deviations of the good pairs."""
LEAST_SPREAD = 0.02
LEAST_SPREAD_OF_FEW = 0.05
FEW = 3
MAX_BAD_SHARE = 0.5
LEAST_STAR = 3
"""Slow pairs that one place must have in common to be named when none of the others is cleared."""

Pair = tuple[str, str]


@dataclass(frozen=True)
class Level:
    """What the pairs of one test reach.

    Attributes:
        good: bandwidth of each good pair, bytes per second.
        slow: of each slow pair.
        mixed: pairs that were good in one test and slow in another.
        failed: pairs without a result.
        unclear: the pairs spread without a clear step between good and slow.
    """

    good: Mapping[Pair, float]
    slow: Mapping[Pair, float]
    mixed: Mapping[Pair, float]
    failed: tuple[Pair, ...] = ()
    unclear: bool = False


@dataclass(frozen=True)
class Places:
    """What follows for the places.

    Attributes:
        bad: places that the slow pairs come down to, with their slow pairs.
        likely: of those, the ones whose partners are not cleared.
        cleared: places that reach the good level with some partner, the best known first.
        either: slow pairs of which one place is bad, and can't be told which; neither is cleared.
        or_path: slow pairs (not cleared, cleared): the first is bad, or the path between them.
        paths: slow pairs of two cleared places.
        many: more places would have to be bad than are good.
    """

    bad: Mapping[str, tuple[Pair, ...]]
    likely: frozenset[str]
    cleared: tuple[str, ...]
    either: tuple[Pair, ...]
    or_path: tuple[Pair, ...]
    paths: tuple[Pair, ...]
    many: bool = False


def level_of(tests: pd.DataFrame) -> Level:
    """Good and slow pairs.

    Args:
        tests: table `link_test`; rows of one kind of test.
    """
    frame = _unordered(tests)
    failed = frame.groupby("pair")["rate"].max()
    told = frame[frame["rate"].notna()]
    middle = told.groupby("pair")["rate"].median().sort_values(ascending=False)
    values = middle.to_numpy(np.float64)
    count = _good_count(values)
    lowest_good = values[count - 1] if count else 0.0
    low = told.groupby("pair")["rate"].min().reindex(middle.index).to_numpy()
    high = told.groupby("pair")["rate"].max().reindex(middle.index).to_numpy()
    border = values[count] if count < len(values) else -1.0
    mixed = (low <= border) & (high >= lowest_good)
    pairs = list(middle.index)
    is_good = np.arange(len(values)) < count
    return Level(
        good={p: float(v) for p, v, g, m in zip(pairs, values, is_good, mixed, strict=True) if g and not m},
        slow={p: float(v) for p, v, g, m in zip(pairs, values, is_good, mixed, strict=True) if not g and not m},
        mixed={p: float(v) for p, v, m in zip(pairs, values, mixed, strict=True) if m},
        failed=tuple(failed.index[failed.isna()]),
        unclear=count == len(values) > 1 and bool(values[-1] < (1.0 - 2.0 * MIN_DROP) * values[0]),
    )


def _unordered(tests: pd.DataFrame) -> pd.DataFrame:
    first, second = (tests[name].astype(str).to_numpy(object) for name in ("first", "second"))
    turned = first > second
    ends = zip(np.where(turned, second, first), np.where(turned, first, second), strict=True)
    rates = tests["bytes_per_s"].to_numpy(np.float64)
    frame = pd.DataFrame(
        {
            "pair": pd.Series(list(ends), dtype=object),
            "rate": np.where(np.isfinite(rates) & (rates >= 0), rates, np.nan),
        }
    )
    apart: pd.DataFrame = frame[first != second]
    return apart


def _good_count(falling: Floats) -> int:
    """How many of the values, highest first, are on the upper level: up to the first clear step down."""
    if len(falling) < 2:
        return len(falling)
    logs = np.log(np.maximum(falling, 1e-3))
    number = np.arange(1, len(logs) + 1)
    mean = np.cumsum(logs) / number
    variance = np.clip(np.cumsum(logs**2) / number - mean**2, 0.0, None) * number / np.maximum(number - 1, 1)
    spread = np.maximum(np.sqrt(variance), np.where(number < FEW, LEAST_SPREAD_OF_FEW, LEAST_SPREAD))
    gaps = -np.diff(logs)
    steps = np.flatnonzero(gaps >= np.maximum(-np.log1p(-MIN_DROP), SPREADS * spread[:-1]))
    return int(steps[0]) + 1 if len(steps) else len(falling)


def places_of(level: Level) -> Places:
    """Bad, cleared and undecidable places."""
    cleared = _cleared(level)
    known = set(cleared)
    partners: dict[str, list[str]] = {}
    for one, other in level.slow:
        partners.setdefault(one, []).append(other)
        partners.setdefault(other, []).append(one)
    bad: set[str] = set()
    for place, others in partners.items():
        if place not in known and len(others) >= 2 and known.intersection(others):
            bad.add(place)
    likely = _stars(partners, known, bad)
    bad |= likely
    left = [pair for pair in level.slow if not bad.intersection(pair)]
    places = {place for pair in (*level.good, *level.slow) for place in pair}
    return Places(
        bad={place: tuple(p for p in level.slow if place in p) for place in sorted(bad)},
        likely=frozenset(likely),
        cleared=cleared,
        either=tuple(p for p in left if not known.intersection(p)),
        or_path=tuple(p if p[1] in known else (p[1], p[0]) for p in left if len(known.intersection(p)) == 1),
        paths=tuple(p for p in left if known.issuperset(p)),
        many=len(bad) > MAX_BAD_SHARE * len(places),
    )


def _cleared(level: Level) -> tuple[str, ...]:
    """Places in good pairs; those with the most tests first, then the quickest."""
    tests: dict[str, int] = {}
    for pair in (*level.good, *level.slow):
        for place in pair:
            tests[place] = tests.get(place, 0) + 1
    best: dict[str, float] = {}
    for pair, rate in level.good.items():
        for place in pair:
            best[place] = max(rate, best.get(place, 0.0))
    return tuple(sorted(best, key=lambda place: (-tests[place], -best[place], place)))


def _stars(partners: Mapping[str, list[str]], known: set[str], bad: set[str]) -> set[str]:
    """Places that alone explain several slow pairs, each of whose partners has no other one."""
    found = set()
    for place, others in partners.items():
        rest = [o for o in others if o not in bad]
        alone = all(set(partners[o]) - bad <= {place} for o in rest)
        if place not in known | bad and len(rest) >= LEAST_STAR and alone:
            found.add(place)
    return found


def labels_of(tests: pd.DataFrame) -> Mapping[Pair, str]:
    """What each pair is said to be, where that is no name of a test."""
    frame = _unordered(tests).assign(label=tests["kind"].astype(object))
    frame = frame[frame["label"].notna()].drop_duplicates("pair")
    return {
        pair: str(label)
        for pair, label in zip(frame["pair"], frame["label"], strict=True)
        if kind(str(label)) == UNKNOWN
    }
