"""Numbers that several sections and the terminal summary need, derived from a run once and in one way.

Shapes: R ranks, S steps. Times are microseconds, NaN = not measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from starprof.model import events, xids
from starprof.model.rundata import STEPS_PER_RECORD, RunData
from starprof.model.verdict import Finding, Verdict
from starprof.reports import words

Matrix = NDArray[np.float64]
TROUBLE = (
    events.HOOK_ERROR,
    events.HOOK_NOTE,
    events.DISK_FULL,
    events.CLOCK_JUMP,
    events.AGENT_RESTART,
    events.OOM_KILL,
    events.XID,
    events.GPU_LOST,
)
"""Events that a reader must know of before believing the report."""

EACH = (events.HOOK_NOTE, events.XID, events.GPU_LOST)
"""Those whose texts tell different things."""


@contextmanager
def quiet() -> Iterator[None]:
    """Statistics over rows without any record are NaN, which is meant: no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def column(run: RunData, name: str) -> Matrix:
    """A step column, shape (R, S); all NaN when the run has no such column."""
    found = run.steps.columns.get(name)
    return np.full((len(run.ranks), len(run.steps.steps)), np.nan) if found is None else found


def own_us(run: RunData) -> Matrix:
    """Time a rank spends itself: step minus its time in collectives, shape (R, S)."""
    if run.info.get("timing") == "own":  # waiting is left out already
        return column(run, "dur_us")
    return column(run, "dur_us") - column(run, "blocked_us")


def lateness_us(run: RunData) -> Matrix:
    """How much later than its peers a rank is ready to reduce, shape (R, S).

    Reference is the lower median of the step's arrivals: with two ranks the earlier one, and with half of the ranks
    late still the punctual half. Negative = earlier than the reference.
    """
    arrival = column(run, "arrival_us")
    if not arrival.size:
        return arrival
    ordered = np.sort(arrival, axis=0)  # NaN goes last
    middle = np.maximum((~np.isnan(arrival)).sum(axis=0) - 1, 0) // 2
    reference: Matrix = np.take_along_axis(ordered, middle[None, :], axis=0)
    return arrival - reference


def total_seconds(run: RunData, verdict: Verdict) -> float:
    """Wall time of the steps looked at; NaN without steps.

    It is the time of which `verdict.cost` is a share, so that no sentence contradicts itself; where nothing was
    lost, the sum of the median rank's step times. Where the source told no unit there are no seconds.
    """
    if verdict.cost.share > 0 and (verdict.cost.seconds > 0 or not source_units(run)):
        return verdict.cost.seconds / verdict.cost.share
    if source_units(run):
        return float("nan")
    duration = column(run, "dur_us")
    if not duration.size:
        return float("nan")
    each = max((int(rank.detail.get(STEPS_PER_RECORD, 1)) for rank in run.ranks), default=1)
    with quiet():
        return float(np.nansum(np.nanmedian(duration, axis=0)) * each / 1e6)


def source_units(run: RunData) -> float:
    """What step times are multiples of, when their source told no unit; 0 when they are microseconds."""
    told = [rank.detail for rank in run.ranks if rank.detail.get("unit") == "arbitrary"]
    return float(told[0].get("scale") or 1.0) if told else 0.0


def duration(run: RunData, us: float) -> str:
    """A step time in words: milliseconds, or a bare number as it stands in a source without units."""
    scale = source_units(run)
    return words.milliseconds(us) if not scale else words.UNKNOWN if us != us else f"{us / scale:.4g}"


def step_us(run: RunData) -> float:
    """Median step time over all ranks and steps; NaN without steps."""
    with quiet():
        return float(np.nanmedian(column(run, "dur_us")))


def imported_from(run: RunData) -> str:
    """Format of the files that an imported run was read from; empty when starprof recorded it."""
    return str(run.info.get("source_format") or "")


def node_count(run: RunData) -> int:
    """Nodes of the job; 0 when an imported run does not tell its hosts."""
    told = [rank for rank in run.ranks if rank.node >= 0 and (rank.host or not imported_from(run))]
    return len({rank.node for rank in told})


def main_finding(verdict: Verdict) -> Finding | None:
    """The finding that the verdict is about: the first that blames a rank, if the verdict blames one."""
    blaming = [finding for finding in verdict.findings if finding.ranks]
    if verdict.verdict == "straggler" and blaming:
        return blaming[0]
    return verdict.findings[0] if verdict.findings else None


def window(run: RunData, finding: Finding | None) -> NDArray[np.bool_]:
    """Which steps the finding is about, shape (S,); all of them without a finding or an onset."""
    steps = run.steps.steps
    inside = np.ones(len(steps), dtype=bool)
    if finding is not None and finding.onset_step is not None:
        inside &= steps >= finding.onset_step
    if finding is not None and finding.end_step is not None:
        inside &= steps <= finding.end_step
    return inside if inside.any() else np.ones(len(steps), dtype=bool)


def culprit_rows(run: RunData, verdict: Verdict) -> list[int]:
    """Matrix rows of the ranks that findings name, in the order of the findings, each once."""
    row_of = {rank.rank: row for row, rank in enumerate(run.ranks)}
    named = dict.fromkeys(rank for finding in verdict.findings for rank in finding.ranks)
    return [row_of[rank] for rank in named if rank in row_of]


@dataclass(frozen=True, slots=True)
class RankMedians:
    """Medians per rank over some steps, each of shape (R,), microseconds."""

    step: Matrix
    own: Matrix
    arrival: Matrix
    blocked: Matrix
    late: Matrix
    records: NDArray[np.int64]


