"""Output of nccl-tests (and rccl-tests) over pairs of places: who took part, and what the largest message reached."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from starprof.importers.source import Source
from starprof.model.collectives import UNKNOWN, kind

MARKS = (b"nThread", b"Avg bus bandwidth", b"Using devices")
MAX_PLACES = 100_000

_DEVICE = re.compile(r"#\s*Rank\s+\d+.*?\son\s+(\S+)\s+device\s+(\d+)")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*([0-9.eE+-]+)")
_STARTS = re.compile(r"#\s*(nThread|Collective test starting:\s*(\S+))")
_TEST = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|sendrecv|reduce|gather|scatter)", re.IGNORECASE
)


@dataclass
class Block:
    """One run of a test.

    Attributes:
        places: (host, device) of each rank.
        name: test, "" when not told.
        size: bytes of the largest message.
        rates: bus bandwidth at that size, GB/s.
        average: of all sizes, as the test prints it; GB/s.
    """

    places: list[tuple[str, str]] = field(default_factory=list)
    name: str = ""
    size: int = -1
    rates: list[float] = field(default_factory=list)
    average: float | None = None

    @property
    def rate(self) -> float | None:
        """GB/s at the largest message; small ones show latency, not bandwidth."""
        return sum(self.rates) / len(self.rates) if self.rates else self.average

    @property
    def ends(self) -> tuple[str, ...]:
        """The places: hosts, or the devices of the only host."""
        hosts = tuple(dict.fromkeys(host for host, _ in self.places))
        return hosts if len(hosts) != 1 else tuple(f"{host} GPU {device}" for host, device in self.places)


def recognises(source: Source) -> bool:
    """Text with the lines that nccl-tests prints around its results."""
    head = source.head
    return b"#" in head and (any(mark in head for mark in MARKS) or (b"busbw" in head and b"algbw" in head))


def blocks(source: Source) -> Iterator[Block]:
    """Runs of a test in one file, in order.

    Raises:
        InputError: the file can't be read.
    """
    block, columns = Block(), 0
    for line in source.text_lines():
        start = _STARTS.search(line)
        if start is not None and (block.rate is not None or block.places):
            if block.rate is not None:
                yield block
            block = Block(name=block.name if block.rate is None else "")
        if start is not None and start.group(2):
            block.name = _name(start.group(2))
        columns = line.count("busbw") or columns
        _read(block, line, columns)
    if block.rate is not None:
        yield block


def _read(block: Block, line: str, columns: int) -> None:
    device = _DEVICE.search(line)
    if device is not None and len(block.places) < MAX_PLACES:
        block.places.append((device.group(1)[:100], device.group(2)))
        return
    average = _AVERAGE.search(line)
    if average is not None:
        block.average = _rate(average.group(1))
        return
    cells = line.split()
    if not columns or line.lstrip().startswith("#") or len(cells) < 4 * columns + 1 or not cells[0].isascii():
        return
    if not cells[0].isdigit() or len(cells[0]) > 18:
        return
    # From the end: time, algbw, busbw and the number of wrong elements, out of place and in place.
    found = [_rate(cells[-2 - 4 * i]) for i in range(columns)]
    rates = [rate for rate in found if rate is not None]
    if rates and int(cells[0]) >= block.size:
        block.size, block.rates = int(cells[0]), rates


def _rate(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None


def _name(test: str) -> str:
    found = _TEST.search(test)
    what = kind(found.group(1)) if found is not None else UNKNOWN
    return "" if what == UNKNOWN else what


def name_of_file(name: str) -> str:
    """The test that a file name tells, "" when it tells none."""
    return _name(name)
