"""Lines of a text log as people saw them: no terminal escapes, each redrawing of a progress bar a line of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from starprof.importers.source import Source

MAX_LINE = 8192
"""Bytes of a line that are looked at; longer ones are data, not messages."""
_CHUNK = 1 << 18
_BREAKS = re.compile(rb"[\r\n]+")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|[\x00-\x08\x0b-\x1f]")

_RANK = re.compile(
    r"""\s*(?:
        \[\d+,(?P<mpi>\d{1,7})\]<std(?:out|err)>:?      # mpirun --tag-output
      | (?P<label>\d{1,7}):(?=\s|\[|[A-Za-z])           # srun --label
      | \[?\(?(?:[Rr]ank|[Ww]orker)[\s:=_-]*(?P<named>\d{1,7})\]?\)?[:\s]   # [rank3]: of torch.distributed
    )""",
    re.VERBOSE,
)
_RANK_WITHIN = re.compile(
    r"\[(?:global_)?(?:rank|worker)[\s:=_-]*(\d{1,7})\]|\bglobal_rank[=:]\s*(\d{1,7})\b", re.IGNORECASE
)
_RANK_IN_NAME = re.compile(r"(?:^|[/_.\-])(?:global[_-]?)?rank[_.-]?(\d{1,7})(?=\D|$)", re.IGNORECASE)
_TORCHRUN_NAME = re.compile(r"(?:^|/)attempt_\d+/(\d{1,7})/std(?:out|err)\.log$")

_STAMPS = (
    re.compile(
        r"\b(?P<Y>\d{4})[-/](?P<m>\d\d)[-/](?P<d>\d\d)[ T_](?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?:[.,](?P<f>\d{1,9}))?"
    ),
    re.compile(
        r"\b(?P<m>\d\d)[-/](?P<d>\d\d)[-/](?P<Y>\d{4}) (?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?:[.,](?P<f>\d{1,9}))?"
    ),
    re.compile(r"\b[IWE](?P<m>\d\d)(?P<d>\d\d) (?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?:\.(?P<f>\d{1,9}))?"),
    re.compile(r"\b(?P<m>\d\d)[-/](?P<d>\d\d) (?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?:[.,](?P<f>\d{1,9}))?"),
    re.compile(r"(?:^|[\s\[(])(?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?:[.,](?P<f>\d{1,9}))?(?=[\s\])]|$)"),
)
_STAMP_REACH = 160
_EPOCH = datetime(1970, 1, 1)
_LEAP_YEAR = 2000


@dataclass(frozen=True, slots=True)
class Stamp:
    """Clock time of a line.

    Attributes:
        seconds: since 1970 by the log's own clock; without a date, since midnight.
        resolution: seconds of the last digit.
        dated: whether the date is known too.
    """

    seconds: float
    resolution: float
    dated: bool


def log_lines(source: Source) -> Iterator[str]:
    """Lines of a log, split at line feeds and carriage returns; of overlong ones the beginning.

    Raises:
        InputError: the source can't be read.
    """
    with source.open() as stream:
        rest = b""
        while chunk := stream.read(_CHUNK):
            *whole, rest = _BREAKS.split(rest + chunk)
            for line in whole:
                yield _clean(line)
            if len(rest) > _CHUNK:
                rest = rest[:MAX_LINE]
        yield _clean(rest)


def _clean(line: bytes) -> str:
    text = line[:MAX_LINE].decode("utf-8", errors="replace")
    return text if text.isprintable() else _ESCAPES.sub("", text)


def rank_of_line(line: str) -> tuple[int | None, str]:
    """Rank that a line names at its beginning or in brackets, and the line without that beginning."""
    found = _RANK.match(line)
    if found is not None:
        return int(found["mpi"] or found["label"] or found["named"]), line[found.end() :]
    within = _RANK_WITHIN.search(line[:_STAMP_REACH])
    return (int(within[1] or within[2]) if within is not None else None), line


def rank_of_name(name: str) -> int | None:
    """Rank that a file's name tells: rank3.log, train_rank-3.txt, torchrun's attempt_0/3/stdout.log."""
    found = _TORCHRUN_NAME.search(name.replace("!", "/")) or _RANK_IN_NAME.search(name.replace("!", "/"))
    return int(found[1]) if found is not None else None


def stamp_of(line: str) -> Stamp | None:
    """The clock time near the beginning of a line; None when there is none."""
    for pattern in _STAMPS:
        found = pattern.search(line[:_STAMP_REACH])
        if found is None:
            continue
        parts = found.groupdict()
        dated = parts.get("d") is not None
        try:
            moment = datetime(
                int(parts.get("Y") or _LEAP_YEAR),
                int(parts["m"]) if dated else 1,
                int(parts["d"]) if dated else 1,
                int(parts["H"]),
                int(parts["M"]),
                int(parts["S"]),
            )
        except ValueError:
            continue
        fraction = parts.get("f") or ""
        since = moment - (_EPOCH if dated else datetime(_LEAP_YEAR, 1, 1))
        seconds = since / timedelta(seconds=1) + (float(f"0.{fraction}") if fraction else 0.0)
        return Stamp(seconds, 10.0 ** -len(fraction), dated)
    return None
