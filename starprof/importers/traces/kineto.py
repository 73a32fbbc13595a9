"""Traces of torch.profiler (Kineto, the Chrome trace format), one file a rank.

What joins the ranks is the order of their calls: the n-th call of a kind in a process group and step is the same
collective everywhere. Nothing is joined by time, as the clocks of different machines don't agree.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from starprof.errors import InputError
from starprof.importers.base import run_of
from starprof.importers.parts import SeveralJobsError, by_overlap
from starprof.importers.source import Source
from starprof.importers.traces.kineto_events import Floats
from starprof.importers.traces.kineto_rank import RankTrace, read_rank
from starprof.model import collectives as names
from starprof.model.ranklists import listed, read_list
from starprof.model.rundata import RankInfo, RunData
from starprof.model.tables.trace import COLLECTIVE

NAME = "kineto"

_MARKS = (b"ProfilerStep#", b'"cpu_op"', b'"user_annotation"', b'"kernel"', b'"gpu_memcpy"', b'"cuda_runtime"')
_HEADER_MARKS = (b'"schemaVersion"', b'"distributedInfo"', b'"deviceProperties"')
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_. ]?(\d{1,7})(?!\d)", re.IGNORECASE)
_HEAD_IDENTITY = re.compile(
    rb'"distributedInfo"\s*:\s*\{\s*"backend"\s*:\s*"(?P<backend>[^"]*)"\s*,\s*"rank"\s*:\s*(?P<rank>\d{1,7})\s*,'
    rb'\s*"world_size"\s*:\s*(?P<size>\d{1,7})\s*(?:\}|,\s*(?P<config>"pg_co))'
)
_MAX_RANKS = 1 << 20


def recognises(source: Source) -> bool:
    """A Chrome trace with what only torch.profiler writes into one."""
    head = source.head
    if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
        return False
    headed = sum(mark in head for mark in _HEADER_MARKS)
    if b'"traceEvents"' in head:
        return headed > 0 or any(mark in head for mark in _MARKS)
    # Bare lists of events, and headers that name so many ranks that the events lie beyond the head.
    return headed > 1 or (head.lstrip().startswith(b"[") and any(mark in head for mark in _MARKS[:3]))


def read(sources: Sequence[Source]) -> RunData:
    """Read the traces of one job.

    Raises:
        SeveralJobsError: they are of several jobs.
        InputError: nothing in them can be read, or ranks can't be told apart.
    """
    _refuse_several(sources)
    limits: list[tuple[str, str]] = []
    traces = list(_readable(sources, limits))
    ranks, traces = _ranks(traces, limits)
    steps, columns = _steps(traces)
    frame = _collectives(ranks, traces, limits)
    _say_limits(traces, limits)
    return run_of(
        NAME,
        [t.source for t in traces],
        ranks=[_rank_info(rank, trace, traces) for rank, trace in zip(ranks, traces, strict=True)],
        steps=steps,
        columns=columns,
        timing=None,
        unavailable=limits,
        collectives=frame,
    )


def _readable(sources: Sequence[Source], limits: list[tuple[str, str]]) -> Iterator[RankTrace]:
    """Traces that hold something; what is wrong with the others is said, unless it is all there is."""
    failed: InputError | None = None
    count = 0
    for source in sources:
        try:
            trace = read_rank(source)
        except InputError as error:
            failed = failed or error
            limits.append((source.base, str(error)))
            continue
        count += 1
        limits += [(source.base, words) for words in trace.damage]
        yield trace
    if not count:
        raise failed or InputError("no trace to read")


def _ranks(traces: list[RankTrace], limits: list[tuple[str, str]]) -> tuple[list[int], list[RankTrace]]:
    """Rank of each trace of one job, rising, and the traces in that order.

    Raises:
        SeveralJobsError: a rank comes twice, or there are several jobs.
        InputError: a rank can't be told.
    """
    _check_one_job(traces)
    found = [_rank(trace, alone=len(traces) == 1) for trace in traces]
    assumed = [t.source.base for t in traces if _told_rank(t) is None]
    if assumed:
        what = "from the file names" if _RANK_IN_NAME.search(assumed[0]) else "taken to be 0"
        limits.append(("distributedInfo", f"missing in {_some(assumed)}: ranks {what}, world size not known"))
    order = sorted(range(len(traces)), key=lambda i: found[i])
    for i, j in itertools.pairwise(order):
        if found[i] == found[j]:
            one, other = traces[i].source.name, traces[j].source.name
            told = {trace.source: frozenset({rank}) for trace, rank in zip(traces, found, strict=True)}
            words = f"rank {found[i]} comes twice, in {one} and {other}: name the files of one capture only"
            raise SeveralJobsError(words, by_overlap(told))
    return [found[i] for i in order], [traces[i] for i in order]


def _rank(trace: RankTrace, *, alone: bool) -> int:
    told = _told_rank(trace)
    if told is not None:
        return told
    named = _RANK_IN_NAME.findall(trace.source.base)
    if named:
        return int(named[-1])
    if alone:
        return 0
    raise InputError(
        f"{trace.source.name} does not tell its rank: it has no distributedInfo, and its name no rank; "
        "name the files rank0.json, rank1.json, ..."
    )


def _told_rank(trace: RankTrace) -> int | None:
    rank = _distributed(trace).get("rank")
    return rank if isinstance(rank, int) and 0 <= rank < _MAX_RANKS else None


def _world_size(trace: RankTrace) -> int | None:
    size = _distributed(trace).get("world_size")
    return size if isinstance(size, int) and 0 < size <= _MAX_RANKS else None


def _distributed(trace: RankTrace) -> Mapping[str, Any]:
    info = trace.header.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _refuse_several(sources: Sequence[Source]) -> None:
    """Several jobs are told by the heads where these name world size and rank: before anything long is read.

    Raises:
        SeveralJobsError: there are several.
    """
    told = {source: _HEAD_IDENTITY.search(source.head) for source in sources}
    sure = {source: found for source, found in told.items() if found is not None}
    if len(sure) < len(told):
        return
    jobs: dict[bytes, list[Source]] = {}
    for source, found in sure.items():
        jobs.setdefault(found["size"] + found["backend"] + (found["config"] or b""), []).append(source)
    parts = [p for job in jobs.values() for p in by_overlap({s: frozenset({sure[s]["rank"]}) for s in job})]
    if len(jobs) > 1:
        names_of = "; ".join(_some([s.base for s in job]) for job in jobs.values())
        words = f"traces of {len(jobs)} jobs (world size or backend differ): name those of one: {names_of}"
        raise SeveralJobsError(words, parts)
    if len(parts) > 1:
        rank, _ = Counter(found["rank"] for found in sure.values()).most_common(1)[0]
        one, other, *_ = (s.name for s, found in sure.items() if found["rank"] == rank)
        words = f"rank {int(rank)} comes twice, in {one} and {other}: name the files of one capture only"
        raise SeveralJobsError(words, parts)


def _check_one_job(traces: list[RankTrace]) -> None:
    """Traces of other world sizes or backends are of other jobs."""
    jobs: dict[object, list[Source]] = {}
    for trace in traces:
        told = _distributed(trace)
        key = (_world_size(trace), str(told.get("backend")), "pg_config" in told) if told else None
        jobs.setdefault(key, []).append(trace.source)
    if len(jobs) > 1:
        names_of = "; ".join(_some([source.base for source in job]) for job in jobs.values())
        words = f"traces of {len(jobs)} jobs (world size or backend differ): name those of one: {names_of}"
        raise SeveralJobsError(words, list(jobs.values()))


def _some(items: Sequence[str]) -> str:
    return ", ".join(items[:3]) + (", ..." if len(items) > 3 else "")


def _rank_info(rank: int, trace: RankTrace, traces: Sequence[RankTrace]) -> RankInfo:
    hosts = list(dict.fromkeys(_host(t) for t in traces))
    backend = _distributed(trace).get("backend")
    detail = {"file": trace.source.base, "world_size": _world_size(trace)}
    return RankInfo(
        rank=rank,
        node=hosts.index(_host(trace)),
        host=_host(trace),
        device="cuda" if trace.on_gpu else "cpu",
        backend=backend[:100] if isinstance(backend, str) else None,
        detail={k: v for k, v in detail.items() if v is not None},
    )


def _host(trace: RankTrace) -> str:
    host = trace.header.get("host_name")
    return host[:200] if isinstance(host, str) else ""


def _steps(traces: Sequence[RankTrace]) -> tuple[Any, dict[str, Floats]]:
    """Step numbers of all ranks, and the columns as rank x step matrices."""
    steps = np.unique(np.concatenate([t.steps for t in traces]))
    columns: dict[str, Floats] = {}
    for row, trace in enumerate(traces):
        at = np.searchsorted(steps, trace.steps)
        # Without its end a trace lacks calls, and a rank that called nothing would seem to have waited for nobody.
        kept = [n for n in trace.columns if n == "dur_us" or trace.whole]
        for name in kept:
            columns.setdefault(name, np.full((len(traces), len(steps)), np.nan))[row, at] = trace.columns[name]
    return steps, columns


def _collectives(
    ranks: Sequence[int], traces: Sequence[RankTrace], limits: list[tuple[str, str]]
) -> pd.DataFrame | None:
    """Table `collective` of all ranks."""
    base = [_base_ns(t) for t in traces]
    shift = [(b - min(base)) / 1e3 if all(base) else 0.0 for b in base]
    parts = []
    for rank, trace, later in zip(ranks, traces, shift, strict=True):
        calls = trace.calls
        groups = [_group(trace, g, m) for g, m in zip(calls.group, calls.members, strict=True)]
        parts.append(
            pd.DataFrame(
                {
                    "attempt": 0,
                    "rank": rank,
                    "group_name": [name for name, _ in groups],
                    "sequence": np.nan,
                    "name": calls.kind,
                    "step": calls.step,
                    "start_us": calls.start_us + later,
                    "dur_us": calls.dur_us,
                    "calls": 1,
                    "bytes": calls.bytes,
                    "ranks": [members for _, members in groups],
                }
            )
        )
    frame = pd.concat(parts, ignore_index=True)
    if len(frame) == 0:
        return None
    for name in COLLECTIVE.names:
        if name not in frame:
            frame[name] = None
    number_calls(frame, limits)
    return frame[list(COLLECTIVE.names)]


def _base_ns(trace: RankTrace) -> int:
    """Moment from which the trace's times count; 0 where they count from 1970, as older versions wrote them."""
    base = trace.header.get("baseTimeNanoseconds")
    return base if isinstance(base, int) and 0 < base < 1 << 63 else 0


