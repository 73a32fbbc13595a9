"""Who is compared with whom, and against which reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints, row_medians

SPLIT_GAP = 0.25
SPLIT_SEPARATION = 5.0
MIN_MODE_SHARE = 0.25


def peer_groups(roles: Sequence[Mapping[str, int]]) -> Ints:
    """Group number per rank: same pipeline stage, tensor-parallel position and so on; data-parallel ones are peers."""
    keys = [tuple(sorted((k, v) for k, v in role.items() if k != "dp")) for role in roles]
    numbers = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], dtype=np.int64)


def median_of_others(values: Floats) -> Floats:
    """Per rank and step the median over all OTHER ranks, shape (R, S); NaN where there is no other."""
    ordered = np.sort(values, axis=0)  # NaN goes last
    count = np.sum(~np.isnan(values), axis=0)
    half = np.clip(count // 2, 0, len(values) - 1)[None, :]

    def at(index: Ints) -> Floats:
        taken: Floats = np.take_along_axis(ordered, np.clip(index, 0, len(values) - 1), axis=0)
        return taken

    below, middle, above = at(half - 1), at(half), at(half + 1)
    # Odd count 2m + 1: without one of the lower half the middle pair is (m, m + 1), and so on.
    odd = np.where(values < middle, middle + above, np.where(values > middle, below + middle, below + above)) / 2.0
    # Even count 2m: without one of the lower half the middle is m, else m - 1.
    even = np.where(values < middle, middle, below)
    result = np.where(count % 2 == 1, odd, even)
    # A rank with no record of the step is compared with all that have one.
    everybody = np.where(count % 2 == 1, middle, (below + middle) / 2.0)
    result = np.where(np.isnan(values), everybody, result)
    return np.where(count - ~np.isnan(values) >= 1, result, np.nan)


def peer_centre(values: Floats, groups: Ints, excluded: Bools | None = None) -> Floats:
    """Robust centre of each rank's peers, shape (R, S).

    Args:
        values: shape (R, S).
        groups: shape (R,), see `peer_groups`.
        excluded: ranks that must not serve as a reference for others, shape (R,).
    """
    centre = np.full_like(values, np.nan)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        good = members if excluded is None else members[~excluded[members]]
        if len(good) == 0:
            continue
        centre[good] = median_of_others(values[good])
        others = np.setdiff1d(members, good)
        if len(others):
            centre[others] = _nanmedian_columns(values[good])
    return centre


def slow_mode(values: Floats, groups: Ints) -> Bools:
    """Ranks of the slow mode where a clear majority is slow and the median of the others would be misled.

    The ranks' medians are split at their widest gap; the split counts when the gap is at least `SPLIT_GAP` of the
    faster mode, `SPLIT_SEPARATION` times the spread inside the modes, and the faster mode is no handful.
    """
    slow = np.zeros(len(values), bool)
    level = row_medians(values)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        if len(members) < 4:
            continue
        ordered = members[np.argsort(level[members])]
        gaps = np.diff(level[ordered])
        cut = int(np.argmax(gaps)) + 1
        fast, late = ordered[:cut], ordered[cut:]
        if len(fast) < max(2, MIN_MODE_SHARE * len(members)) or len(late) * 2 < len(members):
            continue
        gap = gaps[cut - 1]
        if gap >= SPLIT_GAP * np.median(level[fast]) and gap >= SPLIT_SEPARATION * _inside_spread(level, fast, late):
            slow[late] = True
    return slow


def _inside_spread(level: Floats, fast: Ints, late: Ints) -> float:
    """Robust standard deviation of the ranks around their own mode's centre."""
    around = np.r_[level[fast] - np.median(level[fast]), level[late] - np.median(level[late])]
    return float(1.4826 * np.median(np.abs(around)))


def _nanmedian_columns(values: Floats) -> Floats:
    """Column medians without NaN, as one row."""
    if not np.isnan(values).any():
        return np.asarray(np.median(values, axis=0))
    empty = np.isnan(values).all(axis=0)
    result: Floats = np.nanmedian(np.where(empty, 0.0, values), axis=0)
    return np.where(empty, np.nan, result)
