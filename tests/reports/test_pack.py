from __future__ import annotations

import base64
import gzip
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from starprof.reports import pack


def unpack(container: str) -> tuple[dict[str, Any], bytes]:
    """What the page does: the JSON, and the bytes that its references point into."""
    raw = gzip.decompress(base64.b64decode(container))
    (length,) = struct.unpack_from("<I", raw)
    return json.loads(raw[4 : 4 + length]), raw[-(-(4 + length) // 8) * 8 :]


def values_of(place: dict[str, Any], arrays: bytes) -> np.ndarray:
    return np.frombuffer(arrays, dtype=np.dtype("<" + place["t"]), count=place["n"], offset=place["at"])


def expanded(place: dict[str, Any], arrays: bytes) -> np.ndarray:
    codes = values_of(place, arrays).reshape(place["shape"]).astype(float)
    values = place["knee"] * np.sinh(place["low"] + (codes - 1) * place["unit"])
    return np.where(codes == 0, np.nan, values)


def round_trip(matrix: np.ndarray) -> np.ndarray:
    packer = pack.Pack()
    document = {"z": packer.quantised(matrix)}
    read, arrays = unpack(packer.container(document))
    return expanded(read["z"], arrays)


@given(hnp.arrays(np.float64, (3, 7), elements=st.floats(-1e5, 1e5) | st.just(float("nan"))))
def test_a_small_matrix_comes_back_within_a_thousandth_and_keeps_its_holes(matrix: np.ndarray):
    back = round_trip(matrix)
    np.testing.assert_array_equal(np.isnan(back), np.isnan(matrix))
    known = np.isfinite(matrix)
    slack = 1e-3 * np.abs(matrix[known]) + 1e-3 * max(
        1.0, float(np.median(np.abs(matrix[known]))) if known.any() else 1
    )
    assert (np.abs(back[known] - matrix[known]) <= slack).all()


def test_a_large_matrix_takes_one_byte_a_cell_and_stays_within_four_percent():
    rng = np.random.default_rng(0)
    matrix = rng.lognormal(3.9, 0.05, (400, 300))
    matrix[7, 9] = 10_000.0
    packer = pack.Pack()
    place = packer.quantised(matrix)
    assert place["t"] == "u1"
    np.testing.assert_allclose(round_trip(matrix), matrix, rtol=0.04)


def test_one_huge_spike_does_not_wash_out_the_small_values():
    matrix = np.full((4, 100), 50.0)
    matrix[1] = 52.0
    matrix[0, 0] = 60_000.0
    back = round_trip(matrix)
    assert back[1, 5] - back[2, 5] == pytest.approx(2.0, rel=0.05)


def test_plain_arrays_come_back_exactly():
    packer = pack.Pack()
    document = {"a": packer.array(np.array([1.5, np.nan])), "b": packer.array(np.array([3, 2, 1], dtype=np.uint8))}
    read, arrays = unpack(packer.container(document))
    np.testing.assert_array_equal(values_of(read["a"], arrays), [1.5, np.nan])
    np.testing.assert_array_equal(values_of(read["b"], arrays), [3, 2, 1])


def test_the_same_input_gives_the_same_bytes():
    matrix = np.arange(12.0).reshape(3, 4)

    def packed() -> str:
        packer = pack.Pack()
        return packer.container({"z": packer.quantised(matrix)})

    assert packed() == packed()


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 60)), elements=st.floats(-1e6, 1e6)))
def test_shortening_the_steps_loses_no_spike(matrix: np.ndarray):
    binned, width = pack.peak_bins(matrix, 8)
    assert binned.shape[1] <= 8
    np.testing.assert_array_equal(binned.max(axis=1), matrix.max(axis=1))
    for row in range(len(matrix)):
        at = int(matrix[row].argmax())
        assert binned[row, at // width] == matrix[row, at]


def test_a_bin_without_any_record_stays_empty():
    binned, _ = pack.peak_bins(np.array([[np.nan, np.nan, 1.0, np.nan]]), 2)
    np.testing.assert_array_equal(binned, [[np.nan, 1.0]])
