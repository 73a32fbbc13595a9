"""Lists of hosts as schedulers and people write them: `node[01-03,7],x1`, `a;b`, `a b`."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_HOSTS = 100_000
MAX_LENGTH = 1 << 20

_SEPARATORS = re.compile(r"[\s;|+]+")
_PART = re.compile(r"((?:[^,\[\]]|\[[^\[\]]*\])+)")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")
_PORT = re.compile(r":\d+$")


def expand(text: str) -> tuple[str, ...]:
    """Every host of a list, each once, in order; empty when it is too long, or no list of hosts.

    Args:
        text: names separated by commas, blanks, `;`, `|` or `+`; numbers in brackets stand for as many names, as Slurm
            writes them; a `:8` behind a name (slots) does not count.
    """
    if len(text) > MAX_LENGTH:
        return ()
    found: dict[str, None] = {}
    for word in _SEPARATORS.split(text.strip().strip("'\"()")):
        for part in _PART.findall(word):
            for name in _names(part):
                found[name] = None
                if len(found) > MAX_HOSTS:
                    return ()
    return tuple(found)


def _names(part: str) -> Iterator[str]:
    bracket = _BRACKET.search(part)
    if bracket is None:
        name = _PORT.sub("", part.strip("'\""))
        if name:
            yield name[:200]
        return
    for piece in bracket[1].split(","):
        numbers = _RANGE.fullmatch(piece.strip())
        if numbers is None:
            return
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if last - first >= MAX_HOSTS:
            return
        for number in range(first, last + 1):
            yield from _names(f"{part[: bracket.start()]}{number:0{len(numbers[1])}d}{part[bracket.end() :]}")
