"""Findings on workers that don't wait for each other, in words."""

from __future__ import annotations

import json
import math

import numpy as np

from starprof.analysis.causes.base import ms, pct, rank_names
from starprof.analysis.workers.events import Event
from starprof.analysis.workers.fleet import Fleet
from starprof.analysis.workers.levels import FEW_SAMPLES, Group, Levels
from starprof.analysis.workers.losses import Losses
from starprof.model import causes
from starprof.model.rundata import RunData
from starprof.model.verdict import Finding

SURE, FEW_SAMPLES_SURE, HALF_SLOW_SURE = 0.95, 0.7, 0.9
NAMED = 12
_NEXT = (
    "Record counters of these workers' hosts and GPUs at that time (starprof record, or another tool's export beside "
    "this file): times alone do not tell a cause."
)


def event_finding(fleet: Fleet, group: list[Event], losses: Losses) -> Finding:
    """Workers that became slower at the same time."""
    first = min(group, key=lambda event: event.start)
    start, end = first.start, max(event.end for event in group)
    rows = tuple(sorted(event.row for event in group))
    who = _who(fleet, rows)
    lasts = end >= fleet.shape[1] - 1
    excess = float(np.mean([event.excess for event in group]))
    lines = [_rise(fleet, event) for event in sorted(group, key=lambda e: e.row)]
    lost = sum(losses.of_event(event) for event in group)
    lines.append(_loss(losses, who, rows, lost, (start, end)))
    low, high = (min(e.bounds[0] for e in group), max(e.bounds[1] for e in group))
    return Finding(
        kind="chronic" if lasts or start == 0 else "transient",
        cause=causes.UNKNOWN,
        ranks=tuple(fleet.rank(row) for row in rows),
        nodes=_nodes(fleet, rows),
        confidence=round(SURE * min(event.late_share for event in group), 3),
        onset_step=int(fleet.steps[start]),
        onset_interval=(int(fleet.steps[min(low, start)]), int(fleet.steps[max(start, high)])),
        end_step=None if lasts else int(fleet.steps[end - 1]),
        slowdown=round(math.exp(excess), 4),
        cost_seconds=_seconds(fleet, lost),
        evidence=(*lines, *_units(fleet)),
        action=f"Look at what happened on the hosts of {who} {_since(fleet, start, end, lasts)}: jobs that share "
        "the GPU or the cores, throttling, storage. Or move the worker.",
        verify=f"The times of {who} should come back to {_usual(rows)}.",
        next=_NEXT,
    )


def _rise(fleet: Fleet, event: Event) -> str:
    """One worker's times in an event, before, and its peers'."""
    inside = slice(event.start, event.end)
    mine = fleet.values[event.row]
    during = float(np.nanmean(mine[inside]))
    others = np.delete(fleet.values[:, inside], event.row, axis=0)
    usual = fleet.amount(during / math.exp(event.excess))
    line = (
        f"Rank {fleet.rank(event.row)} needed {fleet.amount(during)} per step where {usual} is usual for it "
        f"(x{math.exp(event.excess):.2f}), from {fleet.stretch(event.start, event.end)}"
    )
    if np.isfinite(others).any():
        line += f"; the others needed {fleet.amount(float(np.nanmedian(others)))} meanwhile"
    return line + "."


