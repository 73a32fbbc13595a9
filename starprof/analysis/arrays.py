"""Array types used all over the analysis. R = ranks, S = steps."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]


def row_medians(values: Floats) -> Floats:
    """Median of each row's numbers, NaN where a row has none, shape (R,); `numpy.nanmedian` loops over long rows."""
    ordered = np.sort(values, axis=1)  # NaN goes last
    return medians_of_first(ordered, np.sum(~np.isnan(ordered), axis=1))


def column_medians(values: Floats) -> Floats:
    """Median of each column's numbers, NaN where a column has none, shape (S,)."""
    if not np.isnan(values).any():
        return np.asarray(np.median(values, axis=0))
    return row_medians(values.T)


def medians_of_first(ordered: Floats, count: Ints) -> Floats:
    """Median of the first `count` numbers of each sorted row, NaN where there are none, shape (R,)."""
    rows = np.arange(len(ordered))
    below, above = ordered[rows, np.maximum(count - 1, 0) // 2], ordered[rows, np.maximum(count // 2, 0)]
    return np.where(count > 0, (below + above) / 2.0, np.nan)
