"""Output of nccl-tests (and rccl-tests) over pairs of places: who took part, and what the largest message reached."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from starprof.importers.source import Source
from starprof.model.collectives import UNKNOWN, kind

MARKS = (b" nGpus ", b"Avg bus bandwidth", b"# Using devices")
MAX_PLACES = 100_000

_DEVICE = re.compile(r"#?\s*Rank\s+(\d{1,9})\s.*?\son\s+(\S+)\s+device\s+(\d+)")
_PREFIX = re.compile(r"\s*(?:\[\d+,\d+\]<std(?:out|err)>:|\d{1,7}:\s|\[\d{1,7}\]\s)\s?")
"""What mpirun --tag-output, srun --label and mpiexec -prepend-rank put before each line."""
_AVERAGE = re.compile(r"#?\s*Avg bus bandwidth\s*:\s*([0-9.eE+-]+)")
_STARTS = re.compile(r"#?\s*(nThread\s|Collective test starting:\s*(\S+))")
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
        ranks: those of `places`.
        apart: a rank comes twice: processes that did not find each other wrote into one output.
    """

    places: list[tuple[str, str]] = field(default_factory=list)
    name: str = ""
    size: int = -1
    rates: list[float] = field(default_factory=list)
    average: float | None = None
    ranks: set[int] = field(default_factory=set)
    apart: bool = False

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
    return any(mark in head for mark in MARKS) or all(word in head for word in (b"#", b"busbw", b"algbw"))


def blocks(source: Source) -> Iterator[Block]:
    """Runs of a test in one file, in order.

    Raises:
        InputError: the file can't be read.
    """
    block = Block()
    rates: tuple[int, ...] = ()
    for whole in source.text_lines():
        found = _PREFIX.match(whole)
        line = whole[found.end() :] if found is not None else whole
        start = _STARTS.search(line)
        if start is not None and (block.rate is not None or block.places):
            if block.rate is not None:
                yield block
            block = Block(name=block.name if block.rate is None else "")
        if start is not None and start.group(2):
            block.name = name_of(start.group(2))
        rates = _rate_columns(line) or rates
        _read(block, line, rates)
    if block.rate is not None:
        yield block


def _rate_columns(line: str) -> tuple[int, ...]:
    """Where a row has its bus bandwidths, counted from its end, by the line that names the columns.

    Columns in front may be empty, so that only the end of a row is certain; a time stamp there is two cells.
    """
    names = line.replace("#wrong", "wrong").lstrip("# \t").split() if "busbw" in line else []
    behind = len(names) + (1 if names[-1:] == ["timestamp"] else 0)
    return tuple(at - behind for at, name in enumerate(names) if name == "busbw")


def _read(block: Block, line: str, rates: Sequence[int]) -> None:
    device = _DEVICE.match(line)
    if device is not None and len(block.places) < MAX_PLACES:
        block.apart |= int(device.group(1)) in block.ranks
        block.ranks.add(int(device.group(1)))
        block.places.append((device.group(2)[:100], device.group(3)))
        return
    average = _AVERAGE.search(line)
    if average is not None:
        block.average = _rate(average.group(1))
        return
    cells = line.split()
    if not rates or len(cells) < 1 - rates[-1] or not cells[0].isascii() or not cells[0].isdecimal():
        return
    found = [_rate(cells[at]) for at in rates if len(cells) > -at]
    told = [rate for rate in found if rate is not None]
    if told and len(cells[0]) <= 18 and int(cells[0]) >= block.size:
        block.size, block.rates = int(cells[0]), told


def _rate(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None


def name_of(text: str) -> str:
    """The test that a program's or a file's name tells, "" when it tells none."""
    found = _TEST.search(text)
    what = kind(found.group(1)) if found is not None else UNKNOWN
    return "" if what == UNKNOWN else what