def group_finding(fleet: Fleet, group: Group, lost: float, losses: Losses, run: RunData) -> Finding:
    """Workers that are slower than the others from the first sample to the last."""
    who, levels = _who(fleet, group.rows), losses.levels.levels
    half = len(group.rows) * 2 >= len(levels)
    lasting = ", in all parts of the run" if fleet.shape[1] > 1 else ""
    few = fleet.shape[1] < FEW_SAMPLES
    lines = [
        f"{_capital(who)} needed {_range(fleet, group.rows)} per step, the others ({_numbers(fleet, group.reference)}) "
        f"{_range(fleet, group.reference)}: x{math.exp(group.excess):.2f}{lasting}. Nobody lies "
        f"between: the fastest of the slow is {(math.exp(group.gap) - 1) * 100:.0f} % above the slowest of the others.",
        _loss(losses, who, group.rows, lost, (0, fleet.shape[1])),
    ]
    if half:
        lines.append(
            f"{len(group.rows)} of {len(levels)} workers are slow, so the fleet's median says nothing: the fast ones "
            "show what is possible here."
        )
    if fleet.shape[1] == 1:
        lines.append("There is one value per worker, so that it can't be told when it began or whether it lasts.")
    confidence = SURE * (FEW_SAMPLES_SURE if few else 1.0) * (HALF_SLOW_SURE if half else 1.0)
    return Finding(
        kind="chronic",
        cause=causes.UNKNOWN,
        ranks=tuple(fleet.rank(row) for row in group.rows),
        nodes=_nodes(fleet, group.rows),
        confidence=round(confidence, 3),
        onset_step=int(fleet.steps[0]),
        onset_interval=(int(fleet.steps[0]), int(fleet.steps[0])),
        slowdown=round(math.exp(group.excess), 4),
        cost_seconds=_seconds(fleet, lost),
        evidence=(*lines, *temperatures(fleet, run), *_units(fleet)),
        action=f"Compare what {who} {'run' if len(group.rows) > 1 else 'runs'} on with the others: GPU model and "
        "share, clocks, cores and their binding, neighbours on the same host.",
        verify=f"On equal hardware with an equal share of it {who} should need {_range(fleet, group.reference)}.",
        next=_NEXT,
    )


def uniform_finding(fleet: Fleet, start: int, end: int, rise: float, lost: float) -> Finding:
    """All workers became slower together."""
    lasts = end >= fleet.shape[1] - 1
    return Finding(
        kind="uniform",
        cause=causes.UNKNOWN,
        confidence=SURE,
        onset_step=int(fleet.steps[start]),
        onset_interval=(int(fleet.steps[start]), int(fleet.steps[start])),
        end_step=None if lasts else int(fleet.steps[end - 1]),
        slowdown=round(math.exp(rise), 4),
        cost_seconds=_seconds(fleet, lost),
        evidence=(
            f"All {fleet.shape[0]} workers became slower together (x{math.exp(rise):.2f}), "
            f"from {fleet.stretch(start, end)}.",
        ),
        action="Look for what they share: the parameter servers, the network, the storage, or a larger batch.",
        verify="All workers' times should come back together.",
        next=_NEXT,
    )


def variety_finding(fleet: Fleet, levels: Levels) -> Finding:
    """Workers that differ constantly, and nobody stands apart: what they run on differs."""
    return Finding(
        kind="structural",
        cause=causes.UNKNOWN,
        confidence=SURE,
        evidence=(
            f"The workers differ constantly, from the first sample to the last: {spread_words(fleet, levels)}. "
            "None stands apart from the others, and none changed: this is variety of what they run on, no event.",
            *_units(fleet),
        ),
        action="Give the workers equal shares of equal hardware, or batches in proportion to their speed; no worker "
        "needs to be exchanged.",
        verify="The workers' median times should move together.",
    )


def spread_words(fleet: Fleet, levels: Levels) -> str:
    """The levels against the fleet's median: "rank 5 +8 %, rank 1 -18 %", the furthest first."""
    apart = levels.levels - np.median(levels.levels)
    order = np.argsort(-np.abs(apart), kind="stable")[:NAMED]
    parts = [f"rank {fleet.rank(int(r))} {(math.exp(apart[r]) - 1) * 100:+.0f} %" for r in order]
    return ", ".join(parts) + (" of the median worker's time" if len(parts) == len(apart) else ", ... of the median's")


def temperatures(fleet: Fleet, run: RunData) -> tuple[str, ...]:
    """What the source tells of a hot node, and that it can't be what tells its own workers apart."""
    nodes = {info.node for info in fleet.infos}
    lines = []
    for node, detail in zip(run.nodes.get("node", ()), run.nodes.get("detail", ()), strict=True):
        if node in nodes and isinstance(detail, str) and "core_c" in detail:
            lines.append(_temperature(fleet, int(node), detail, alone=len(nodes) == 1))
    return tuple(lines)


