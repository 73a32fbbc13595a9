"""TraceML's `final_summary.json`, or its `step_time` section alone: mean phases of the last steps, one value a rank.

TraceML times each rank's steps with CUDA events where all ranks have them, else with the CPU's clock, and tells which.
A step is the waiting for data plus the traced rest. Versions differ in names: since 1.7 `step_time_ms` is that whole
step; for a while before, it was the traced rest only (beside `total_step_ms` of the CPU); still earlier ones tell
`total_step_ms` and `dataloader_ms` alone. A phase that was not measured is null, or missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan

import numpy as np
import pandas as pd

from starprof.errors import InputError
from starprof.importers.base import WALL, run_of
from starprof.importers.parts import SeveralJobsError, each_its_own
from starprof.importers.source import Source
from starprof.model.columns import row
from starprof.model.rundata import MEASURED_BY, STEPS_PER_RECORD, WORLD_SIZE, RankInfo, RunData
from starprof.model.tables.job import NODE

NAME = "traceml"

MAX_FILE = 64 << 20
MAX_CONTAINERS = 2_000_000
MAX_VALUES = 8_000_000
MAX_RANKS = 100_000
MAX_STEPS = 2**40
MAX_NAME = 100

_WHOLE = (b'"primary_diagnosis"', b'"step_time"')
_SECTION = b'"section_metric_names"'
_RANK = re.compile(r"\d{1,9}")
_KIND = re.compile(r"[A-Z][A-Z0-9_]{0,60}")
_PHASES = {
    "h2d_us": ("h2d_ms",),
    "forward_us": ("forward_ms",),
    "backward_us": ("backward_ms",),
    "optimizer_us": ("optimizer_ms",),
    "unaccounted_us": ("residual_ms", "wait_ms"),
}


def recognises(source: Source) -> bool:
    """A JSON object with the summary's own keys."""
    head = source.head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return head[:1] == b"{" and (_SECTION in head or all(key in head for key in _WHOLE))


def read(sources: Sequence[Source]) -> RunData:
    """Read one run's summary.

    Raises:
        SeveralJobsError: there are several summaries.
        InputError: a damaged one, or one without step times of any rank.
    """
    if len(sources) > 1:
        names = ", ".join(s.name for s in sources[:3]) + (", ..." if len(sources) > 3 else "")
        words = f"{len(sources)} summaries ({names}), each of a run of its own: name one"
        raise SeveralJobsError(words, each_its_own(sources))
    source = sources[0]
    content = _content(source)
    section = _dict(content.get("step_time")) if "step_time" in content else content
    window = _dict(_dict(section.get("global")).get("window"))
    rows = _rows(source, section)
    told = {rank: _times(_dict(one.get("metrics"))) for rank, one in rows.items()}
    told = {rank: times for rank, times in sorted(told.items()) if isfinite(times["dur_us"])}
    if not told:
        raise InputError(f"{source.name} holds no step times of any rank{_said(section)}: were steps traced?")
    steps = _count(window.get("steps_analyzed"))
    detail: dict[str, object] = {
        STEPS_PER_RECORD: steps or 1,
        WORLD_SIZE: _world(content, section, rows),
        MEASURED_BY: _clock(content, window, rows),
    }
    ranks = _ranks({rank: _dict(rows[rank].get("identity")) for rank in told}, detail)
    run = run_of(
        NAME,
        sources,
        ranks=ranks,
        steps=[max(_count(window.get("end_step")) or 0, (steps or 1) - 1)],
        columns={name: np.array([[times[name]] for times in told.values()]) for name in next(iter(told.values()))},
        timing=WALL,
        unavailable=_limits(content),
        nodes=_nodes(ranks),
    )
    length = f"means over {steps} steps" if steps else "means over an unknown number of steps"
    return replace(run, info={**run.info, "note": f"{length} of {len(told)} ranks{_said(section)}"})