def _group(trace: RankTrace, name: str, members: str) -> tuple[str, str | None]:
    """Name of a call's process group, and its members where they are told."""
    known = read_list(members)
    if known:
        return name, listed(known)
    configs = _distributed(trace).get("pg_config")
    configs = [c for c in configs if isinstance(c, dict)] if isinstance(configs, list) else []
    if name:
        configs = [c for c in configs if str(c.get("pg_name")) == name]
    elif len({str(c.get("ranks")) for c in configs}) > 1:
        return "", None
    told = configs[0].get("ranks") if configs else None
    size = _world_size(trace)
    if told == [] and size and configs[0].get("pg_size") == size:
        told = list(range(size))
    if isinstance(told, list) and told and all(isinstance(r, int) and 0 <= r < _MAX_RANKS for r in told):
        return name or str(configs[0].get("pg_name", ""))[:100], listed(told)
    return name, listed(range(size)) if size and not configs and not name else None


def number_calls(frame: pd.DataFrame, limits: list[tuple[str, str]]) -> None:
    """Fill in the sequence numbers; a call that can't be matched with those of other ranks keeps none.

    The n-th call of a kind in a group and step is one collective, provided that all ranks made equally many.
    """
    keys = ["group_name", "ranks", "step", "name"]
    place = frame.groupby([*keys, "rank"], dropna=False, sort=False).cumcount()
    made = frame.groupby([*keys, "rank"], dropna=False, sort=False)["dur_us"].transform("size")
    by_call = frame.assign(made=made).groupby(keys, dropna=False, sort=False)["made"]
    told = frame["step"].notna() | bool(frame["step"].isna().all())
    matched = (by_call.transform("min") == by_call.transform("max")) & told
    call = frame.assign(place=place).groupby([*keys, "place"], dropna=False, sort=False).ngroup()
    # Numbered in the order of the first rank's calls.
    frame["sequence"] = call.where(matched).astype("float64")
    outside = int((~told).sum())
    if outside:
        limits.append(("collectives outside of steps", f"{outside} of {len(frame)} calls belong to no ProfilerStep"))
    unmatched = int((~matched & told).sum())
    if unmatched:
        limits.append(
            ("unmatched collectives", f"{unmatched} of {len(frame)} calls: ranks made differently many in a step")
        )


def _say_limits(traces: Sequence[RankTrace], limits: list[tuple[str, str]]) -> None:
    silent = [t.source.base for t in traces if not len(t.calls.start_us)]
    if silent:
        limits.append(("collectives", f"none in {_some(silent)}: neither kernels of NCCL or RCCL, nor calls of gloo"))
    stepless = [t.source.base for t in traces if not len(t.steps)]
    if stepless:
        limits.append(("steps", f"no ProfilerStep in {_some(stepless)}: call profiler.step() in the training loop"))
    kinds = {k for t in traces for k in t.calls.kind}
    if names.SEND_RECV in kinds:
        limits.append(("sends and receives", "their order is that of the pipeline: who waits there tells nothing"))
