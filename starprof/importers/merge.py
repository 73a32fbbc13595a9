"""Steps of one source and metrics of others as one run: laid on each other only where host and clock are certain.

A host of the metrics becomes a node of the steps' run when the names are the same, or when there is only one of each
and as many GPUs as ranks. Times are compared only as wall-clock stamps, both with a known zone or both without; where
that is not given, or the host is not certain, the samples keep a node of their own, and a line says why.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from starprof.importers.logs.stamps import COUNTED, LOCAL_STAMPS, UTC_STAMPS
from starprof.model.columns import row
from starprof.model.rundata import RankInfo, RunData
from starprof.model.tables.job import NODE

WALL_CLOCK_NS = 9 * 10**17
"""Step starts above this (1998) can only be wall-clock time: no machine has been up for 28 years."""

_DEVICES = {"gpu_sample": "gpu", "nic_sample": "nic", "disk_sample": "disk", "gpu": "gpu", "nic": "nic", "disk": "disk"}
_APART = 1000


@dataclass(frozen=True, slots=True)
class _Clock:
    """What the times of a run are: kind of stamp, first and last, and what makes them Unix time."""

    kind: str
    first_ns: int
    last_ns: int
    to_unix_ns: int = 0


def with_metrics(run: RunData, metrics: Sequence[RunData]) -> tuple[RunData, list[str]]:
    """Add the samples of other runs to a run.

    Args:
        run: steps, or the first metrics when there are no steps.
        metrics: runs of samples only.

    Returns:
        The run, and a line for each thing that could not be told.
    """
    words: list[str] = []
    for other in metrics:
        run = _with(run, other, words)
    return run, list(dict.fromkeys(words))


def _with(run: RunData, other: RunData, words: list[str]) -> RunData:
    kind = str(other.info.get("source_format"))
    mine, theirs = _clock_of_steps(run) or _clock_of_samples(run), _clock_of_samples(other)
    shift = _shift(mine, theirs, kind, words)
    nodes = _nodes(run, other, kind, words) if shift is not None or not run.ranks or not other.samples else {}
    number: dict[int, int] = {}
    rows: list[list[object]] = []
    free = max([-1, *(r.node for r in run.ranks), *_hosts(run)]) + 1
    for node, host in _hosts(other).items():
        number[node] = nodes.get(node, free)
        if number[node] == free:
            free += 1
            rows.append(row(NODE, node=number[node], host=host, detail=json.dumps({"source": kind})))
    added = pd.DataFrame(rows, columns=list(NODE.names)) if rows else None
    samples = _samples(run, other, number, shift or 0, kind, words)
    events = _moved(other.events, number, shift or 0)
    if shift is None and not other.samples and len(events):
        events = events.assign(mono_ns=None)  # times that can't be compared would only mislead
    missing = other.unavailable[other.unavailable["source"] != "steps"]
    missing = missing.assign(source=[f"{kind}: {what}" for what in missing["source"]])
    return replace(
        run,
        ranks=_with_gpus(run, other, nodes, samples, words),
        samples=samples,
        events=_joined(run.events, events),
        nodes=_joined(run.nodes, added),
        unavailable=_joined(run.unavailable, missing),
    )


def _joined(first: pd.DataFrame, second: pd.DataFrame | None) -> pd.DataFrame:
    """Rows of both; an empty frame has no types that could get in the way."""
    if second is None or len(second) == 0:
        return first
    if len(first) == 0:
        return second.reset_index(drop=True)
    return pd.concat([first.astype(object), second.astype(object)], ignore_index=True)


# Clocks


def _clock_of_steps(run: RunData) -> _Clock | None:
    starts = run.steps.start_mono_ns[run.steps.start_mono_ns > 0]
    if not starts.size:
        return None
    first, last = int(starts.min()), int(starts.max())
    offsets = _offsets(run)
    if offsets and all(node in offsets for node in {r.node for r in run.ranks}) and len(set(offsets.values())) == 1:
        return _Clock(UTC_STAMPS, first, last, next(iter(offsets.values())))
    if first < WALL_CLOCK_NS:
        return _Clock(COUNTED, first, last)
    zoned = not (run.unavailable["source"] == "time zone").any()
    return _Clock(UTC_STAMPS if zoned else LOCAL_STAMPS, first, last)


def _clock_of_samples(run: RunData) -> _Clock:
    times = [frame["mono_ns"] for frame in run.samples.values() if "mono_ns" in frame and len(frame)]
    if not times:
        times = [told] if len(told := run.events["mono_ns"].dropna()) else []
    first = min((int(t.min()) for t in times), default=0)
    last = max((int(t.max()) for t in times), default=0)
    kinds = {_stamps(detail) for detail in run.nodes["detail"]} - {""}
    return _Clock(kinds.pop() if len(kinds) == 1 else COUNTED, first, last)


def _stamps(detail: object) -> str:
    try:
        told = json.loads(detail) if isinstance(detail, str) else {}
    except ValueError:
        return ""
    return str(told.get("time_stamps", "")) if isinstance(told, dict) else ""


def _offsets(run: RunData) -> dict[int, int]:
    """Unix time minus the node's own clock, where both were read at the same moment."""
    offsets = {}
    for node, mono, unix in zip(run.nodes["node"], run.nodes["mono_ns"], run.nodes["unix_ns"], strict=True):
        if mono is not None and unix is not None and mono == mono and unix == unix:
            offsets[int(node)] = int(unix) - int(mono)
    return offsets


