"""How much is in a batch: samples and tokens, from shapes alone (nothing is copied or synchronised)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

_DEPTH = 3
_SEQUENCES = (list, tuple)


def batch_size(batch: Any) -> tuple[int | None, int | None]:
    """(samples, tokens) of what a data loader returned.

    Samples are the first dimension of the first tensor found. Tokens are counted where that tensor, or the
    field `input_ids`, is a matrix of integers (batch x sequence, padding included). None where not known.
    """
    tensor = batch[0] if type(batch) in _SEQUENCES and batch else batch  # most are like this
    if not isinstance(tensor, Tensor):
        tensor = _first_tensor(batch, _DEPTH)
    shape = () if tensor is None else tensor.shape
    if tensor is None or not shape:
        return None, None
    tokens = shape[0] * shape[1] if len(shape) == 2 and not tensor.dtype.is_floating_point else None
    return shape[0], tokens


def _first_tensor(batch: Any, depth: int) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    if depth == 0:
        return None
    if not isinstance(batch, (list, tuple)):
        if not isinstance(batch, Mapping):
            return None
        if "input_ids" in batch:
            return _first_tensor(batch["input_ids"], depth - 1)
        batch = batch.values()
    for part in batch:
        found = _first_tensor(part, depth - 1)
        if found is not None:
            return found
    return None
