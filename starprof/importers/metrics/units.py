"""Numbers with units as the NVIDIA tools print them."""

from __future__ import annotations

import functools
import re

NAN = float("nan")
_VALUE = re.compile(r"([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d{1,3})?)\s*([A-Za-z%/]*)$")
_FACTORS = {
    "": 1.0,
    "%": 1.0,
    "w": 1.0,
    "mw": 1e-3,
    "kw": 1e3,
    "mhz": 1.0,
    "khz": 1e-3,
    "hz": 1e-6,
    "ghz": 1e3,
    "c": 1.0,
    "b": 1.0,
    "kib": 2.0**10,
    "mib": 2.0**20,
    "gib": 2.0**30,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "kb/s": 1e3,
    "mb/s": 1e6,
    "gb/s": 1e9,
    "mib/s": 2.0**20,
    "gib/s": 2.0**30,
}
"""To watts, MHz, bytes, bytes per second; percent and degrees stay."""

_WORDS = {"active": 1.0, "not active": 0.0, "yes": 1.0, "no": 0.0, "enabled": 1.0, "disabled": 0.0}


@functools.lru_cache(maxsize=1 << 14)
def number(text: str, usual_unit: str = "") -> float:
    """A cell's value: "71 %", "300.00 W", "1410 MHz", "40536 MiB", "0x0000000000000004", "Not Active".

    Args:
        text: the cell.
        usual_unit: unit of a number that has none.

    Returns:
        NaN for N/A, [Not Supported], -, errors in brackets, and whatever else is no number with a known unit.
    """
    text = text.strip()
    if text[:2] in {"0x", "0X"}:
        return _hexadecimal(text)
    found = _VALUE.match(text) if len(text) < 64 else None
    if found is None:
        return _WORDS.get(text.lower(), NAN)
    factor = _FACTORS.get((found[2] or usual_unit).lower())
    return NAN if factor is None else float(found[1]) * factor


def _hexadecimal(text: str) -> float:
    try:
        return float(int(text[:20], 16))
    except ValueError:
        return NAN
