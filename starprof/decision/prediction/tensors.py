"""Named arrays in a file of the safetensors format, without its package: read and written in a few lines.

Eight bytes with the length of a JSON header, the header (dtype, shape and place of each array, text under
`__metadata__`), then the bytes. Nothing in it can run code. The package would be one more dependency with a compiled
part, for two dtypes; files are the same either way.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from starprof.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
LONGEST_HEADER = 1 << 20
LARGEST_FILE = 64 << 20
METADATA = "__metadata__"


def save(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write arrays of float32 or float64.

    Raises:
        OSError: the file can't be written.
    """
    names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {METADATA: dict(metadata)}
    parts, place = [], 0
    for name, array in arrays.items():
        part = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
        header[name] = {
            "dtype": names[np.dtype(array.dtype).newbyteorder("<")],
            "shape": list(array.shape),
            "data_offsets": [place, place + len(part)],
        }
        parts.append(part)
        place += len(part)
    told = json.dumps(header, sort_keys=True).encode()
    told += b" " * (-len(told) % 8)  # the format wants the data aligned
    path.write_bytes(struct.pack("<Q", len(told)) + told + b"".join(parts))


def load(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays and metadata of a file.

    Raises:
        InputError: it can't be read, or is not of this format.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} is larger than any model of ours")
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from error
    try:
        return _parsed(content)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise InputError(f"{path} is no safetensors file, or is damaged: {error}") from error


def _parsed(content: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    (length,) = struct.unpack_from("<Q", content)
    if length > min(LONGEST_HEADER, len(content) - 8):
        raise ValueError("its header is longer than the file")
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop(METADATA, {})
    data = content[8 + length :]
    arrays = {}
    for name, told in header.items():
        dtype, shape = DTYPES[told["dtype"]], [int(size) for size in told["shape"]]
        begin, end = (int(place) for place in told["data_offsets"])
        if min(shape, default=0) < 0 or not 0 <= begin <= end <= len(data):
            raise ValueError(f"array {name} lies outside of the file")
        if end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"array {name} has other bytes than its shape says")
        arrays[str(name)] = np.frombuffer(data[begin:end], dtype).reshape(shape)
    return arrays, {str(name): str(value) for name, value in metadata.items()}
