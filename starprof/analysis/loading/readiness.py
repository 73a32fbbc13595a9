"""The judge of data readiness: which rank's training finds no batch ready while the others' does.

In synchronous training the rank whose loader is slowest takes every batch the moment it comes, so that its readiness is
near 0, while all others wait for it in the collectives and their loaders run ahead: theirs is near 1. A low readiness
of all ranks at once tells that loading is too slow for everybody, and nothing about who is slowest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.causes.base import pct, rank_names
from starprof.analysis.peers import median_of_others
from starprof.analysis.settings import Settings
from starprof.model import causes
from starprof.model.rundata import RunData
from starprof.model.verdict import Finding, Verdict

TABLE = "loader_sample"
LOW = 0.5
LULL_SAMPLES, LULL_SHARE = 5, 0.1
MIN_STARVED_SHARE = 0.7
MIN_RUN_SHARE = 0.10
MIN_ALL_SHARE = 0.5
MIN_SAMPLES = 16
LISTED = 12
SURE = 0.95
EPOCH_S = 1e9


@dataclass(frozen=True)
class Readiness:
    """Shares of fetches that found a batch ready.

    Attributes:
        ranks: rank numbers, shape (R,).
        times_s: shape (T,), rising.
        ready: shape (R, T), NaN = not told.
        hosts: host of each rank, empty when not told.
    """

    ranks: Ints
    times_s: Floats
    ready: Floats
    hosts: tuple[str, ...]

    def moment(self, sample: int) -> str:
        """A sample's time in words."""
        at = float(self.times_s[sample])
        if at < EPOCH_S:
            return f"{at:g} s"
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@dataclass(frozen=True)
class Stretch:
    """Samples [start, end) in which one rank starves and most others do not.

    Attributes:
        known: first sample in which the others had data: before it, all ranks starved alike.
        share: share of its fetches without data.
    """

    row: int
    start: int
    end: int
    known: int
    share: float


def judge(run: RunData, settings: Settings, empty: Verdict) -> Verdict | None:
    """Verdict on data readiness; None when the run tells none, or has step times, which tell more.

    Args:
        run: the run.
        settings: thresholds.
        empty: verdict that is filled in but for the answer.
    """
    frame = run.samples.get(TABLE)
    durations = run.steps.columns.get("dur_us")
    if frame is None or len(frame) == 0 or (durations is not None and np.isfinite(durations).any()):
        return None
    if frame["ready_share"].isna().all():
        return replace(empty, reason=_stage_times(run))
    data = _readiness(run)
    samples = data.ready.shape[1]
    empty = replace(empty, ranks=len(data.ranks), steps=(0, samples - 1))
    if samples < MIN_SAMPLES:
        return replace(empty, reason=f"Only {samples} samples of data readiness, {MIN_SAMPLES} are needed.")
    stretches = _stretches(data, settings)
    named = _that_matter(stretches, samples)
    others = [s for s in stretches if s not in named]
    everybody = float(_all_low(data).mean())
    if named:
        findings = tuple(_finding(data, s, everybody) for s in named)
        return replace(empty, verdict="straggler", findings=findings, reason=_reason(data, named, others))
    if everybody >= MIN_ALL_SHARE:
        return replace(
            empty,
            verdict="uniform",
            findings=(_uniform(data, everybody),),
            reason=f"Data loading is too slow on all ranks in {pct(everybody)} of the samples; no rank stands out.",
        )
    short = f" For a short time only: {_listed(data, others)}." if others else ""
    return replace(
        empty,
        verdict="none",
        reason=f"Data is ready on all {len(data.ranks)} ranks alike: no rank's training starves for a good part of the "
        f"{samples} samples.{short}",
    )


def _readiness(run: RunData) -> Readiness:
    frame = run.samples[TABLE]
    ranks, row = np.unique(frame["rank"].to_numpy(np.int64), return_inverse=True)
    times, column = np.unique(frame["mono_ns"].to_numpy(np.int64), return_inverse=True)
    ready = np.full((len(ranks), len(times)), np.nan)
    ready[row, column] = frame["ready_share"].to_numpy(np.float64)
    hosts = {info.rank: info.host for info in run.ranks}
    return Readiness(ranks, times / 1e9, ready, tuple(hosts.get(int(rank), "") for rank in ranks))


def _all_low(data: Readiness) -> Bools:
    """Samples in which most ranks starve: who is slowest can't be told, shape (T,)."""
    low: Bools = np.nan_to_num(np.nanmedian(data.ready, axis=0), nan=1.0) < LOW
    return low


def _stretches(data: Readiness, settings: Settings) -> list[Stretch]:
    """All lasting stretches in which a rank starves alone."""
    others = median_of_others(data.ready)
    found = []
    for row, series in enumerate(data.ready):
        known = ~np.isnan(series) & (others[row] >= LOW)
        seen = np.flatnonzero(known)
        for first_seen, last_seen in _joined(np.flatnonzero(series[seen] < LOW)):
            start, end = int(seen[first_seen]), int(seen[last_seen]) + 1
            inside = np.flatnonzero(known[start:end]) + start
            starved = float((series[inside] < LOW).mean())
            if len(inside) < settings.min_slow_steps or starved < MIN_STARVED_SHARE:
                continue
            # Where all starve it may well be the one that the others wait for, as long as it starves itself.
            unsure = ~known & ~(series >= LOW)
            first, last = start, end
            while first > 0 and unsure[first - 1]:
                first -= 1
            while last < len(series) and unsure[last]:
                last += 1
            found.append(Stretch(row, first, last, start, float(1.0 - np.nanmean(series[first:last]))))
    return sorted(found, key=lambda s: (s.start, s.row))


