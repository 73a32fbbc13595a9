"""Bandwidth tests between pairs of places: nccl-tests output of each pair, or a table with two places and a bandwidth.

Tables come in many forms; the columns are guessed from their names, and what was guessed is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import pandas as pd

from starprof.errors import InputError
from starprof.importers.base import run_of
from starprof.importers.nccl import nccl_tests, nccl_tests_json
from starprof.importers.nccl.pair_columns import Columns, from_header, split_pair, unit_of
from starprof.importers.source import Source
from starprof.model.collectives import UNKNOWN, kind
from starprof.model.rundata import RunData
from starprof.model.tables.trace import LINK_TEST

NAME = "link-tests"

MAX_ROWS = 1_000_000
MAX_NAME = 100
SEEN_LINES = 20
_APART = "the processes did not find each other (a rank comes twice: nccl-tests built without MPI?)"
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?")
_NAMED = re.compile(r"pair|bandwidth|busbw|link|nccl", re.IGNORECASE)


@dataclass
class _Tests:
    """Rows of table `link_test`, and what is to be said about them."""

    rows: list[tuple[str, str, float, str | None]] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    skipped: int = 0
    apart: int = 0

    def add(self, first: str, second: str, bytes_per_s: float, label: str | None, source: Source) -> None:
        if len(self.rows) >= MAX_ROWS:
            raise InputError(f"{source.name}: more than {MAX_ROWS} tests")
        self.rows.append((first[:MAX_NAME], second[:MAX_NAME], bytes_per_s, label))


def recognises(source: Source) -> bool:
    """nccl-tests output, or a table whose first lines hold two places and a bandwidth."""
    if b"\0" in source.head:
        return False
    if nccl_tests.recognises(source) or nccl_tests_json.recognises(source):
        return True
    lines = [line for line in source.head.decode("utf-8", errors="replace").splitlines() if _is_row(line)]
    if len(source.head) >= 1 << 16:
        lines = lines[:-1]
    lines = lines[:SEEN_LINES]
    if len(lines) < 2:
        return False
    if from_header(_cells(lines[0])) is not None:
        return True
    found = [_without_header(_cells(line)) for line in lines]
    sure = all(row is not None and (row.paired or row.unit) for row in found)
    return sure or (all(row is not None for row in found) and _NAMED.search(source.base) is not None)


def read(sources: Sequence[Source]) -> RunData:
    """Read all tests as one set.

    Raises:
        InputError: a file holds no test of a pair.
    """
    tests = _Tests()
    for source in sources:
        if nccl_tests_json.recognises(source):
            _read_output(source, nccl_tests_json.blocks(source), tests)
        elif nccl_tests.recognises(source):
            _read_output(source, nccl_tests.blocks(source), tests)
        else:
            _read_table(source, tests)
    if not tests.rows:
        over = f", but {tests.skipped} over more than two places: pairs are needed" if tests.skipped else ""
        over += f"; {_APART} in {tests.apart}" if tests.apart else ""
        raise InputError(f"{sources[0].name}: no bandwidth test between two places{over}")
    if tests.skipped:
        tests.notes[f"{tests.skipped} tests over more than two places left out"] = None
    if tests.apart:
        tests.notes[f"{tests.apart} tests left out: {_APART}"] = None
    frame = pd.DataFrame(tests.rows, columns=list(LINK_TEST.names))
    run = run_of(NAME, sources, link_tests=frame, unavailable=[("steps", "bandwidth tests are no steps of a job")])
    return replace(run, info={**run.info, "note": "; ".join(tests.notes)})


def _read_output(source: Source, blocks: Iterable[nccl_tests.Block], tests: _Tests) -> None:
    for block in blocks:
        if block.apart:
            tests.apart += 1
            continue
        ends = block.ends
        if not ends:
            named = split_pair(re.sub(r"\.\w+$", "", source.base))
            if named is None:
                raise InputError(f"{source.name} does not say between which places: keep the lines with 'Rank ... on'")
            ends = named
            tests.notes["places taken from the file names"] = None
        if len(ends) != 2 or block.rate is None:
            tests.skipped += 1
            continue
        label = block.name or nccl_tests.name_of(source.base) or None
        tests.add(ends[0], ends[1], block.rate * 1e9, label, source)
        tests.notes["bus bandwidth at the largest message"] = None


def _read_table(source: Source, tests: _Tests) -> None:
    lines = (line for line in source.text_lines() if _is_row(line))
    first = next(lines, "")
    columns = from_header(_cells(first))
    if columns is None:
        _read_bare(chain([first], lines), source, tests)
        return
    tests.notes[columns.words] = None
    rows: list[tuple[str, str, float, str | None, float]] = []
    for line in lines:
        cells = _cells(line)
        row = _row(cells, columns)
        if row is not None:
            rows.append(row)
        elif from_header(cells) is None and any(cells):
            raise InputError(f"{source.name}: no two places and a bandwidth in the line {line[:60]!r}")
        if len(rows) > MAX_ROWS:
            raise InputError(f"{source.name}: more than {MAX_ROWS} tests")
    largest = max((size for *_, size in rows), default=0.0)
    for one, other, rate, label, size in rows:
        if size == largest:  # small messages show latency, not bandwidth
            tests.add(one, other, rate, label, source)
    if columns.size is not None and any(size != largest for *_, size in rows):
        tests.notes["largest messages only"] = None


def _row(cells: Sequence[str], columns: Columns) -> tuple[str, str, float, str | None, float] | None:
    if max(columns.first, columns.second or 0, columns.rate) >= len(cells):
        return None
    places = (
        split_pair(cells[columns.first]) if columns.second is None else (cells[columns.first], cells[columns.second])
    )
    if places is None or not all(places):
        return None
    number = _NUMBER.match(cells[columns.rate])
    size = 0.0
    if columns.size is not None and columns.size < len(cells):
        told = _NUMBER.match(cells[columns.size])
        size = float(told.group()) if told is not None else 0.0
    label = cells[columns.label] if columns.label is not None and columns.label < len(cells) else ""
    rate = float("nan") if number is None else float(number.group()) * columns.factor  # a test that failed
    return None if rate >= 1e15 else (*places, rate, _label(label), size)


@dataclass(frozen=True)
class _Bare:
    """A row of a table without names of columns."""

    first: str
    second: str
    bytes_per_s: float
    label: str | None
    paired: bool
    unit: bool


def _read_bare(lines: Iterable[str], source: Source, tests: _Tests) -> None:
    for line in lines:
        row = _without_header(_cells(line))
        if row is None:
            raise InputError(f"{source.name}: no two places and a bandwidth in the line {line[:60]!r}")
        tests.add(row.first, row.second, row.bytes_per_s, row.label, source)
        unit = "" if row.unit else " in GB/s (assumed)"
        tests.notes.setdefault(f"no names of columns: two places, then the bandwidth{unit}")


def _without_header(cells: Sequence[str]) -> _Bare | None:
    """Two places (or both in one cell), a number, perhaps a unit, and whatever the row says besides."""
    joined = split_pair(cells[0]) if cells else None
    at = 1 if joined is not None else 2
    places = joined if joined is not None else tuple(cells[:2])
    if len(cells) <= at or len(places) != 2 or places[0] == places[1]:
        return None
    found = _NUMBER.match(cells[at])
    if found is None:
        return None
    rest = [cells[at][found.end() :], *cells[at + 1 :]]
    factor, unit = unit_of(" ".join(rest[:2]).strip())
    told = not unit.endswith("(assumed)")
    if rest[0].strip() and not told:
        return None
    label = " ".join(rest[1:] if not told or rest[0].strip() else rest[2:])
    rate = float(found.group()) * factor
    return _Bare(places[0], places[1], rate, _label(label), joined is not None, told) if rate < 1e15 else None


def _label(text: str) -> str | None:
    """What a row says of its pair; names of tests in one form."""
    bare = text.strip(" ()[]\t")[:MAX_NAME]
    what = kind(bare)
    return (bare if what == UNKNOWN else what) or None


def _is_row(line: str) -> bool:
    bare = line.strip()
    return bool(bare) and not bare.startswith("#") and bool(bare.strip("|-+: ="))


def _cells(line: str) -> list[str]:
    """Cells by the separator that the line uses."""
    for sign in ("\t", ",", ";", "|"):
        if sign in line:
            return [cell.strip().strip('"') for cell in line.strip().strip("|").split(sign)]
    return line.split()
