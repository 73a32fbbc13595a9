"""A page of its own with the results: time to accuracy of every method in every place, and accuracy over time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import plotly.graph_objects as go
from blocks import Block, Record, blocks_of, pooled
from plotly.subplots import make_subplots

SHOWN = ("ssgd", "asgd", "sync-switch", "lb-bsp", "lgc", "zeno++", "m-sync 7", "star")
PLACE = ("one 4x", "ps")
"""Of which accuracy is drawn over time."""


def draw(records: Sequence[Record], out: Path) -> None:
    """Write it."""
    blocks = pooled(blocks_of(records))
    chart = make_subplots(
        rows=2,
        cols=1,
        row_heights=[0.7, 0.3],
        subplot_titles=(
            "Time to accuracy, as a part of SSGD's (mean over seeds)",
            f"Accuracy over time: {', '.join(PLACE)}",
        ),
    )
    chart.add_trace(_heat(blocks), row=1, col=1)
    for curve in _curves(blocks):
        chart.add_trace(curve, row=2, col=1)
    chart.update_layout(height=1300, template="plotly_white", title="Does STAR hold?")
    chart.write_html(out, include_plotlyjs=True)  # it loads nothing from elsewhere, so it has 5 MB
    print(f"Wrote {out}", file=sys.stderr)


def _heat(blocks: Sequence[Block]) -> go.Heatmap:
    places = sorted({(b.task, b.scenario, b.exchange) for b in blocks})
    methods = list(dict.fromkeys(name for b in blocks for name in b.by_method))
    values = [
        [
            median(found)
            if (
                found := [
                    b.least_s(m) / b.least_s("ssgd")
                    for b in blocks
                    if (b.task, b.scenario, b.exchange) == place and m in b.by_method
                ]
            )
            else None
            for place in places
        ]
        for m in methods
    ]
    return go.Heatmap(
        x=[", ".join(place) for place in places],
        y=methods,
        z=values,
        zmin=0.2,
        zmax=1.8,
        zmid=1.0,
        colorscale="RdBu_r",
        text=[["" if v is None else f"{v:.2f}" for v in row] for row in values],
        texttemplate="%{text}",
        colorbar={"title": "of SSGD's", "len": 0.6, "y": 0.7},
    )


def _curves(blocks: Sequence[Block]) -> list[go.Scatter]:
    first = next((b for b in blocks if (b.scenario, b.exchange) == PLACE), None)
    if first is None:
        return []
    return [
        go.Scatter(x=[at for at, _ in r["curve"]], y=[a for _, a in r["curve"]], name=name, mode="lines")
        for name in SHOWN
        if (r := first.by_method.get(name))
    ]