def rank_medians(run: RunData, inside: NDArray[np.bool_]) -> RankMedians:
    """Per-rank medians over the steps `inside` (shape (S,))."""

    def median(values: Matrix) -> Matrix:
        if not values[:, inside].size:
            return np.full(len(values), np.nan)
        with quiet():
            return np.asarray(np.nanmedian(values[:, inside], axis=1), dtype=np.float64)

    duration = column(run, "dur_us")
    return RankMedians(
        step=median(duration),
        own=median(own_us(run)),
        arrival=median(column(run, "arrival_us")),
        blocked=median(column(run, "blocked_us")),
        late=median(lateness_us(run)),
        records=np.isfinite(duration).sum(axis=1),
    )


def telling_rows(run: RunData, verdict: Verdict, at_most: int) -> tuple[list[int], int]:
    """Rows to show when not all fit: culprits, the extremes of own time and the median rank, in rank order.

    Returns:
        The rows, and how many are left out.
    """
    count = len(run.ranks)
    if count <= at_most:
        return list(range(count)), 0
    own = rank_medians(run, window(run, main_finding(verdict))).own
    by_own = [int(row) for row in np.argsort(own, kind="stable") if np.isfinite(own[row])]
    culprits = culprit_rows(run, verdict)[: at_most - 5]
    telling = {*culprits, *by_own[:2], *by_own[-2:], *by_own[len(by_own) // 2 : len(by_own) // 2 + 1]}
    return sorted(telling), count - len(telling)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that went wrong while recording: how often, where, and the last detail."""

    kind: str
    place: str
    count: int
    detail: str


def troubles(run: RunData) -> list[Trouble]:
    """Errors and notes of the hook and the recorder, one entry per kind, rank and (for notes) text."""
    frame = run.events
    if frame.empty:
        return []
    told = frame[frame["kind"].isin(TROUBLE)]
    found: dict[tuple[str, str, str], Trouble] = {}
    for kind, node, rank, value, detail in told[["kind", "node", "rank", "value", "detail"]].itertuples(index=False):
        place = f"rank {int(rank)}" if _known(rank) and rank >= 0 else f"node {int(node)}" if _known(node) else "job"
        text = str(detail) if isinstance(detail, str) else ""
        if kind == events.XID and _known(value):
            number = int(value)
            text = f"{number}, {xids.meaning(number).words} ({text.removesuffix(f': XID {number}')})"
        key = (kind, place, text if kind in EACH else "")
        before = found[key].count if key in found else 0
        counted = kind in (events.HOOK_ERROR, events.AGENT_RESTART, events.DISK_FULL) and _known(value)
        found[key] = Trouble(kind, place, max(before, int(value)) if counted else before + 1, text)
    return sorted(found.values(), key=lambda t: (t.kind, t.place, t.detail))


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that was not collected: which source, where, and why."""

    source: str
    place: str
    reason: str


def missing(run: RunData, verdict: Verdict) -> list[Missing]:
    """Unavailable sources, gaps, and what the analysis adds; each once, nodes of one reason together."""
    places: dict[tuple[str, str], list[str]] = {}
    for frame in (run.unavailable, run.gaps):
        if frame.empty:
            continue
        for row in frame.to_dict("records"):
            places.setdefault((str(row["source"]), _reason(row)), []).append(_place(row))
    for item in verdict.not_collected:
        places.setdefault((item.source, item.reason), [])
    return [
        Missing(source, ", ".join(dict.fromkeys(p for p in where if p)), reason)
        for (source, reason), where in places.items()
    ]


def _place(row: Mapping[Hashable, Any]) -> str:
    rank, node = row.get("rank"), row.get("node")
    if _known(rank) and int(rank) >= 0:
        return f"rank {int(rank)}"
    return f"node {int(node)}" if _known(node) else ""


def _reason(row: Mapping[Hashable, Any]) -> str:
    reason, lost = str(row["reason"]), row.get("lost_rows")
    since, until = row.get("from_mono_ns"), row.get("to_mono_ns")
    if _known(since) and _known(until):
        reason += f" for {(until - since) / 1e9:.1f} s"
    return f"{reason} ({int(lost)} rows lost)" if _known(lost) and lost else reason


def _known(value: object) -> TypeGuard[float]:
    """Neither None nor NaN nor pandas' NA."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not np.isnan(value)


@dataclass(frozen=True, slots=True)
class AgentCost:
    """What the agent of one node cost: share of one core, resident bytes, share of late ticks (NaN unknown)."""

    node: int
    cpu_share: float
    rss_bytes: float
    late_share: float


def agent_costs(run: RunData) -> list[AgentCost]:
    """The agent's own cost per node, from its samples."""
    frame = run.samples.get("agent_sample")
    if frame is None or frame.empty:
        return []
    costs = []
    for node in sorted(frame["node"].unique()):
        rows = frame[frame["node"] == node].sort_values("mono_ns")
        cpu, ticks, late = (rows[name].astype("float64").dropna() for name in ("cpu_us", "ticks", "late_ticks"))
        wall_us = float(np.ptp(rows["mono_ns"])) / 1e3
        # A restarted agent counts from zero again: sum the increases only.
        used, rounds, missed = (float(series.diff().clip(lower=0).sum()) for series in (cpu, ticks, late))
        costs.append(
            AgentCost(
                node=int(node),
                cpu_share=used / wall_us if wall_us > 0 else float("nan"),
                rss_bytes=float(rows["rss_bytes"].astype("float64").max()),
                late_share=missed / rounds if rounds > 0 else float("nan"),
            )
        )
    return costs


def hook_us(run: RunData) -> Matrix:
    """Mean time of the hook per step and rank, shape (R,), microseconds; NaN where it was not sampled."""
    measured = column(run, "hook_ns")
    if not measured.size:
        return np.full(len(run.ranks), np.nan)
    with quiet():
        return np.asarray(np.nanmean(measured, axis=1) / 1e3, dtype=np.float64)