def _shift(mine: _Clock, theirs: _Clock, kind: str, words: list[str]) -> int | None:
    """What to add to the samples' times; None when they can't be compared, which is said."""
    if COUNTED in (mine.kind, theirs.kind):
        who = f"{kind} has" if theirs.kind == COUNTED else "the steps have"
        words.append(f"{kind} can't be aligned in time with the rest: {who} no wall-clock stamps")
        return None
    if mine.kind != theirs.kind:
        words.append(f"{kind} can't be aligned in time with the rest: only one of them tells its time zone")
        return None
    shift = -mine.to_unix_ns
    if theirs.last_ns + shift < mine.first_ns or theirs.first_ns + shift > mine.last_ns:
        words.append(f"{kind} is of another time than the rest: they do not overlap")
        return None
    if mine.kind == LOCAL_STAMPS:
        words.append(f"{kind} and the rest name no time zone: taken to be the same one")
    return shift


# Hosts and GPUs


def _hosts(run: RunData) -> dict[int, str]:
    hosts = {r.node: r.host for r in run.ranks}
    if len(run.nodes):
        hosts |= {int(n): str(h or "") for n, h in zip(run.nodes["node"], run.nodes["host"], strict=True)}
    return hosts


def _short(host: str) -> str:
    return host.partition(".")[0].casefold()


def _nodes(run: RunData, other: RunData, kind: str, words: list[str]) -> dict[int, int]:
    """Which node of the run a host of the metrics is, as far as that is certain."""
    mine, theirs = _hosts(run), _hosts(other)
    found: dict[int, int] = {}
    for node, host in theirs.items():
        same = [m for m, name in mine.items() if host and name == host]
        same = same or [m for m, name in mine.items() if host and _short(name) == _short(host)]
        if len(same) == 1 and same[0] not in found.values():
            found[node] = same[0]
    if not found and len(mine) == 1 and len(theirs) == 1 and (alone := _alone(run, other)) is not None:
        found = alone
    lost = [host or "unnamed" for node, host in theirs.items() if node not in found]
    if lost and run.ranks:
        some = ", ".join(lost[:3]) + (", ..." if len(lost) > 3 else "")
        words.append(f"{kind}: not certain which ranks run on host {some}; its samples are kept apart")
    return found


