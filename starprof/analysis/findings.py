"""From a slowness to the finding that people read: late ranks, and what every builder needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from starprof.analysis.arrays import Bools
from starprof.analysis.causes import Case, Explanation, explain, ms
from starprof.analysis.causes.base import span_ns
from starprof.analysis.causes.phase import CAUSES, RANK_0_WORK
from starprof.analysis.comparison import Comparison
from starprof.analysis.counters import Counters
from starprof.analysis.healthy_past import healthy_past
from starprof.analysis.own_time import OwnTime
from starprof.analysis.phases import phase_excess
from starprof.analysis.settings import Settings
from starprof.analysis.slowness import Slowness
from starprof.analysis.topology import same_place, shared_place
from starprof.analysis.words import confidence, lateness_evidence
from starprof.model import causes
from starprof.model.rundata import RunData
from starprof.model.verdict import Finding

WHERE_ONLY = CAUSES | {causes.UNKNOWN}
SAME_SLACK = 5
MANY = 16

Explained = tuple[list[Slowness], Explanation]
"""Late ranks of one finding, and why."""


@dataclass(frozen=True)
class Context:
    """What every builder needs."""

    run: RunData
    own: OwnTime
    counters: Counters
    settings: Settings
    comparison: Comparison

    def hosts(self, nodes: list[int]) -> tuple[str, ...]:
        """Names of nodes, made distinct where two share one."""
        names = [self.counters.host(node) for node in nodes]
        all_nodes = {info.node for info in self.own.infos}
        every = [self.counters.host(node) for node in all_nodes]
        return tuple(
            f"{name} (node {n})" if every.count(name) > 1 else name for name, n in zip(names, nodes, strict=True)
        )

    def whole_span_ns(self, row: int) -> tuple[float, float]:
        """All kept steps in the clock of a rank's node."""
        return span_ns(self.own, row, 0, self.own.shape[1])

    def base(self, slowness: Slowness) -> Finding:
        """The parts of a finding that need no cause."""
        steps = self.own.steps
        start = self.own.first_step if slowness.start == 0 else int(steps[slowness.start])
        low, high = slowness.onset
        interval = (start, start) if slowness.start == 0 else (int(steps[low]), int(steps[high]))
        ended = slowness.end < len(steps)
        ranks = tuple(self.own.rank(r) for r in slowness.rows) if slowness.blame else ()
        nodes = sorted({self.own.infos[r].node for r in slowness.rows}) if slowness.blame else []
        inside = slice(slowness.start, slowness.end)
        job_us = float(self.own.native_us[inside][~self.own.rounds[inside]].sum())
        return Finding(
            kind=slowness.kind,
            cause=causes.UNKNOWN,
            ranks=ranks,
            nodes=self.hosts(nodes),
            role=self._role(slowness) if slowness.blame else {},
            onset_step=start,
            onset_interval=interval,
            end_step=int(steps[slowness.end - 1]) if ended else None,
            slowdown=round(job_us / max(1.0, job_us - slowness.cost_us), 4) if job_us else 1.0,
            cost_seconds=round(slowness.cost_us / 1e6, 6),
        )

    def _role(self, slowness: Slowness) -> dict[str, int]:
        """Role positions that all culprits share."""
        roles = [set(self.own.infos[r].role.items()) for r in slowness.rows]
        return dict(sorted(set.intersection(*roles))) if roles else {}

    def case(self, slowness: Slowness, blamed: Bools) -> Case:
        """The question that cause rules answer."""
        rows = slowness.rows
        past = healthy_past(self.comparison, slowness)
        healthy = past if slowness.period is None else past | ~slowness.steps
        gone = [float(values.sum()) for values in slowness.reduction.rows.values()]
        return Case(
            run=self.run,
            own=self.own,
            counters=self.counters,
            settings=self.settings,
            rows=rows,
            steps=slowness.steps,
            past=past,
            window=(slowness.start, slowness.end),
            excess_s=float(np.mean(gone)) / 1e6,
            phases=phase_excess(self.own, rows, slowness.steps, healthy, blamed),
            period=slowness.period,
            blamed=blamed,
            lost_us=slowness.reduction.rows,
        )


def rank_findings(context: Context, found: list[Slowness]) -> list[tuple[Slowness, Finding]]:
    """Findings of late ranks; ranks with the same cause and the same time become one finding."""
    groups = _grouped(found) if len(found) > MANY else [[s] for s in found]
    explained = [(group, _explained(context, group)) for group in groups]
    merged: list[Explained] = []
    for group, why in explained:
        same = next((m for m in merged if m[1].cause == why.cause and _same_time(m[0][0], group[0])), None)
        if same is None:
            merged.append((list(group), why))
        else:
            same[0].extend(group)
    result = []
    for group, why in _by_place(context, merged):
        whole = together(group)
        again = why if len(group) == 1 else _explained(context, group)
        result.append((whole, _rank_finding(context, whole, again)))
    return result


