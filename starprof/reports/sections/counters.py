"""Time lines: the culprit's counters against the band of its peers, with the time of the finding shaded."""

from __future__ import annotations

from typing import Any

import numpy as np

from starprof.reports import facts, words
from starprof.reports.markup import Section, chart, text
from starprof.reports.material import Material
from starprof.reports.metrics import METRICS, Metric
from starprof.reports.series import Clock, Floats, Series, clock

LINES_AT_MOST = 3  # culprits drawn one by one
BAND = (10.0, 90.0)  # percentiles of the peers; with few peers this is their whole range
FEW_PEERS = 8
OPEN_WITHOUT_FINDING = 4


def render(material: Material) -> Section | None:
    """Small multiples, those that tell about the cause first and the others folded; None without samples."""
    times = clock(material.run)
    origin, end = _span_ns(material, times)
    drawn = [(metric, series) for metric in METRICS if (series := metric.series(material.run, times)) is not None]
    if not drawn:
        return None
    idle = [metric.title for metric, series in drawn if _idle(series)]
    drawn = [(metric, series) for metric, series in drawn if not _idle(series)]
    charts = [_spec(material, metric, series, origin) for metric, series in drawn]
    opened = [at for at, (metric, _) in enumerate(drawn) if _tells(material, metric)]
    opened = opened or list(range(min(OPEN_WITHOUT_FINDING, len(drawn))))
    spec = {
        "kind": "timelines",
        "charts": charts,
        "window": _window(material, times, origin),
        "end": (end - origin) / 1e9,
    }
    return Section("counters", "Counters over time", _body(charts, opened, _notes(material, times, idle)), spec)


def _tells(material: Material, metric: Metric) -> bool:
    found = {finding.cause for finding in material.verdict.findings}
    return bool(metric.causes & found) or (metric.always and bool(found))


def _span_ns(material: Material, times: Clock) -> tuple[float, float]:
    """Begin of the first and end of the last step on node 0's clock."""
    starts, durations = material.run.steps.start_mono_ns, facts.column(material.run, "dur_us")
    recorded = (starts > 0) & np.isfinite(durations)
    if not recorded.any():
        return 0.0, 0.0
    shift = np.array([times.shift_ns.get(rank.node, 0) for rank in material.run.ranks])[:, None]
    begins = np.where(recorded, starts + shift, np.inf)
    ends = np.where(recorded, starts + shift + 1e3 * np.nan_to_num(durations), -np.inf)
    return float(begins.min()), float(ends.max())


def _window(material: Material, times: Clock, origin: float) -> list[float] | None:
    """Begin and end of the finding in seconds of the run, as its first rank saw it."""
    if material.finding is None or not material.windowed:
        return None
    row = material.culprits[0] if material.culprits else 0
    shift = times.shift_ns.get(material.run.ranks[row].node, 0)
    starts = material.run.steps.start_mono_ns[row]
    inside = np.flatnonzero(material.window & (starts > 0))
    if not inside.size:
        return None
    duration = facts.column(material.run, "dur_us")[row, inside[-1]]
    last = starts[inside[-1]] + shift + 1e3 * float(np.nan_to_num(duration))
    return [round((starts[inside[0]] + shift - origin) / 1e9, 3), round((last - origin) / 1e9, 3)]


def _spec(material: Material, metric: Metric, series: Series, origin: float) -> dict[str, Any]:
    run = material.run
    ranks = [run.ranks[row] for row in material.culprits]
    named = list(dict.fromkeys(rank.rank if metric.per == "rank" else rank.node for rank in ranks))
    lines = [entity for entity in named if entity in series.values][:LINES_AT_MOST]
    peers = [values * metric.scale for entity, values in series.values.items() if entity not in named]
    middle = (series.edges_ns[:-1] + series.edges_ns[1:]) / 2
    spec: dict[str, Any] = {
        "key": metric.key,
        "title": metric.title,
        "unit": metric.unit,
        "zero": metric.zero,
        "x": material.pack.array((middle - origin) / 1e9),
        "lines": [
            {"name": f"{metric.per} {entity}", "y": material.pack.array(series.values[entity] * metric.scale)}
            for entity in lines
        ],
        "peersName": _peers_name(metric, len(peers), bool(named)),
    }
    if peers:
        low, mid, high = _band(np.vstack(peers))
        spec |= {
            "mid": material.pack.array(mid),
            "low": material.pack.array(low),
            "high": material.pack.array(high),
        }
    return spec


def _peers_name(metric: Metric, count: int, against: bool) -> str:
    group = ("other " if against else "") + metric.per + ("s" if count > 1 else "")
    return f"{count} {group}" if count > 1 or against else f"the {group}"


def _band(peers: Floats) -> tuple[Floats, Floats, Floats]:
    low, high = (0.0, 100.0) if len(peers) <= FEW_PEERS else BAND
    with facts.quiet():
        bottom, middle, top = np.nanpercentile(peers, (low, 50.0, high), axis=0)
    return bottom, middle, top


def _idle(series: Series) -> bool:
    """Nothing but zeros: a sentence tells that better than a chart."""
    return not any(np.nan_to_num(values).any() for values in series.values.values())


def _notes(material: Material, times: Clock, idle: list[str]) -> list[str]:
    notes = ["Strong line: the culprit. Thin line and band: median and spread of its peers."]
    if not material.culprits:
        notes = ["Line and band: median and spread over all ranks or nodes."]
    if material.finding is not None and material.windowed:
        notes.append(f"Shaded: {material.window_words}.")
    if times.aligned:
        nodes = words.some(tuple(f"n{node}" for node in times.aligned))
        notes.append(f"Not calibrated against node 0, laid on its first step instead: clock of {nodes}.")
    if any(name.endswith("_rollup") and len(frame) for name, frame in material.run.samples.items()):
        notes.append("Older samples were rolled up to save space: only what is kept at full rate is drawn.")
    if idle:
        notes.append(f"Zero throughout: {', '.join(idle)}.")
    return notes


def _body(charts: list[dict[str, Any]], opened: list[int], notes: list[str]) -> str:
    """Charts that tell about the cause, and the others folded."""

    def figures(which: list[int]) -> str:
        return "".join(
            f'<figure class="small"><figcaption>{text(charts[at]["title"])} <span class="unit">'
            f"{text(charts[at]['unit'])}</span>{_legend(charts[at])}</figcaption>"
            f"{chart('counter-' + charts[at]['key'], charts[at]['title'] + ' over time')}</figure>"
            for at in which
        )

    folded = [at for at in range(len(charts)) if at not in opened]
    more = (
        f'<details class="js"><summary>{len(folded)} more counter{"s" if len(folded) > 1 else ""}</summary>'
        f'<div class="multiples">{figures(folded)}</div></details>'
        if folded
        else ""
    )
    return f'<p class="note">{text(" ".join(notes))}</p><div class="multiples">{figures(opened)}</div>{more}'


def _legend(spec: dict[str, Any]) -> str:
    """Names of the lines in their colours; beside the title, where they can't cover the lines."""
    keys = [(f"line-{at}", line["name"]) for at, line in enumerate(spec["lines"])]
    if "mid" in spec:
        keys.append(("peers", spec["peersName"]))
    return "".join(f'<span class="key {name}">{text(label)}</span>' for name, label in keys)
