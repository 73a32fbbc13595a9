"""Which columns of a table of pairwise bandwidth tests are what, and how a pair is written in one cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_UNIT = re.compile(
    r"(?<![A-Za-z])([GMKgmk])(i?)([Bb]its?|[Bb]ytes?|[bB]s?)\s*(?:/\s*s(?:ec)?|ps|_?per_?s(?:ec)?|(?<=[bB]s)(?![A-Za-z]))"
)
"""A unit of bandwidth: GB/s, Gbit/s, gbps, MiB/s, GBytes/sec, gbs."""
_PLAIN = re.compile(r"(?<![A-Za-z])(bytes?\s*(/\s*s|_?per_?s)|B\s*/\s*s)")
_POWERS = {"g": 3, "m": 2, "k": 1}

_HOST = re.compile(
    r"(host|node|src|source|dst|dest|destination|server|client|from|to|first|second|peer|sender|receiver|local|remote|"
    r"gpu|endpoint|ip|a|b)[ _-]?(a|b|1|2|0|x|y|name|host|node|ip|id)?[ _-]?(a|b|1|2|0|x|y)?$"
)
_PAIR = re.compile(r"(pairs?|hosts|nodes|link)$")
_BANDWIDTHS = (
    re.compile(r"bus[ _-]?(bw|bandwidth)"),
    re.compile(r"alg(o|orithm)?[ _-]?(bw|bandwidth)"),
    re.compile(r"bandwidth|throughput|(^|[^a-z])bw([^a-z]|$)"),
    re.compile(r"([gmk]i?b(it|yte)?|byte)s?[ _]?(/s|ps|per_s|/sec)"),
)
_SIZE = re.compile(r"(msg|message|size|bytes|nbytes)[ _-]?(size|bytes|b)?$")
_LABEL = re.compile(
    r"(rack|x-?rack|path|kind|type|switch|test|op|operation|coll|collective|label|note|comment|rail)s?$"
)
_ARROWS = re.compile(r"\s*(?:<-+>|-+>|<-+|\u2194|\u2192|\bvs\b|<=>|=>)\s*")


@dataclass(frozen=True)
class Columns:
    """Positions in a row; None where there is no such column.

    Attributes:
        first: first place, or both of them in one cell when `second` is None.
        rate: bandwidth.
        factor: bytes per second of a 1 in it.
        size: message size.
        label: what a pair is said to be, such as x-rack.
        words: the guess for people.
    """

    first: int
    second: int | None
    rate: int
    factor: float
    size: int | None
    label: int | None
    words: str


def from_header(names: Sequence[str]) -> Columns | None:
    """Columns by their names; None when these don't name two places and a bandwidth."""
    plain = [re.sub(r"[()\[\]]", " ", name).strip().lower() for name in names]
    bare = [re.sub(r"\s+", " ", name) for name in plain]
    rate = _rate_column(bare)
    if rate is None:
        return None
    hosts = [i for i, name in enumerate(bare) if i != rate and _HOST.match(name)]
    pair = next((i for i, name in enumerate(bare) if _PAIR.match(name)), None)
    if len(hosts) < 2 and pair is None:
        return None
    first, second = (hosts[0], hosts[1]) if len(hosts) >= 2 else (pair or 0, None)
    taken = {first, second, rate}
    label = next((i for i, name in enumerate(bare) if i not in taken and _LABEL.match(name)), None)
    size = next((i for i, name in enumerate(bare) if i not in taken and _SIZE.match(name)), None)
    factor, unit = unit_of(names[rate])
    places = names[first].strip() if second is None else f"{names[first].strip()} and {names[second].strip()}"
    words = f"places from {places}, bandwidth from {names[rate].strip()} in {unit}"
    return Columns(first, second, rate, factor, size, label, words)


def _rate_column(names: Sequence[str]) -> int | None:
    for pattern in _BANDWIDTHS:
        for i, name in enumerate(names):
            if pattern.search(name):
                return i
    return None


def unit_of(text: str) -> tuple[float, str]:
    """Bytes per second of a 1 in the unit that a text names, and the unit; GB/s when it names none."""
    found = _UNIT.search(text)
    if found is None:
        return (1.0, "B/s") if _PLAIN.search(text) else (1e9, "GB/s (assumed)")
    letter, binary, what = found.groups()
    scale = (1024.0 if binary else 1000.0) ** _POWERS[letter.lower()]
    # A small b is a bit, but "gbs" is what nccl tools write for GB/s.
    bits = what.lower().startswith("bit") or what == "b"
    prefix = letter.upper() + binary
    return (scale / 8, f"{prefix}bit/s") if bits else (scale, f"{prefix}B/s")


def split_pair(cell: str) -> tuple[str, str] | None:
    """Two places in one cell: `644-699`, `node-1-node-2`, `a -> b`; None when it can't be told where they part."""
    parts = [part for part in _ARROWS.split(cell.strip()) if part]
    if len(parts) == 2:
        return parts[0], parts[1]
    if len(parts) != 1:
        return None
    for sign in ("-", "_", ":", "/"):
        pieces = cell.strip().split(sign)
        half = len(pieces) // 2
        if len(pieces) >= 2 and len(pieces) % 2 == 0 and all(pieces):
            first, second = sign.join(pieces[:half]), sign.join(pieces[half:])
            if _alike(first, second):
                return first, second
    return None


def _alike(first: str, second: str) -> bool:
    """Whether two names are of one kind: `gpu` and `01` are parts of one name, not two places."""
    shapes = [re.sub(r"\d+", "0", name) for name in (first, second)]
    return shapes[0] == shapes[1] or not any("0" in shape for shape in shapes)