def _content(source: Source) -> Mapping[str, object]:
    with source.open() as stream:
        data = stream.read(MAX_FILE + 1)
    if len(data) > MAX_FILE or data.count(b"{") + data.count(b"[") > MAX_CONTAINERS or data.count(b",") > MAX_VALUES:
        raise InputError(f"{source.name} holds more than can be true of a summary")
    try:
        content = json.loads(data.decode("utf-8-sig", errors="replace"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "cut off, or no JSON with unique keys"
        raise InputError(f"{source.name} can't be read: it is {reason}") from error
    if not isinstance(content, dict):
        raise InputError(f"{source.name} is no summary of TraceML: it is no object")
    return content


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object whose keys differ: of a rank that comes twice, one would be lost silently."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError
    return made


def _rows(source: Source, section: Mapping[str, object]) -> dict[int, Mapping[str, object]]:
    """The section's rows by rank."""
    groups = _dict(section.get("groups"))
    if groups.get("by") not in (None, "global_rank"):
        raise InputError(f"{source.name} tells no step times per rank: give the summary or its step_time section")
    rows: dict[int, Mapping[str, object]] = {}
    for key, one in _dict(groups.get("rows")).items():
        if not _RANK.fullmatch(key) or not isinstance(one, dict):
            continue
        rank, own = int(key), _count(_dict(one.get("identity")).get("global_rank"))
        if own not in (None, rank) or rank in rows:
            raise InputError(f"{source.name} is damaged: the row of rank {rank} comes twice, or is another rank's")
        rows[rank] = one
    if len(rows) > MAX_RANKS:
        raise InputError(f"{source.name} tells of more than {MAX_RANKS} ranks")
    return rows


def _times(metrics: Mapping[str, object]) -> dict[str, float]:
    """Columns of table `step` in microseconds, all of one clock; NaN = not measured."""
    waiting, whole = _number(metrics, "input_wait_ms"), _number(metrics, "step_time_ms")
    if "total_step_ms" in metrics and "traced_step_time_ms" not in metrics:
        selected = "input_wait_ms" in metrics and "step_time_ms" in metrics
        whole = whole + waiting if selected else _number(metrics, "total_step_ms")
        waiting = waiting if selected else _number(metrics, "dataloader_ms")
    times = {"dur_us": whole, "data_wait_us": waiting}
    for name, keys in _PHASES.items():
        times[name] = next((v for v in (_number(metrics, key) for key in keys) if isfinite(v)), nan)
    return {name: value * 1e3 for name, value in times.items()}


def _clock(
    content: Mapping[str, object], window: Mapping[str, object], rows: Mapping[int, Mapping[str, object]]
) -> str:
    """Whose time it is: "device" on the GPU's clock or without any GPU, else "host"."""
    selected = all("input_wait_ms" in _dict(one.get("metrics")) for one in rows.values())
    if window.get("diagnosis_clock") == "gpu" and selected:
        return "device"
    seen = _dict(_dict(content.get("system")).get("metadata")).get("gpus_observed")
    return "device" if _count(seen) == 0 and window.get("diagnosis_clock") != "gpu" else "host"


def _world(
    content: Mapping[str, object], section: Mapping[str, object], rows: Mapping[int, Mapping[str, object]]
) -> int:
    told = [_dict(one.get("identity")).get("world_size") for one in rows.values()]
    told += [_dict(content.get("meta")).get("world_size"), _dict(section.get("metadata")).get("global_ranks_seen")]
    return max([len(rows), max(rows) + 1, *(_count(value) or 0 for value in told)])


def _ranks(identities: Mapping[int, Mapping[str, object]], detail: Mapping[str, object]) -> list[RankInfo]:
    places = {rank: (_name(i.get("hostname")), _count(i.get("node_rank"))) for rank, i in identities.items()}
    nodes = {place: number for number, place in enumerate(dict.fromkeys(places.values()))}
    return [
        RankInfo(
            rank=rank,
            node=nodes[places[rank]],
            host=places[rank][0],
            local_rank=_count(identity.get("local_rank")),
            detail=detail,
        )
        for rank, identity in identities.items()
    ]


def _nodes(ranks: Sequence[RankInfo]) -> pd.DataFrame:
    hosts = {info.node: info.host for info in ranks if info.host}
    return pd.DataFrame([row(NODE, node=n, host=h) for n, h in hosts.items()], columns=list(NODE.names))


def _limits(content: Mapping[str, object]) -> list[tuple[str, str]]:
    limits = [
        ("single steps", "the summary holds one mean a rank: whether a rank is slow in every step is not told"),
        ("waiting for others", "the times of the passes include the waiting for other ranks' gradients"),
    ]
    if _dict(_dict(content.get("process")).get("groups")).get("rows") or _dict(content.get("system")).get("groups"):
        limits.append(("counters", "the summary tells the hosts' and GPUs' load as means over the run: not compared"))
    return limits


def _said(section: Mapping[str, object]) -> str:
    """TraceML's own finding, for the reader to compare."""
    diagnosis = _dict(section.get("diagnosis"))
    kind = diagnosis.get("kind")
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        return ""
    ranks = diagnosis.get("ranks")
    numbers = [str(r) for r in (ranks if isinstance(ranks, list) else [])[:8] if _count(r) is not None]
    return f"; TraceML itself says {kind}" + (f" (rank {', '.join(numbers)})" if numbers else "")


def _dict(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_STEPS else None


def _number(metrics: Mapping[str, object], key: str) -> float:
    value = metrics.get(key)
    try:
        number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else nan
    except OverflowError:
        return nan
    return number if isfinite(number) else nan


def _name(value: object) -> str:
    """A host's name that can be written anywhere: JSON can hold halves of characters."""
    return value[:MAX_NAME].encode("utf-8", "replace").decode() if isinstance(value, str) else ""
