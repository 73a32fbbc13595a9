"""The contract of an importer, and the builder that all of them end in.

An importer turns sources into `RunData`. It states facts: microseconds, bytes and counts as the source has them, NaN
or None where it has none, and a line in `unavailable` for each thing that the source can't tell and the verdict would
need. It never judges, and never guesses without saying so. It streams, holds arrays rather than objects, and raises
`InputError` (one line that says what is wrong and what to do) for whatever it can't make sense of; nothing else may
escape from it, whatever the bytes are.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from starprof.errors import InputError
from starprof.importers.source import Source
from starprof.model.columns import Table
from starprof.model.rundata import RankInfo, RunData, Steps
from starprof.model.tables.job import EVENT, GAP, NODE, STEP, UNAVAILABLE
from starprof.store.starts import reckoned_starts

OWN, WALL, JOB = "own", "wall", "job"
"""What the step records are: see column `timing` of table `run`."""

MOST = 9e15
"""Sum of a column over all steps, at most: microseconds of 285 years, whose nanoseconds an integer still holds."""

STEP_COLUMNS = tuple(n for n in STEP.names if n not in {"attempt", "rank", "step", "start_mono_ns"})


class Importer(Protocol):
    """One format; a module with these functions is one.

    Attributes:
        NAME: short name, for `--format` and for what is shown.
    """

    NAME: str

    def recognises(self, source: Source) -> bool:
        """Whether the source is of this format, from `source.head` (and its name, if the content leaves doubt)."""
        ...

    def read(self, sources: Sequence[Source]) -> RunData:
        """Read all sources of one run together: one a rank, or whatever the format uses.

        Raises:
            InputError: they can't be understood, or don't belong together.
        """
        ...


def run_of(
    source_format: str,
    sources: Sequence[Source],
    *,
    ranks: Sequence[RankInfo] = (),
    steps: Sequence[int] | NDArray[np.int64] = (),
    columns: Mapping[str, NDArray[np.float64]] | None = None,
    start_ns: NDArray[np.int64] | None = None,
    timing: str | None = None,
    unavailable: Sequence[tuple[str, str]] = (),
    samples: Mapping[str, pd.DataFrame] | None = None,
    events: pd.DataFrame | None = None,
    nodes: pd.DataFrame | None = None,
    operations: pd.DataFrame | None = None,
    collectives: pd.DataFrame | None = None,
    link_tests: pd.DataFrame | None = None,
) -> RunData:
    """A run of what an importer found.

    Args:
        source_format: the importer's NAME.
        sources: what was read.
        ranks: in rank order.
        steps: step numbers, shape (S,), rising.
        columns: columns of table `step`, shape (R, S), NaN = not told.
        start_ns: start of each step, shape (R, S), 0 = no record; made up from the durations when not told.
        timing: OWN, WALL or JOB; None when the columns separate waiting from work as the hook does.
        unavailable: (what, why) of each thing that the source can't tell.
        samples: frames by table, with the columns of the schema.
        events: table `event`.
        nodes: table `node`.
        operations: table `operation`.
        collectives: table `collective`.
        link_tests: table `link_test`.

    Raises:
        InputError: a rank or step comes twice, or a time or count is negative, or too large to be true.
    """
    shown = sources[0].name
    _check_order([r.rank for r in ranks], steps, shown)
    matrix = {name: _whole(np.asarray(values, np.float64)) for name, values in (columns or {}).items()}
    _check_columns(matrix, len(steps), shown)
    for frame in (operations, collectives):
        _check_times(frame, shown)
    made = _starts(matrix.get("dur_us"), (len(ranks), len(steps))) if start_ns is None else start_ns
    empty = {t.name: empty_frame(t) for t in (EVENT, GAP, NODE)}
    missing = pd.DataFrame([[None, what, why] for what, why in unavailable], columns=list(UNAVAILABLE.names))
    name = sources[0].name.rpartition("/")[2] if len(sources) == 1 else common_name(sources)
    return RunData(
        info={
            "name": name,
            "file": name,
            "attempts": (0,),
            "source_format": source_format,
            "timing": timing,
            "note": "",
        },
        attempt=0,
        ranks=tuple(ranks),
        steps=Steps(np.asarray(steps, np.int64), matrix, made),
        samples=dict(samples or {}),
        events=empty["event"] if events is None else events,
        gaps=empty["gap"],
        unavailable=missing,
        nodes=empty["node"] if nodes is None else nodes,
        operations=_or_none(operations),
        collectives=_or_none(collectives),
        link_tests=_or_none(link_tests),
        clock_offset_ns={},
    )


def _whole(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Whole microseconds and counts, as a run file holds them: a run must not tell another story once it was kept."""
    return np.rint(values)


def _or_none(frame: pd.DataFrame | None) -> pd.DataFrame | None:
    """A run file can't tell a table without rows from one that was never recorded: neither can a run."""
    return None if frame is None or not len(frame) else frame


def _check_order(ranks: Sequence[int], steps: Sequence[int] | NDArray[np.int64], name: str) -> None:
    """Each rank once, and steps that rise."""
    twice = [rank for rank, times in Counter(ranks).items() if times > 1]
    if twice:
        raise InputError(f"{name}: rank {min(twice)} comes twice; name the files of one run only")
    if len(steps) > 1 and (np.diff(np.asarray(steps, np.int64)) <= 0).any():
        raise InputError(f"{name}: a step comes twice, or steps go back")


def _check_columns(matrix: Mapping[str, NDArray[np.float64]], steps: int, name: str) -> None:
    """Nothing below zero, and sums over the run that can be true."""
    for column, values in matrix.items():
        if np.nanmin(values, initial=0.0) < 0:
            raise InputError(f"{name}: negative times or counts ({column})")
        if np.nanmax(values, initial=0.0) * max(steps, 1) > MOST:
            raise InputError(f"{name}: times or counts too large to be true ({column})")


def _check_times(frame: pd.DataFrame | None, name: str) -> None:
    """Times of single calls must be such as can be added up."""
    for column in ("start_us", "dur_us", "min_dur_us", "std_dur_us"):
        if frame is None or column not in frame or len(frame) == 0:
            continue
        values = frame[column].to_numpy(dtype=np.float64, na_value=np.nan)
        if np.nanmax(np.abs(values), initial=0.0) > MOST:
            raise InputError(f"{name}: times too large to be true ({column})")


def empty_frame(table: Table) -> pd.DataFrame:
    """A frame with a table's columns and no row."""
    return _empty(table).copy()


@functools.cache
def _empty(table: Table) -> pd.DataFrame:
    """Made once: a frame without rows costs as much as one with many."""
    return pd.DataFrame(columns=list(table.names))


def common_name(sources: Sequence[Source]) -> str:
    """Folder or archive that all sources share, else the first one's name."""
    parents = {s.name.rpartition("!")[0] or s.name.rpartition("/")[0] for s in sources}
    return (parents.pop() if len(parents) == 1 else sources[0].name).rstrip("/").rpartition("/")[2] or sources[0].base


def _starts(durations_us: NDArray[np.float64] | None, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Steps one after the other; 0 where there is no record."""
    if durations_us is None or 0 in shape:
        return np.zeros(shape, np.int64)
    return reckoned_starts(durations_us)
