"""What a run tells a decision: every rank's own times as they are now, the batch, the noise of the gradients."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.own_time import OwnTime, own_time
from starprof.analysis.settings import DEFAULT
from starprof.decision.choice.situation import NoiseScale
from starprof.model.rundata import MOMENTUM, STEPS_PER_RECORD, RunData
from starprof.model.tables.sync import NATIVE
from starprof.model.verdict import Verdict

FEWEST_STEPS = 20
"""Steps of all ranks below which nothing is said about modes."""
MOST_STEPS = 400
"""Steps that are looked at: the newest, since the mode is for what comes."""
WAITING_OR_TRANSFER = "waiting can't be told from a rank's own time in this run"


@dataclass(frozen=True)
class Evidence:
    """What a run tells.

    Attributes:
        own: own time of the ranks, all steps after warm-up.
        iteration_s: a rank's own work plus what the reduction takes, newest steps since slowness last changed, shape
            (W, N).
        steps: first and last of these.
        workers: ranks of the columns.
        batch: samples of a rank's gradient; 1 where they were not recorded.
        noise: gradient noise scale in samples; None: not measured.
        node_groups: ranks by node, empty on one node.
        micro_batches: into which a gradient is divided.
        mode: that the job was in at the end, `native` for synchronous steps.
        options: of it.
        averaged: how many steps a record is the mean of.
        momentum: of the optimizer; None: not recorded.
    """

    own: OwnTime
    iteration_s: Floats
    steps: tuple[int, int]
    workers: tuple[int, ...]
    batch: float
    noise: NoiseScale | None
    node_groups: Sequence[Sequence[int]]
    micro_batches: int
    mode: str
    options: Mapping[str, object]
    averaged: int
    momentum: float | None = None


def evidence(run: RunData, verdict: Verdict) -> Evidence | str:
    """What a run tells; why it tells nothing about modes, where it does not."""
    if run.info.get("timing") == "job":
        return "the times are those of the whole job"
    own = own_time(run, DEFAULT)
    if own is None:
        return "no rank left step records"
    if own.shape[0] < 2:
        return "only one rank left step records: it waits for nobody"
    if own.missing:
        return f"{len(own.missing)} ranks left no step records"
    if run.info.get("timing") != "own" and not np.nansum(own.blocked) > 0:
        return WAITING_OR_TRANSFER
    transfer = np.nan_to_num(own.transfer) if run.info.get("timing") != "own" else np.zeros(own.shape[1])
    times = (own.cycle + transfer).T / 1e6
    begin = int(np.searchsorted(own.steps, _since(verdict)))
    sound = np.isfinite(times).all(axis=1) & (times > 0).all(axis=1)
    places = np.flatnonzero(sound & (np.arange(len(times)) >= begin))
    if len(places) < FEWEST_STEPS:
        places = np.flatnonzero(sound)
    if len(places) < FEWEST_STEPS:
        return f"{len(places)} steps have times of all ranks, {FEWEST_STEPS} are needed"
    places = places[-MOST_STEPS:]
    batch = _median(run, "samples", places, own)
    mode, options = present_mode(run)
    return Evidence(
        own=own,
        iteration_s=times[places],
        steps=(int(own.steps[places[0]]), int(own.steps[places[-1]])),
        workers=tuple(own.rank(row) for row in range(own.shape[0])),
        batch=batch,
        noise=_noise(run, batch, own.shape[0]),
        node_groups=_nodes(own),
        micro_batches=max(1, round(_median(run, "micro_batches", places, own))),
        mode=mode,
        options=options,
        averaged=max((int(rank.detail.get(STEPS_PER_RECORD, 1)) for rank in run.ranks), default=1),
        momentum=_momentum(run),
    )


def _momentum(run: RunData) -> float | None:
    """The most of all ranks, where each one's optimizer told its own."""
    told = [rank.detail.get(MOMENTUM) for rank in run.ranks]
    known = [float(value) for value in told if isinstance(value, (int, float)) and 0.0 <= value < 1.0]
    return max(known) if known and len(known) == len(told) else None


def present_mode(run: RunData) -> tuple[str, Mapping[str, object]]:
    """The mode that a run ended in, and its options."""
    switches = run.sync_switches
    if switches is None or not len(switches):
        return NATIVE, {}
    held = switches[switches["version"].notna()].sort_values("mono_ns", kind="stable")
    if not len(held):
        return NATIVE, {}
    last = held.iloc[-1]
    try:
        options = json.loads(last["to_options"]) if isinstance(last["to_options"], str) else {}
    except ValueError:
        options = {}
    return str(last["to_mode"]), options if isinstance(options, dict) else {}


def _since(verdict: Verdict) -> int:
    """First step after the last time that a rank became slow or was cured: what comes is most like what follows it."""
    edges = [
        finding.end_step + 1 if finding.end_step is not None else finding.onset_step or 0
        for finding in verdict.findings
        if finding.ranks and finding.kind in ("chronic", "transient", "trend")
    ]
    return max(edges, default=0)


def _median(run: RunData, column: str, places: np.ndarray[tuple[int], np.dtype[np.int64]], own: OwnTime) -> float:
    """Of a column of the step records; 1 where there is none."""
    values = run.steps.columns.get(column)
    if values is None:
        return 1.0
    there = values[np.ix_(own.rows, own.columns[places])]
    there = there[np.isfinite(there) & (there > 0)]
    return float(np.median(there)) if len(there) else 1.0


def _noise(run: RunData, batch: float, ranks: int) -> NoiseScale | None:
    """The newest measurement, from batches of one rank to samples."""
    seen = run.sync_noise
    if seen is None or not len(seen):
        return None
    last = seen.sort_values("version", kind="stable").iloc[-1]
    low, high = (
        float(last[end]) if last[end] == last[end] and last[end] is not None else np.nan for end in ("low", "high")
    )
    if not np.isfinite(low):
        return None
    wide = NoiseScale.unknown(batch * ranks).high
    return NoiseScale(max(low, 0.0) * batch, max(high * batch if np.isfinite(high) else wide, low * batch))


def _nodes(own: OwnTime) -> Sequence[Sequence[int]]:
    """Ranks by node; none where all are on one, or the nodes are not known."""
    groups: dict[int, list[int]] = defaultdict(list)
    for info in own.infos:
        groups[info.node].append(info.rank)
    return list(groups.values()) if len(groups) > 1 and min(groups) >= 0 else []
