"""What the recording itself cost, as measured in the run."""

from __future__ import annotations

import numpy as np

from starprof.reports import facts, words
from starprof.reports.markup import Section, table, text
from starprof.reports.material import Material


def render(material: Material) -> Section | None:
    """Hook per step, agents per node; nothing for a run that starprof did not record."""
    if facts.imported_from(material.run):
        return None
    return Section("overhead", "What recording cost", _hook(material) + _agents(material))


def _hook(material: Material) -> str:
    spent, step = material.verdict.overhead.step_us, facts.step_us(material.run)
    per_rank = facts.hook_us(material.run)
    if spent is None:
        return '<p class="big">Hook: not measured in this run.</p>'
    share = f", {words.percent(spent / step)} of a step" if step > 0 else ""
    told = f'<p class="big">Hook: <strong>{text(f"{spent:.1f} µs")}</strong> a step{text(share)}'
    known = np.isfinite(per_rank)
    if known.sum() > 1:
        row = int(np.nanargmax(per_rank))
        told += f"; most on rank {material.run.ranks[row].rank}: {text(f'{per_rank[row]:.1f} µs')}"
    return f"{told}.</p>"


def _agents(material: Material) -> str:
    costs = facts.agent_costs(material.run)
    if not costs:
        used = material.verdict.overhead.agent_cpu
        return f"<p>Agent: {'not measured' if used is None else words.percent(used) + ' of one core'}.</p>"
    rows = [
        (
            f"n{cost.node}",
            f"{words.percent(cost.cpu_share)} of one core",
            words.mebibytes(cost.rss_bytes),
            words.percent(cost.late_share),
        )
        for cost in costs
    ]
    return table(("agent on node", "CPU", "memory", "late ticks"), rows, numeric=(1, 2, 3))
