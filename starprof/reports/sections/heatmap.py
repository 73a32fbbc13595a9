"""The main view: rank x step, arrival lateness or own time."""

from __future__ import annotations

from typing import Any

import numpy as np

from starprof.model.verdict import Finding
from starprof.reports import facts, words
from starprof.reports.facts import Matrix
from starprof.reports.markup import Section, chart, text
from starprof.reports.material import Material
from starprof.reports.metrics import NETWORK_CAUSES
from starprof.reports.pack import peak_bins

BINS_AT_MOST = 1000  # about the pixels of the widest chart
LEAST_SPAN_LATE = 0.05  # of a step: the colour scale's reach where somebody is late ...
LEAST_SPAN_CALM = 0.3  # ... and where nobody is: noise stays pale and does not look like a fault
HEADROOM = 1.15
MARKS_AT_MOST = 64
TOLD_AT_MOST = 3
TALL_FROM = 40  # ranks: from here on the page draws a culprit's row taller than the others


def render(material: Material) -> Section | None:
    """Heatmap with its switch; None without steps."""
    views = [view for view in (_late(material), _own(material)) if view is not None]
    if not views:
        return None
    steps = material.run.steps.steps
    width = views[0]["width"]
    firsts = steps[::width].astype(np.float64)
    spec = {
        "kind": "heatmap",
        "ranks": [rank.rank for rank in material.run.ranks],
        "firsts": material.pack.array(firsts),
        "width": width,
        "lastStep": int(steps[-1]),
        "views": views,
        "culprits": material.culprits,
        "tallFrom": TALL_FROM,
        "marks": _marks(material),
        "onset": _onset(material),
    }
    return Section("heatmap", "Every rank, every step", _body(material, views, width), spec)


def _marks(material: Material) -> list[list[int]]:
    """Frames around what findings blame: row, first and last step."""
    row_of = {rank.rank: row for row, rank in enumerate(material.run.ranks)}
    marks = []
    for finding in material.verdict.findings:
        picked = material.run.steps.steps[facts.window(material.run, finding)]
        marks += [[row_of[r], int(picked[0]), int(picked[-1])] for r in finding.ranks if r in row_of]
    return marks[:MARKS_AT_MOST]


def _onset(material: Material) -> int | None:
    """First step of the main finding, where it did not begin with the run."""
    inside = material.window
    return int(material.run.steps.steps[inside][0]) if material.culprits and not inside[0] else None


def _body(material: Material, views: list[dict[str, Any]], width: int) -> str:
    switch = "".join(
        f'<label><input type="radio" name="view" value="{at}"{" checked" if not at else ""}>'
        f"<span>{text(view['name'])}</span></label>"
        for at, view in enumerate(views)
    )
    notes = [_reading(material)]
    if len(views) < 2:
        notes.append(f"Only {views[0]['name'].lower()} can be shown: the other measure was not recorded.")
    if width > 1:
        notes.append(f"Each column is the largest of {width} steps, so no spike is lost.")
    if len(material.run.ranks) > TALL_FROM and material.culprits:
        notes.append("Rows of culprits are drawn taller.")
    notes.append("Blank: no record.")
    return (
        f'<div class="controls"><fieldset class="switch js"><legend>Show</legend>{switch}</fieldset>'
        '<span class="scale js" id="heatmap-scale"></span></div>'
        f"{chart('heatmap', 'Heatmap of ' + views[0]['name'].lower() + ' by rank and step')}"
        f'<p class="note">{text(" ".join(notes))}</p>'
    )


def _reading(material: Material) -> str:
    """What the picture shows, in words."""
    blaming = [finding for finding in material.verdict.findings if finding.ranks]
    if not blaming:
        return (
            "A rank that held the others up would arrive last, step after step: its row would stand out. "
            "What is left is noise: its pattern changes from step to step."
        )
    if blaming[0].cause in NETWORK_CAUSES:
        return (
            "Nobody arrives late here: the reduction itself takes longer, and all ranks wait alike. "
            "The culprit shows in the network counters below."
        )
    told = " ".join(sentence for finding in blaming[:TOLD_AT_MOST] if (sentence := _lateness(material, finding)))
    return (
        "The rank that holds the others up arrives last: its row stands out. The waiting ranks show the same step "
        f"time as the culprit, so step time alone would not tell them apart. {told}"
    ).rstrip()


def _lateness(material: Material, finding: Finding) -> str:
    """How late the blamed ranks of one finding were, in its steps; "" where arrivals were not recorded."""
    inside = facts.window(material.run, finding)
    late = facts.rank_medians(material.run, inside).late
    rows = [row for row, rank in enumerate(material.run.ranks) if rank.rank in finding.ranks]
    if not rows or not np.isfinite(late[rows]).any():
        return ""
    steps = material.run.steps.steps[inside]
    others = np.delete(late, material.culprits)
    with facts.quiet():
        worst, rest = np.nanmax(late[rows]), np.nanmedian(others) if others.size else np.nan
    named = f"rank{'s' if len(rows) > 1 else ''} {words.some(finding.ranks)}"
    against = f", the others {words.milliseconds(rest)}" if np.isfinite(rest) else ""
    return (
        f"In steps {steps[0]}-{steps[-1]} {named} arrived {words.milliseconds(worst)} after the reference "
        f"(median){against}."
    )


def _late(material: Material) -> dict[str, Any] | None:
    late = facts.lateness_us(material.run)
    return _view(
        material,
        late,
        material.medians.late,
        name="Arrival lateness",
        about="ms later than its peers",
        floor=0.0,
    )


def _own(material: Material) -> dict[str, Any] | None:
    own = facts.own_us(material.run)
    finite = own[np.isfinite(own)]
    return _view(
        material,
        own,
        material.medians.own,
        name="Own time",
        about="of own work, in the unit of the source" if facts.source_units(material.run) else "ms of own work",
        floor=float(np.percentile(finite, 2) / _unit_us(material)) if finite.size else 0.0,
    )


def _unit_us(material: Material) -> float:
    """Microseconds of one unit of what is shown: milliseconds, or the source's own unit where it names none."""
    return facts.source_units(material.run) or 1e3


def _view(
    material: Material, values_us: Matrix, medians_us: Matrix, *, name: str, about: str, floor: float
) -> dict[str, Any] | None:
    """One view of the switch; None when it was never measured.

    The colour scale reaches from `floor` to the slowest rank's median, at least over a part of a step: single
    spikes saturate instead of washing the rest out.
    """
    unit = _unit_us(material)
    binned, width = peak_bins(values_us / unit, BINS_AT_MOST)
    finite = binned[np.isfinite(binned)]
    if not finite.size:
        return None
    known = medians_us[np.isfinite(medians_us)]
    slowest = float(known.max() / unit) if known.size else floor
    blamed = material.finding is not None and material.finding.ranks and material.finding.cause not in NETWORK_CAUSES
    least = (LEAST_SPAN_LATE if blamed else LEAST_SPAN_CALM) * facts.step_us(material.run) / unit
    span = max(least, HEADROOM * (slowest - floor), float(np.percentile(finite, 99)) - floor)
    return {
        "name": name,
        "about": about,
        "width": width,
        "z": material.pack.quantised(binned),
        "low": round(floor, 4),
        "high": round(floor + span, 4),
        "medians": material.pack.array(medians_us / unit),
    }
