"""Draws results: accuracy over time with a slow rank, and the time to accuracy of every way to synchronise."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import plotly.graph_objects as go
from compute import EMULATED
from design import NATIVE, PLAIN, SWITCHES
from disturb import REAL
from plotly.subplots import make_subplots
from tables import PERSISTENT, Found

sys.path.append(str(Path(__file__).resolve().parents[1]))

from _growth import drawn, shortened

SIZE = {"width": 1000, "height": 440}
CURVES = {
    PLAIN: "#7f7f7f",
    "m-sync": "#1f77b4",
    "m-sync-fold": "#17becf",
    "static-x": "#2ca02c",
    "asgd": "#d62728",
    "local-sgd": "#9467bd",
    "post-local-sgd": "#ff7f0e",
}
"""What is drawn over time, and in which colour."""
POINTS = 120


def draw(records: Sequence[dict[str, Any]], out: Path) -> None:
    """Write the picture."""
    out.write_text(shortened(drawn(figure(records))))
    print(f"Wrote {out}", file=sys.stderr)


def figure(records: Sequence[dict[str, Any]]) -> go.Figure:
    """Accuracy over time on the left; on the right the time to accuracy as a part of native DDP's."""
    found = Found(records)
    chart = make_subplots(rows=1, cols=2, horizontal_spacing=0.16, column_widths=[0.55, 0.45])
    for how, colour in CURVES.items():
        curves = [record["curve"] for record in found.of(PERSISTENT, how).values()]
        if curves:
            at_s, accuracy = middle_of(curves)
            line = {"color": colour, "width": 2}
            chart.add_trace(go.Scatter(x=at_s, y=accuracy, name=how, mode="lines", line=line), row=1, col=1)
    columns, rows, values = ratios(found)
    chart.add_trace(
        go.Heatmap(
            x=columns,
            y=rows,
            z=values,
            zmin=0.2,
            zmax=1.2,
            colorscale="RdYlBu_r",
            texttemplate="%{z:.2f}",
            showscale=False,
        ),
        row=1,
        col=2,
    )
    chart.update_xaxes(title="training, s (one rank of four is 4 times slower)", row=1, col=1)
    chart.update_yaxes(title="accuracy on held-out digits, %", range=[60, 100], row=1, col=1)
    chart.update_xaxes(title="who is slow (time to accuracy, native DDP = 1)", row=1, col=2)
    chart.update_layout(
        template="plotly_white",
        font={"family": "sans-serif", "size": 12},
        margin={"l": 60, "r": 20, "t": 20, "b": 60},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        paper_bgcolor="white",
        **SIZE,
    )
    return chart


def middle_of(curves: Sequence[Sequence[Sequence[float]]]) -> tuple[list[float], list[float]]:
    """Median over jobs of the accuracy at each moment, in percent, up to where the first of them ends."""
    moments = np.linspace(0.0, min(curve[-1][0] for curve in curves), POINTS)
    levels = [np.interp(moments, *np.array(curve).T) for curve in curves]
    return moments.round(2).tolist(), (100 * np.median(levels, axis=0)).round(2).tolist()


def ratios(found: Found) -> tuple[list[str], list[str], list[list[float | None]]]:
    """Columns (who is slow), rows (ways to synchronise) and cells, of four ranks that learn digits."""
    there = {cell[:3] for cell in found.by_cell}
    places = [place for slow in (*EMULATED, *REAL) if slow != "none" and (place := (*PERSISTENT[:2], slow)) in there]
    hows = sorted({cell[3] for cell in found.by_cell if cell[:3] in places} - {PLAIN, NATIVE, SWITCHES}, reverse=True)
    values = [[_ratio(found.pairs((place, how), (place, PLAIN))) for place in places] for how in hows]
    return [place[2] for place in places], hows, values


def _ratio(pairs: Iterable[tuple[dict[str, Any], dict[str, Any]]]) -> float | None:
    known = [a["tta_s"] / b["tta_s"] for a, b in pairs if a["tta_s"] is not None and b["tta_s"] is not None]
    return round(median(known), 3) if known else None