def _temperature(fleet: Fleet, node: int, detail: str, *, alone: bool) -> str:
    values = json.loads(detail)["core_c"]
    host = next((info.host for info in fleet.infos if info.node == node and info.host), f"node {node}")
    line = f"The cores of {host} are at {min(values):g} to {max(values):g} C"
    if alone:
        return line + "; slow and fast workers run there alike, so that this does not tell them apart."
    return line + "."


def _who(fleet: Fleet, rows: tuple[int, ...]) -> str:
    return _numbers(fleet, rows) + _labels(fleet, rows)


def _numbers(fleet: Fleet, rows: tuple[int, ...]) -> str:
    return rank_names(tuple(fleet.rank(row) for row in rows))


def _labels(fleet: Fleet, rows: tuple[int, ...]) -> str:
    """The names that the source has for workers, when they are no numbers."""
    names = [str(fleet.infos[row].detail["label"]) for row in rows if "label" in fleet.infos[row].detail]
    return f" ({', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else ''})" if names else ""


def _nodes(fleet: Fleet, rows: tuple[int, ...]) -> tuple[str, ...]:
    """Hosts on which all workers are slow: one that fast workers share is not what makes the others slow."""
    others = {info.host for row, info in enumerate(fleet.infos) if row not in rows}
    return tuple(sorted({fleet.infos[row].host for row in rows} - {"", *others}))


def _range(fleet: Fleet, rows: tuple[int, ...]) -> str:
    medians = np.nanmedian(fleet.values[list(rows)], axis=1)
    low, high = fleet.amount(float(medians.min())), fleet.amount(float(medians.max()))
    return low if low == high else f"{low} to {high}"


def _usual(rows: tuple[int, ...]) -> str:
    return "their usual level" if len(rows) > 1 else "its usual level"


def _since(fleet: Fleet, start: int, end: int, lasts: bool) -> str:
    return f"at {fleet.moment(start)}" if lasts else f"between {fleet.moment(start)} and {fleet.moment(end - 1)}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _seconds(fleet: Fleet, lost: float) -> float:
    """Wall seconds of the job: the job does as much in its time as all workers together."""
    return round(lost / fleet.shape[0], 6) if fleet.in_seconds else 0.0


def _loss(losses: Losses, who: str, rows: tuple[int, ...], lost: float, span: tuple[int, int]) -> str:
    """What slow workers lost, and for whom."""
    fleet, several = losses.fleet, len(rows) > 1
    its, it = ("their", "them") if several else ("its", "it")
    own = losses.own_time(rows, *span)
    amount = f"{ms(lost * 1e6)} of {its} own, " if fleet.in_seconds else ""
    share = f"{pct(lost / own if own > 0 else 0.0)} of {its} own time in it"
    of_fleet = f"{pct(lost / losses.total if losses.total > 0 else 0.0)} of what all {fleet.shape[0]} workers could do"
    if fleet.whole_steps and fleet.shape[1] > 1:
        waits = f"Nobody waits for {it} (asynchronous)"
        rest = "Workers that did wait for each other would lose more."
    else:
        waits = "These times hold no waiting for others"
        held = losses.if_waited_s(rows, *span)
        told = f": {ms(held * 1e6)} of the job" if held == held else ""
        rest = f"Whether the others wait for {it} elsewhere is not told; if they do in every step, all lose{told}."
    unknown = "" if fleet.in_seconds else " In seconds it can't be told."
    return f"{waits}: {who} lost {amount}{share}, which is {of_fleet} in the run.{unknown} {rest}"


def _units(fleet: Fleet) -> tuple[str, ...]:
    if not fleet.arbitrary:
        return ()
    return ("The times are in a unit that the source does not tell: ratios are sure, amounts are as they stand there.",)