def _joined(places: Ints) -> list[tuple[int, int]]:
    """First and last of stretches of starving samples, short lulls included.

    Args:
        places: of the starving samples, among those in which it can be told.
    """
    runs: list[tuple[int, int]] = []
    for place in places.tolist():
        if runs and place - runs[-1][1] - 1 <= max(LULL_SAMPLES, LULL_SHARE * (runs[-1][1] - runs[-1][0])):
            runs[-1] = (runs[-1][0], place)
        else:
            runs.append((place, place))
    return runs


def _that_matter(stretches: list[Stretch], samples: int) -> list[Stretch]:
    """Those of ranks that starve in a good part of the run."""
    length: dict[int, int] = {}
    for stretch in stretches:
        length[stretch.row] = length.get(stretch.row, 0) + stretch.end - stretch.known
    return [s for s in stretches if length[s.row] >= MIN_RUN_SHARE * samples]


def _finding(data: Readiness, stretch: Stretch, everybody: float) -> Finding:
    rank, samples = int(data.ranks[stretch.row]), data.ready.shape[1]
    inside = slice(stretch.known, stretch.end)
    mine = float(np.nanmean(data.ready[stretch.row, inside]))
    peers = float(np.nanmedian(np.delete(data.ready[:, inside], stretch.row, axis=0)))
    lasts, first = stretch.end >= samples, stretch.start == 0
    when = f"from {data.moment(stretch.start)} to {data.moment(stretch.end - 1)}"
    lines = [
        f"Rank {rank} found a batch ready in {pct(mine)} of its fetches, its peers in {pct(peers)}, {when} (samples "
        f"{stretch.start} to {stretch.end - 1}): its training takes every batch the moment it comes, while the others' "
        "loaders run ahead because their training waits for it.",
        "How long it waited for data is not in the file, so that the cost can't be told.",
    ]
    if stretch.known > stretch.start:
        lines.append(
            f"Before sample {stretch.known} all ranks starved, so that it may have begun anywhere from sample "
            f"{stretch.start} on."
        )
    if everybody > 0:
        lines.append(f"In {pct(everybody)} of the samples most ranks starved at once, as at the start of an epoch.")
    return Finding(
        kind="chronic" if lasts or first else "transient",
        cause=causes.DATA_LOADING,
        ranks=(rank,),
        nodes=(data.hosts[stretch.row],) if data.hosts[stretch.row] else (),
        cause_share=round(stretch.share, 3),
        confidence=round(SURE * stretch.share, 3),
        onset_step=stretch.start,
        onset_interval=(stretch.start, stretch.known),
        end_step=None if lasts else stretch.end - 1,
        evidence=tuple(lines),
        action=f"Give rank {rank} more loader workers or prefetching, and look at what its shard, its storage and its "
        "host's cores have to do beyond the others'. When another rank takes its place next, loading is too slow on "
        "all of them: speed it up everywhere.",
        verify=f"The data readiness of rank {rank} should stay near {pct(peers)} like its peers'.",
        next="Record step times with the time waiting for data (starprof record) to see what it costs.",
    )


def _uniform(data: Readiness, everybody: float) -> Finding:
    return Finding(
        kind="uniform",
        cause=causes.DATA_LOADING,
        cause_share=round(everybody, 3),
        confidence=SURE,
        evidence=(
            f"Most of the {len(data.ranks)} ranks found no batch ready in {pct(everybody)} of the samples, at the same "
            "time.",
        ),
        action="Speed loading up on all ranks: more workers, a faster storage or a cache, cheaper preprocessing.",
        verify="Data readiness should come near 100 % on all ranks.",
        next="Record step times with the time waiting for data (starprof record) to see what it costs.",
    )


def _reason(data: Readiness, named: list[Stretch], others: list[Stretch]) -> str:
    ranks = dict.fromkeys(int(data.ranks[s.row]) for s in named)
    moved = ", one after the other" if len(ranks) > 1 else ""
    short = f" For a short time also: {_listed(data, others)}." if others else ""
    return f"{rank_names(tuple(ranks)).capitalize()}: training starves for data{moved}; {_listed(data, named)}.{short}"


def _listed(data: Readiness, stretches: list[Stretch]) -> str:
    parts = [f"rank {data.ranks[s.row]} in samples {s.start} to {s.end - 1}" for s in stretches[:LISTED]]
    return ", ".join(parts) + (", ..." if len(stretches) > LISTED else "")


def _stage_times(run: RunData) -> str:
    frame = run.samples[TABLE]
    means = frame.groupby("rank")["stage_time"].median().sort_values()
    low, high = float(means.iloc[0]), float(means.iloc[-1])
    return (
        f"The file holds times of one stage of the data loader (medians of {len(means)} ranks: {low:.4g} to "
        f"{high:.4g}, most on rank {int(means.index[-1])}). Loading runs beside training, so that a longer stage need "
        "not delay anybody: give the data readiness of the loader's last stage, or step times with the waiting for it."
    )
