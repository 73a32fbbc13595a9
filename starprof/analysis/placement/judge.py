"""Which nodes are slow, which can't be told from others, which are cleared, and what to run next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.placement.fit import half_width, huber, largest_by_chance, score_of, statistics
from starprof.analysis.placement.result import Answer, NodeEffect, Placement, Status, Together
from starprof.analysis.placement.runs import Design, RunOn, design_of
from starprof.analysis.placement.separate import placements

ALPHA = 0.002
"""Probability that chance alone makes any node pass."""
FIRST_LOOK, PERMUTATIONS = 299, 4999
PLAINLY = 0.05
LEVEL = 0.95
MATTERS = 0.03
"""A node that costs less is not worth a search."""
CLEAR = 0.05
MIN_RUNS = 6
MIN_IN = 3
"""A node is judged from so many runs with it, and so many without."""
STANDS_ALONE = 2.6
"""Statistic that a node must keep beside another one to be told from it (0.5 % by chance)."""
KEEPS = 0.5
"""Share of its effect that it must keep."""
MOST_SLOW = 20


@dataclass(frozen=True, slots=True)
class _Chosen:
    unit: int
    p: float


def judge(runs: Sequence[RunOn], *, seed: int = 0) -> Placement:
    """Find the nodes that make runs slow.

    Args:
        runs: with their nodes; those without a positive time, or without nodes, are left out.
        seed: of the permutations.
    """
    usable = [run for run in runs if run.nodes and np.isfinite(run.seconds) and run.seconds > 0]
    design = design_of(usable)
    n, m = design.member.shape
    groups = len(np.unique(design.strata))
    counts = _counts(usable)
    if n < MIN_RUNS or m == 0:
        why = f"{n} comparable runs are too few: {MIN_RUNS} at least are needed."
        if n >= MIN_RUNS:
            why = "All comparable runs were on the same nodes: nothing tells them apart."
        nodes = tuple(NodeEffect(node, count, None, None, None, None, "not-compared") for node, count in counts.items())
        return Placement("inconclusive", n, groups, nodes, (), why)
    chosen = _search(design, seed)
    together = [_alike(design, chosen, one) for one in chosen]
    effects = _effects(design, chosen, together, counts)
    undecidable = tuple(
        Together(names, always, placements(names, usable, _known_good(effects)))
        for names, always in (_named(design, one, others) for one, others in zip(chosen, together, strict=True))
        if len(names) > 1
    )
    answer, reason = _answer(effects, undecidable, n)
    return Placement(answer, n, groups, effects, undecidable, reason)


def _search(design: Design, seed: int) -> list[_Chosen]:
    """Units that make runs slow, one after the other; each must be sure beside those before it."""
    found: list[_Chosen] = []
    judged = [u for u in range(design.member.shape[1]) if _enough(design, u)]
    while judged and len(found) < MOST_SLOW:
        chosen = [one.unit for one in found]
        left = [u for u in judged if u not in chosen]
        if not left:
            break
        values, unit, strata = statistics(design, chosen, left)
        best = int(np.argmax(values))
        p = _by_chance(score_of(design, chosen), unit, strata, float(values[best]), seed + len(found))
        if p > ALPHA:
            break
        found.append(_Chosen(left[best], p))
        effect = float(huber(design, [one.unit for one in found]).effect[-1])
        if effect < np.log1p(MATTERS):
            found.pop()
            break
    return [one for one, effect in zip(found, _last(design, found), strict=True) if effect >= np.log1p(MATTERS)]


def _by_chance(score: Floats, unit: Floats, strata: Ints, value: float, seed: int) -> float:
    """Probability that chance alone gives any node so large a statistic; few permutations where it plainly does."""
    for times in (FIRST_LOOK, PERMUTATIONS):
        chance = largest_by_chance(score, unit, strata, times, seed)
        p = (1 + int((chance >= value - 1e-9).sum())) / (1 + times)
        if p > PLAINLY:
            break
    return p


def _last(design: Design, found: Sequence[_Chosen]) -> list[float]:
    """Effects when all are in: one that another has explained away is no finding."""
    return [float(e) for e in huber(design, [one.unit for one in found]).effect] if found else []


def _enough(design: Design, unit: int) -> bool:
    """In enough runs, and enough comparable ones without it."""
    inside = design.member[:, unit] > 0
    beside = np.isin(design.strata, design.strata[inside])
    return bool(inside.sum() >= MIN_IN and (beside & ~inside).sum() >= MIN_IN)


def _alike(design: Design, chosen: Sequence[_Chosen], one: _Chosen) -> list[int]:
    """Units that could be the slow one instead: beside them this one is no longer telling."""
    others = [c.unit for c in chosen if c.unit != one.unit]
    alone = float(huber(design, [*others, one.unit]).effect[-1])
    inside = design.member[:, one.unit] > 0
    found = []
    for unit in range(design.member.shape[1]):
        if unit == one.unit or unit in others or not (design.member[inside, unit] > 0).any():
            continue
        values, _, _ = statistics(design, [*others, unit], [one.unit])
        kept = float(huber(design, [*others, unit, one.unit]).effect[-1])
        if values[0] < STANDS_ALONE or kept < KEEPS * alone:
            found.append(unit)
    return found


def _named(design: Design, one: _Chosen, others: Sequence[int]) -> tuple[tuple[str, ...], bool]:
    names = [node for unit in (one.unit, *others) for node in design.units[unit]]
    return tuple(names), not others


def _effects(
    design: Design, chosen: Sequence[_Chosen], together: Sequence[Sequence[int]], counts: dict[str, int]
) -> tuple[NodeEffect, ...]:
    """Every node's effect beside the slow ones, and what is known of it."""
    units = [one.unit for one in chosen]
    doubtful = {u for one, others in zip(chosen, together, strict=True) if others for u in (one.unit, *others)}
    looks = design.member.shape[1]
    rows: list[NodeEffect] = []
    for unit, names in enumerate(design.units):
        fit = huber(design, [*[u for u in units if u != unit], unit])
        width = half_width(fit, looks, LEVEL) * float(fit.error[-1])
        effect = float(fit.effect[-1])
        low, high = np.exp(effect - width), np.exp(min(effect + width, 50.0))
        status: Status = "cleared" if high < 1.0 + CLEAR and _enough(design, unit) else "unsure"
        if unit in units or unit in doubtful:
            status = "undecidable" if unit in doubtful or len(names) > 1 else "slow"
        p = next((one.p for one in chosen if one.unit == unit), None)
        rows += [NodeEffect(n, counts[n], float(np.exp(effect)), float(low), float(high), p, status) for n in names]
    told = {row.node for row in rows}
    rows += [NodeEffect(n, c, None, None, None, None, "not-compared") for n, c in counts.items() if n not in told]
    order = {"slow": 0, "undecidable": 1, "unsure": 2, "cleared": 3, "not-compared": 4}
    return tuple(sorted(rows, key=lambda row: (order[row.status], -(row.slowdown or 0.0), row.node)))


