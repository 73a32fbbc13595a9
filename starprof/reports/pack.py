"""Data for the page in a few bytes: quantised matrices in one gzip stream.

Container, little-endian: uint32 length of the JSON, the JSON (ASCII), zeros up to a multiple of 8, then the arrays,
each at a multiple of 8. The JSON names an array by where it lies (`{"at": bytes, "n": items, "t": "u1|u2|f4"}`).
The page (`page/report.js`) inflates it with DecompressionStream and makes typed arrays of it.
"""

from __future__ import annotations

import base64
import gzip
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGN = 8
FINE_CELLS = 100_000  # up to here two bytes a cell: the page stays small and the numbers exact to 0.02 %


class Pack:
    """Collects arrays; `container` writes them together with the JSON that refers to them."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def array(self, values: NDArray[Any]) -> dict[str, Any]:
        """Add a 1-D or flattened array as uint8, uint16 or float32; returns its reference for the JSON."""
        if values.dtype not in (np.dtype(np.uint8), np.dtype(np.uint16)):
            values = values.astype(np.float32)
        raw = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        place = {"at": self._size, "n": int(values.size), "t": f"{values.dtype.kind}{values.dtype.itemsize}"}
        self._parts.append(raw + bytes(-len(raw) % ALIGN))
        self._size += len(self._parts[-1])
        return place

    def quantised(self, values: NDArray[np.float64]) -> dict[str, Any]:
        """Add a matrix as codes on an asinh scale: fine near zero, relative to the value far from it.

        A linear scale would spend all its codes on one ten-second checkpoint among steps of 50 ms. Code 0 is "no
        value"; code k stands for `knee * sinh(low + (k - 1) * unit)`. One byte a cell gives about 3 % of the value,
        two bytes 0.02 %.

        Args:
            values: any shape; NaN = no value.

        Returns:
            reference of the codes, with shape, knee, low and unit.
        """
        kind, top = (np.uint16, 65534) if values.size <= FINE_CELLS else (np.uint8, 254)
        finite = values[np.isfinite(values)]
        scale = {"knee": 1.0, "low": 0.0, "unit": 1.0}
        codes = np.zeros(values.shape, dtype=kind)
        if finite.size:
            # The knee only has to be of the size of the usual value; a round number keeps the bytes deterministic.
            knee = float(10 ** np.floor(np.log10(max(float(np.median(np.abs(finite))), 1.0))))
            bent = np.arcsinh(np.where(np.isfinite(values), values, 0.0) / knee)
            low, high = (float(np.arcsinh(edge / knee)) for edge in (finite.min(), finite.max()))
            unit = (high - low) / (top - 1) or 1.0
            codes = np.where(np.isfinite(values), np.rint((bent - low) / unit) + 1, 0).astype(kind)
            scale = {"knee": knee, "low": low, "unit": unit}
        return {**self.array(codes), "shape": list(values.shape), **scale}

    def container(self, document: Mapping[str, Any]) -> str:
        """The JSON and all arrays: gzip, then base64 (the same bytes for the same input)."""
        text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
        head = struct.pack("<I", len(text)) + text
        return squeeze(head + bytes(-len(head) % ALIGN) + b"".join(self._parts))


def squeeze(raw: bytes) -> str:
    """Gzip without a time stamp, as base64 text."""
    return base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode("ascii")


def peak_bins(values: NDArray[np.float64], at_most: int) -> tuple[NDArray[np.float64], int]:
    """Shorten the step axis by keeping the largest value of every bin, so that no spike is lost.

    Args:
        values: shape (R, S); NaN = no value.
        at_most: number of bins that may be left.

    Returns:
        values of shape (R, ceil(S / width)), and the width in steps (1: nothing was shortened).
    """
    rows, steps = values.shape
    width = -(-steps // at_most) if steps else 1
    if width <= 1:
        return values, 1
    padded = np.full((rows, -(-steps // width) * width), np.nan)
    padded[:, :steps] = values
    return np.fmax.reduce(padded.reshape(rows, -1, width), axis=2), width
