"""The main view: rank x step, arrival lateness or own time."""

from __future__ import annotations

from typing import Any

import numpy as np

from starprof.reports import facts, words
from starprof.reports.facts import Matrix
from starprof.reports.markup import Section, chart, text
from starprof.reports.material import Material
from starprof.reports.pack import peak_bins

BINS_AT_MOST = 1000  # about the pixels of the widest chart
LEAST_SPAN = 0.1  # of a step: smaller differences stay pale, so that noise never looks like a fault
HEADROOM = 1.15
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
        "window": _marks(material),
    }
    return Section("heatmap", "Every rank, every step", _body(material, views, width), spec)


def _marks(material: Material) -> list[int] | None:
    if not material.culprits or not material.windowed:
        return None
    picked = material.run.steps.steps[material.window]
    return [int(picked[0]), int(picked[-1])]


def _body(material: Material, views: list[dict[str, Any]], width: int) -> str:
    switch = "".join(
        f'<label><input type="radio" name="view" value="{at}"{" checked" if not at else ""}>'
        f"<span>{text(view['name'])}</span></label>"
        for at, view in enumerate(views)
    )
    notes = []
    if len(views) == 2:
        notes.append(
            "The rank that holds the others up arrives last: its row stands out in arrival lateness. "
            "The waiting ranks show the same step time as the culprit, so step time alone would not tell them apart."
        )
    else:
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
        f'<p class="note">{text(" ".join(notes))}</p><p class="note">{text(_reading(material))}</p>'
    )


def _reading(material: Material) -> str:
    """What the picture shows, in words."""
    late = material.medians.late
    named = [f"rank {material.run.ranks[row].rank}" for row in material.culprits[:6]]
    if not named or not np.isfinite(late[material.culprits]).any():
        return ""
    worst = np.nanmax(late[material.culprits])
    others = np.delete(late, material.culprits)
    with facts.quiet():
        rest = np.nanmedian(others) if others.size else np.nan
    told = f"In {material.window_words} {', '.join(named)} arrived {words.milliseconds(worst)} after the reference"
    return f"{told} (median), the others {words.milliseconds(rest)}." if np.isfinite(rest) else f"{told} (median)."


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
        about="ms of own work",
        floor=float(np.percentile(finite, 2) / 1e3) if finite.size else 0.0,
    )


def _view(
    material: Material, values_us: Matrix, medians_us: Matrix, *, name: str, about: str, floor: float
) -> dict[str, Any] | None:
    """One view of the switch; None when it was never measured.

    The colour scale reaches from `floor` to the slowest rank's median, at least `LEAST_SPAN` of a step: single
    spikes saturate instead of washing the rest out.
    """
    binned, width = peak_bins(values_us / 1e3, BINS_AT_MOST)
    finite = binned[np.isfinite(binned)]
    if not finite.size:
        return None
    known = medians_us[np.isfinite(medians_us)]
    slowest = float(known.max() / 1e3) if known.size else floor
    least = LEAST_SPAN * facts.step_us(material.run) / 1e3
    span = max(least, HEADROOM * (slowest - floor), float(np.percentile(finite, 99)) - floor)
    return {
        "name": name,
        "about": about,
        "width": width,
        "z": material.pack.quantised(binned),
        "low": round(floor, 4),
        "high": round(floor + span, 4),
        "medians": material.pack.array(medians_us / 1e3),
    }
