"""Step starts that nobody measured: imported runs tell durations only, and steps follow each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def reckoned_starts(durations_us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Steps one after the other, from 1 ns on; 0 where there is no record.

    Args:
        durations_us: shape (R, S), NaN = no record.
    """
    lasting = np.nan_to_num(durations_us)
    begins = 1 + np.rint((np.cumsum(lasting, axis=1) - lasting) * 1000).astype(np.int64)
    return np.where(np.isnan(durations_us), 0, begins)


def are_reckoned(starts_ns: NDArray[np.int64], durations_us: NDArray[np.float64] | None) -> bool:
    """Whether starts say no more than the durations do, so that they need not be kept."""
    if durations_us is None or not starts_ns.size:
        return False
    return bool(np.array_equal(starts_ns, reckoned_starts(durations_us)))