def _alone(run: RunData, other: RunData) -> dict[int, int] | None:
    """One host each: the same one when they are nameless, and there are as many GPUs as ranks."""
    (mine, my_name), (theirs, their_name) = next(iter(_hosts(run).items())), next(iter(_hosts(other).items()))
    if my_name and their_name:
        return None
    if not other.samples:  # a log without a name belongs to the only host that has one
        return {theirs: mine} if my_name or not run.ranks else None
    gpus = other.samples.get("gpu_sample")
    count = 0 if gpus is None else gpus["gpu"].nunique()
    return {theirs: mine} if count == len(run.ranks) or not run.ranks else None


def _with_gpus(
    run: RunData, other: RunData, nodes: dict[int, int], samples: dict[str, pd.DataFrame], words: list[str]
) -> tuple[RankInfo, ...]:
    """Ranks with the UUIDs of their GPUs, where every GPU of a host has just one rank."""
    gpus = samples.get("gpu")
    if gpus is None or "gpu_sample" not in other.samples or not run.ranks:
        return run.ranks
    ranks = list(run.ranks)
    for node in nodes.values():
        mine = [i for i, r in enumerate(ranks) if r.node == node]
        if not mine or all(ranks[i].gpu_uuid for i in mine):
            continue
        indices = {int(x): u for x, u in _indexed(gpus, node).items()}
        local = _local_ranks([ranks[i] for i in mine], alone=len({r.node for r in ranks}) == 1)
        if sorted(indices) != sorted(local) or len(set(local)) < len(local):
            words.append(f"GPUs and ranks of node {node} can't be matched: {len(indices)} GPUs, {len(mine)} ranks")
            continue
        words.append(f"GPU i of node {node} taken as the one of its local rank i")
        for i, place in zip(mine, local, strict=True):
            ranks[i] = replace(ranks[i], local_rank=place, gpu_uuid=ranks[i].gpu_uuid or indices[place])
    return tuple(ranks)


def _indexed(gpus: pd.DataFrame, node: int) -> dict[int, str]:
    rows = gpus[(gpus["node"] == node) & gpus["nvml_index"].notna() & gpus["mig_parent"].isna()]
    return dict(zip(rows["nvml_index"].astype(int), rows["uuid"], strict=True))


def _local_ranks(ranks: Sequence[RankInfo], *, alone: bool) -> list[int]:
    """Local ranks as told; on the only node the rank itself is one."""
    return [r.rank if r.local_rank is None and alone else -1 if r.local_rank is None else r.local_rank for r in ranks]


# Samples


def _samples(
    run: RunData, other: RunData, number: dict[int, int], shift: int, kind: str, words: list[str]
) -> dict[str, pd.DataFrame]:
    samples = dict(run.samples)
    apart = 0
    for table, key in _DEVICES.items():
        there = samples.get(table)
        if there is not None and table in other.samples and len(there):
            apart = max(apart, (int(there[key].max()) // _APART + 1) * _APART)
    for table, frame in other.samples.items():
        moved = _moved(frame, number, shift)
        device = _DEVICES.get(table)
        there = samples.get(table)
        if table == "gpu":
            moved = moved.assign(
                uuid=[u or f"index {i}" for u, i in zip(moved["uuid"], moved["nvml_index"], strict=True)]
            )
        if there is None or len(there) == 0:
            samples[table] = moved
            continue
        if device is not None:
            moved = moved.assign(**{device: moved[device] + apart})
        elif (twice := moved["node"].isin(there["node"].unique())).any():
            words.append(f"{table} of {kind} left out where another source has it too")
            moved = moved[~twice]
        samples[table] = pd.concat([there, moved], ignore_index=True)
    return samples


def _moved(frame: pd.DataFrame, number: dict[int, int], shift: int) -> pd.DataFrame:
    """Rows with the run's node numbers and clock."""
    if len(frame) == 0:
        return frame
    moved = frame.assign(node=np.array([number[int(n)] for n in frame["node"]], np.int64))
    if "mono_ns" not in moved or moved["mono_ns"].isna().any():
        return moved
    return moved.assign(mono_ns=moved["mono_ns"].astype(np.int64) + shift)