def _counts(runs: Sequence[RunOn]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in runs:
        for node in sorted(run.nodes):
            counts[node] = counts.get(node, 0) + 1
    return dict(sorted(counts.items()))


def _known_good(effects: Sequence[NodeEffect]) -> list[str]:
    """Nodes to fill a placement with: the cleared ones, then the least suspicious of the others."""
    fit = [e for e in effects if e.status in ("cleared", "unsure")]
    return [e.node for e in sorted(fit, key=lambda e: (e.status != "cleared", e.high or np.inf, -e.runs))]


def _answer(effects: Sequence[NodeEffect], undecidable: Sequence[Together], runs: int) -> tuple[Answer, str]:
    slow = [e for e in effects if e.status == "slow"]
    words = []
    if slow:
        told = [f"{e.node} ({e.slowdown:.2f} times, between {e.low:.2f} and {e.high:.2f})" for e in slow]
        words.append(f"Runs with {', '.join(told)} are slower than those without.")
    for pair in undecidable:
        names = " and ".join(pair.nodes) if len(pair.nodes) < 4 else f"{len(pair.nodes)} nodes ({pair.nodes[0]}, ...)"
        why = "they always ran together" if pair.always else "the runs that had only one of them are too few"
        words.append(f"Undecidable which of {names} is slow: {why}; the next placements to try are told.")
    if slow or undecidable:
        return ("slow-nodes" if slow else "undecidable"), " ".join(words)
    open_ = [e for e in effects if e.status in ("unsure", "not-compared")]
    if not open_:
        return "none", f"No node makes runs slower: over {runs} runs each one's effect is below {100 * CLEAR:.0f} %."
    worst = max((e.high for e in open_ if e.high is not None), default=float("inf"))
    cleared = len(effects) - len(open_)
    bound = f" up to {worst:.2f} times is not excluded;" if np.isfinite(worst) and worst < 100 else ""
    return "inconclusive", (
        f"No node stands out in {runs} runs; {cleared} of {len(effects)} nodes are cleared,{bound} "
        "more runs on other combinations of nodes would tell."
    )
