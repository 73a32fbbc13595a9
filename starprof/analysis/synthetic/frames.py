"""Frames of sampled tables from blocks of columns, one block per device, process or socket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from starprof.model.columns import Table

Block = Mapping[str, object]


def empty_frame(table: Table) -> pd.DataFrame:
    """A frame with the table's columns and no rows."""
    return pd.DataFrame({name: pd.Series(dtype="float64") for name in table.names})


def frame_of(table: Table, blocks: Iterable[Block]) -> pd.DataFrame:
    """Stack blocks of equally long columns; single values fill theirs, columns not given are NULL."""
    parts = [block for block in blocks if block]
    if not parts:
        return empty_frame(table)
    lengths = [_length(block) for block in parts]
    columns = {name: _column(name, parts, lengths) for name in table.names}
    return pd.DataFrame(columns, copy=False)


def _length(block: Block) -> int:
    return max(len(value) if isinstance(value, (list, np.ndarray)) else 1 for value in block.values())


def _column(name: str, parts: Sequence[Block], lengths: Sequence[int]) -> object:
    """One column of all blocks, as numbers or, where a block holds words, as a list."""
    given = [part.get(name, np.nan) for part in parts]
    if any(isinstance(value, list) and not _numeric(value) for value in given):
        return [each for value, n in zip(given, lengths, strict=True) for each in _repeated(value, n)]
    return np.concatenate(
        [np.broadcast_to(np.asarray(value), (n,)) for value, n in zip(given, lengths, strict=True)], axis=0
    )


def _numeric(values: Sequence[object]) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def _repeated(value: object, n: int) -> Sequence[object]:
    return value if isinstance(value, list) else [value] * n
