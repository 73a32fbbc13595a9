"""Lists of ranks, as tools write them and as the tables hold them."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WHOLE = re.compile(r"[\[({]?\s*\d{1,7}(?:\s*,\s*\d{1,7})*\s*,?\s*[\])}]?")
_NUMBER = re.compile(r"\d+")


def read_list(text: str) -> tuple[int, ...]:
    """Ranks of a list such as `[0, 1]` or `(0, 1)`, rising; empty when it is no list, or not a whole one."""
    if _WHOLE.fullmatch(text.strip()) is None:
        return ()
    return tuple(sorted({int(n) for n in _NUMBER.findall(text)}))


def listed(ranks: Iterable[int]) -> str:
    """Ranks as the tables hold them: `0-3,8`."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def from_listed(text: str) -> tuple[int, ...]:
    """The ranks that `listed` wrote; empty when the text is none of its."""
    result: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) - int(first) > 1 << 20:
            return ()
        result += range(int(first), int(last or first) + 1)
    return tuple(result)
