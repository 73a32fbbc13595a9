"""Series per rank that data loaders export as JSON: `{"event_time": [...], "0": [...], "1": [...]}`.

A share of fetches that found data ready lies between 0 and 1 and is near 1 wherever loading keeps up. Series that never
come near 1 are times of a loader's stage; they are kept as such, because they tell nobody's waiting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from starprof.errors import InputError
from starprof.importers.base import run_of
from starprof.importers.parts import SeveralJobsError, each_its_own
from starprof.importers.source import Source
from starprof.model.rundata import RankInfo, RunData

NAME = "data-readiness"

MAX_BYTES = 256 << 20
MAX_RANKS = 100_000
MAX_CELLS = 20_000_000
MAX_SECONDS = 9e9
LEAST_RANKS = 2
NEAR_ONE = 0.95
ROUNDING = 1e-6
EPOCH_MS = 1e11

_TIMES = "event_time"
_RANK = re.compile(r"^(?:rank|worker|trainer)?[ _\-]{0,2}(\d{1,9})$", re.IGNORECASE)
_HEAD = re.compile(rb'\A\s*\{\s*"[^"\\]{1,80}"\s*:\s*\[')
_KEY = re.compile(rb'"(?:rank|worker|trainer)?[ _\-]{0,2}\d{1,9}"\s*:\s*\[|"event_time"\s*:\s*\[', re.IGNORECASE)


def recognises(source: Source) -> bool:
    """A JSON object of lists, with `event_time` or a rank's number among its keys."""
    if not _HEAD.match(source.head.removeprefix(b"\xef\xbb\xbf")):
        return False
    return b'"event_time"' in source.head or (
        b"readi" in source.base.lower().encode() and bool(_KEY.search(source.head))
    )


def read(sources: Sequence[Source]) -> RunData:
    """One series per rank.

    Raises:
        SeveralJobsError: there are several files.
        InputError: no such file, or series that don't fit together.
    """
    if len(sources) > 1:
        names = ", ".join(s.base for s in sources[:3]) + (", ..." if len(sources) > 3 else "")
        told = f"{len(sources)} recordings of data loading ({names}): name the one of the sink's readiness"
        raise SeveralJobsError(told, each_its_own(sources))
    source = sources[0]
    times, series = _series(source, _content(source))
    values = np.array(list(series.values()))
    ready = _is_readiness(source, values)
    if ready and (np.nanmin(values) < -ROUNDING or np.nanmax(values) > 1 + ROUNDING):
        raise InputError(f"{source.name}: data readiness must lie between 0 and 1")
    if not ready and np.nanmin(values) < 0:
        raise InputError(f"{source.name} has negative times")
    order = np.argsort(times, kind="stable")
    ranks, samples = _frame(times[order], list(series), values[:, order], ready=ready)
    kind = "data readiness" if ready else "times of a loader's stage (they never come near 1, as readiness does)"
    run = run_of(
        NAME,
        sources,
        ranks=ranks,
        samples={"loader_sample": samples},
        unavailable=(("step times", "the file holds series of the data loader only"),),
    )
    return replace(run, info={**run.info, "note": f"{len(ranks)} series of {len(times)} samples taken for {kind}"})


def _content(source: Source) -> dict[str, object]:
    with replace(source, max_bytes=MAX_BYTES).open() as stream:
        data = stream.read()
    try:
        content = json.loads(data.decode("utf-8-sig", errors="replace"))
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "cut off or no JSON"
        raise InputError(f"{source.name} can't be read: it is {reason}") from error
    if not isinstance(content, dict):
        raise InputError(f"{source.name} is no object of series")
    return content


def _series(source: Source, content: dict[str, object]) -> tuple[NDArray[np.float64], dict[int, NDArray[np.float64]]]:
    """Times in seconds and the series by rank."""
    if _TIMES not in content:
        raise InputError(f"{source.name} has no {_TIMES}: series without times can't be placed")
    times = _numbers(source, _TIMES, content[_TIMES])
    if not len(times) or not np.isfinite(times).all():
        raise InputError(f"{source.name}: {_TIMES} must be numbers, seconds since 1970")
    times = times / 1000.0 if float(np.median(times)) > EPOCH_MS else times
    if float(np.abs(times).max()) > MAX_SECONDS:
        raise InputError(f"{source.name}: {_TIMES} holds no times in seconds")
    series: dict[int, NDArray[np.float64]] = {}
    for name, values in content.items():
        found = _RANK.match(name)
        if name == _TIMES or found is None:
            continue
        if int(found[1]) in series:
            raise InputError(f"{source.name}: rank {int(found[1])} comes twice")
        series[int(found[1])] = _numbers(source, name, values)
        if len(series[int(found[1])]) != len(times):
            raise InputError(f"{source.name}: series {name!r} has not as many values as there are times")
        if len(series) > MAX_RANKS or len(series) * len(times) > MAX_CELLS:
            raise InputError(f"{source.name} holds too many series")
    if len(series) < LEAST_RANKS:
        raise InputError(f'{source.name} has no series of two ranks or more (keys such as "0" or "rank_1")')
    if all(np.isnan(values).all() for values in series.values()):
        raise InputError(f"{source.name} holds no numbers")
    return times, dict(sorted(series.items()))


def _numbers(source: Source, name: str, values: object) -> NDArray[np.float64]:
    """A list's numbers; NaN for null, empty strings and what is no finite number."""
    if not isinstance(values, list):
        raise InputError(f"{source.name}: {name[:80]!r} is no list")
    return np.array([_number(value) for value in values], dtype=np.float64)


def _number(value: object) -> float:
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else np.nan
    except (ValueError, OverflowError):
        return np.nan
    return number if np.isfinite(number) else np.nan


def _is_readiness(source: Source, values: NDArray[np.float64]) -> bool:
    """By the name when it says so, else by the content: between 0 and 1, and near 1 at times on most ranks."""
    name = source.base.lower()
    if "readi" in name:
        return True
    if "time" in name or np.nanmax(values) > 1 + ROUNDING or np.nanmin(values) < -ROUNDING:
        return False
    highest = np.where(np.isnan(values), -np.inf, values).max(axis=1)
    return bool((highest >= NEAR_ONE).mean() > 0.5)


def _frame(
    times: NDArray[np.float64], ranks: list[int], values: NDArray[np.float64], *, ready: bool
) -> tuple[list[RankInfo], pd.DataFrame]:
    """Ranks, and rows of table `loader_sample`: missing values have none."""
    row, column = np.nonzero(~np.isnan(values))
    told = values[row, column]
    frame = pd.DataFrame(
        {
            "node": np.zeros(len(told), np.int64),
            "mono_ns": np.rint(times[column] * 1e9).astype(np.int64),
            "rank": np.array(ranks, np.int64)[row],
            "ready_share": np.clip(told, 0.0, 1.0) if ready else np.full(len(told), np.nan),
            "stage_time": np.full(len(told), np.nan) if ready else told,
        }
    )
    return [RankInfo(rank=rank, node=0, host="") for rank in ranks], frame