def _by_place(context: Context, parts: list[Explained]) -> list[Explained]:
    """Put slow ranks of one place together of whose cause nothing is told but where in the step it lies."""
    result = list(parts)
    for first in parts:
        if not any(first is part for part in result) or not _vague(first):
            continue
        alike = [p for p in result if _vague(p) and _same_time(p[0][0], first[0][0])]
        node = _only_node(context, first)
        near = [] if node is None else [p for p in alike if _only_node(context, p) == node]
        for group in (alike, near):
            slow = [s for part in group for s in part[0]]
            if len(group) > 1 and same_place(context.counters, context.own, [r for s in slow for r in s.rows]):
                result = [p for p in result if not any(p is q for q in group)] + [(slow, _explained(context, slow))]
                break
    return result


def _vague(part: Explained) -> bool:
    return part[1].cause in WHERE_ONLY


def _only_node(context: Context, part: Explained) -> int | None:
    nodes = {context.own.infos[row].node for slowness in part[0] for row in slowness.rows}
    return nodes.pop() if len(nodes) == 1 else None


def _grouped(found: list[Slowness]) -> list[list[Slowness]]:
    groups: list[list[Slowness]] = []
    for slowness in found:
        group = next((g for g in groups if _same_time(g[0], slowness)), None)
        if group is None:
            groups.append([slowness])
        else:
            group.append(slowness)
    return groups


def _same_time(a: Slowness, b: Slowness) -> bool:
    near = abs(a.start - b.start) <= SAME_SLACK and abs(a.end - b.end) <= SAME_SLACK
    return a.kind == b.kind and a.blame == b.blame and near and a.period == b.period


def together(group: list[Slowness]) -> Slowness:
    """Several slownesses of the same time as one."""
    if len(group) == 1:
        return group[0]
    first = max(group, key=lambda s: s.cost_us)
    merged: dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for part in group:
        for row, gone in part.reduction.rows.items():
            merged[row] = merged.get(row, 0.0) + gone
    return replace(
        first,
        rows=tuple(sorted({r for s in group for r in s.rows})),
        steps=np.any([s.steps for s in group], axis=0),
        cost_us=sum(s.cost_us for s in group),
        alone_us=sum(s.alone_us for s in group),
        reduction=replace(first.reduction, rows=merged),
    )


def _explained(context: Context, group: list[Slowness]) -> Explanation:
    whole = together(group)
    blamed = context.comparison.blamed.copy()
    blamed[list(whole.rows)] = True
    return explain(context.case(whole, blamed))


def _rank_finding(context: Context, slowness: Slowness, why: Explanation) -> Finding:
    named = why.cause != causes.UNKNOWN
    if why.cause == causes.OPTIMIZER:
        # Its time is counted in front of the next reduction, where it makes the others wait.
        slowness = _one_step_earlier(slowness)
    shared = shared_place(context.counters, context.own, slowness.rows)
    common = [shared.words] if shared.words else []
    evidence = [*lateness_evidence(context.comparison, slowness), *common, *why.evidence, *why.against]
    if slowness.alone_us < 0.5 * slowness.cost_us:
        evidence.append(
            f"Another slow rank hides part of it: cured alone it would save {ms(slowness.alone_us)} of its share of "
            f"{ms(slowness.cost_us)}."
        )
    return replace(
        context.base(slowness),
        cause=why.cause,
        cause_share=round(why.share, 3),
        confidence=round(why.certainty * confidence(slowness, why.share, named), 3),
        evidence=tuple(line[0].upper() + line[1:] for line in evidence),
        action=why.action,
        verify=why.verify,
        next=" ".join(part for part in (why.next, shared.next) if part),
    )


def _one_step_earlier(slowness: Slowness) -> Slowness:
    if slowness.start == 0:
        return slowness
    low, high = slowness.onset
    return replace(slowness, start=slowness.start - 1, onset=(max(0, low - 1), max(0, high - 1)))


def rank_0_work(context: Context, slowness: Slowness) -> Slowness:
    """Regular extra work of rank 0 outside forward, backward and data is the program's own (saving, logging)."""
    if slowness.kind != "periodic" or tuple(context.own.rank(r) for r in slowness.rows) != (0,):
        return slowness
    case = context.case(slowness, context.comparison.blamed)
    if case.phases.share(*RANK_0_WORK) < context.settings.min_cause_share:
        return slowness
    return replace(slowness, blame=False)
