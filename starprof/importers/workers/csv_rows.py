"""Rows of a CSV file with known column names."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from math import isfinite, nan

from starprof.errors import InputError
from starprof.importers.source import Source

MAX_ROWS = 5_000_000


def header(head: bytes) -> tuple[str, ...]:
    """Column names in the first line of a file, stripped; empty when it is no text."""
    line = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0]
    if b"\0" in line or b"," not in line:
        return ()
    try:
        names = next(csv.reader([line.decode("utf-8", errors="replace").rstrip("\r")]), [])
    except csv.Error:  # a progress bar that redraws its line, a field without end
        return ()
    return tuple(name.strip() for name in names)


def rows(source: Source) -> Iterator[Mapping[str, str]]:
    """Each row by its column names; short rows lack the last ones.

    Raises:
        InputError: the file can't be read, is no CSV, or is too long.
    """
    lines = csv.reader(line.removeprefix("\ufeff").replace("\0", "") for line in source.text_lines())
    try:
        names = [name.strip() for name in next(lines, [])]
        for number, cells in enumerate(lines):
            if number >= MAX_ROWS:
                raise InputError(f"{source.name} has more than {MAX_ROWS} rows")
            yield dict(zip(names, cells, strict=False))
    except csv.Error as error:
        raise InputError(f"{source.name} is no CSV: {error}") from error


def number(text: str | None) -> float:
    """A finite number, NaN for anything else."""
    try:
        value = float(text) if text else nan
    except ValueError:
        return nan
    return value if isfinite(value) else nan


def rank_number(text: str | None) -> int | None:
    """A rank, None for anything else."""
    value = number(text)
    return int(value) if 0 <= value < 1 << 20 and value == int(value) else None
