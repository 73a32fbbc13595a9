"""What the recording cost, and what it could not see."""

from __future__ import annotations

import numpy as np

from starprof.analysis.causes.base import rank_names
from starprof.analysis.counters import growth, numbers
from starprof.model.events import HOOK_NOTE
from starprof.model.rundata import RunData
from starprof.model.verdict import NotCollected, Overhead

MOST_NOTES = 3


def not_collected(run: RunData) -> tuple[NotCollected, ...]:
    """Sources that could not be read, holes in the record, and ranks without records; each with its reason."""
    seen: dict[tuple[str, str], None] = {}
    for frame in (run.unavailable, run.gaps):
        if len(frame) == 0:
            continue
        for source, node, reason in zip(frame["source"], frame["node"], frame["reason"], strict=True):
            seen[str(source), f"{reason}{_on(run, node)}"] = None
    for rank, reason in _holes(run):
        seen[f"steps of rank {rank}", reason] = None
    return tuple(NotCollected(source, reason) for source, reason in seen)


def hook_notes(run: RunData) -> str:
    """What the hooks of the ranks said that they could not see, as a sentence; empty when they said nothing."""
    frame = run.events
    if len(frame) == 0 or "kind" not in frame:
        return ""
    noted = frame[frame["kind"] == HOOK_NOTE]
    said = {str(detail) for detail in noted["detail"].dropna()}
    if not said:
        return ""
    ranks = sorted({int(rank) for rank in noted["rank"].dropna()})
    who = f" of {rank_names(tuple(ranks))}" if ranks else ""
    return f" The hook{who} noted: {'; '.join(sorted(said)[:MOST_NOTES])}."


def _on(run: RunData, node: object) -> str:
    """The node, where there are several."""
    if node is None or node != node or len({info.node for info in run.ranks}) < 2:
        return ""
    return f" (node {int(node)})"  # type: ignore[call-overload]


def _holes(run: RunData) -> list[tuple[int, str]]:
    """Ranks without step records, and ranks whose records begin late, end early or miss steps."""
    duration = run.steps.columns.get("dur_us")
    if run.info.get("source_format") and (duration is None or np.isnan(duration).all()):
        return []  # whoever imports what has no steps says so once
    if duration is None:
        return [(info.rank, "no samples") for info in run.ranks]
    seen = ~np.isnan(duration)
    result = []
    for info, mine in zip(run.ranks, seen, strict=True):
        if not mine.any():
            result.append((info.rank, "no samples from this rank"))
            continue
        missing = int((~mine & seen.any(axis=0)).sum())
        if missing:
            steps = run.steps.steps[mine]
            result.append((info.rank, f"{missing} steps missing, records from step {steps[0]} to {steps[-1]}"))
    return result


def overhead(run: RunData) -> Overhead:
    """Mean hook time per step, and the busiest agent's CPU share and memory."""
    hook = run.steps.columns.get("hook_ns")
    step_us = None
    if hook is not None and np.isfinite(hook).any():
        step_us = round(float(np.nanmean(hook)) / 1e3, 3)
    agent = run.samples.get("agent_sample")
    if agent is None or agent["node"].isna().all():
        return Overhead(step_us=step_us)
    rates, memory = [], []
    for _, rows in agent.sort_values("mono_ns", kind="stable").groupby("node"):
        times = numbers(rows, "mono_ns")
        rates.append(growth(times, numbers(rows, "cpu_us"), times[0], times[-1]).per_second / 1e6)
        memory.append(numbers(rows, "rss_bytes"))
    known = [rate for rate in rates if rate == rate]
    used = np.concatenate(memory)
    return Overhead(
        step_us=step_us,
        agent_cpu=round(max(known), 6) if known else None,
        agent_rss_bytes=int(np.nanmax(used)) if np.isfinite(used).any() else None,
    )
