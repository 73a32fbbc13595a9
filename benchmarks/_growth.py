"""Draws how time and memory of the diagnosis grow with the length of a run, from the lines that scale.py wrote.

    python benchmarks/scale.py --sizes 1e5 3e5 1e6 3e6 1e7 3e7 1e8 --plot docs/growth.svg

or, from lines that were kept with `--out`: python benchmarks/_growth.py LINES --out docs/growth.svg

plotly's own JavaScript makes the picture, in the Chromium that the tests drive; nothing is fetched.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
import tempfile
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

sys.path.append(str(Path(__file__).parents[1] / "tests" / "reports"))

from browser import chromium

SIZE = {"width": 900, "height": 400}
SERIES = (
    ("arrays", "scan_cpu_s", "scan_peak_mb", "scan and its verdict, from arrays", "#1f77b4"),
    ("arrays", "whole_cpu_s", "peak_mb", "whole diagnosis, from arrays", "#2ca02c"),
    ("run file", "whole_cpu_s", "peak_mb", "whole diagnosis, from a run file", "#d62728"),
)
PAGE = """<!DOCTYPE html><meta charset="utf-8"><div id="chart"></div><script src="{library}"></script><script>
Plotly.newPlot("chart", {figure}).then(() => {{ document.documentElement.dataset.drawn = "yes"; }});
</script>"""

Line = Mapping[str, Any]


def figure(lines: Sequence[Line]) -> go.Figure:
    """Time on the left, peak of resident memory on the right."""
    chart = make_subplots(rows=1, cols=2, horizontal_spacing=0.1)
    for source, time, memory, name, colour in SERIES:
        told = sorted((line for line in lines if line["from"] == source), key=lambda line: line["rank_steps"])
        sizes = [line["rank_steps"] for line in told]
        for column, field in ((1, time), (2, memory)):
            trace = go.Scatter(
                x=sizes,
                y=[line[field] for line in told],
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                mode="lines+markers",
                line={"color": colour},
            )
            chart.add_trace(trace, row=1, col=column)
    chart.update_xaxes(type="log", title="rank-steps", dtick=1, exponentformat="power")
    chart.update_yaxes(type="log", title="CPU time, s", row=1, col=1, dtick=1)
    chart.update_yaxes(title="peak of resident memory, MB", rangemode="tozero", row=1, col=2)
    chart.update_layout(
        template="plotly_white",
        font={"family": "sans-serif", "size": 12},
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        paper_bgcolor="white",
        **SIZE,
    )
    return chart


def drawn(chart: go.Figure) -> str:
    """The figure as SVG."""
    found = importlib.util.find_spec("plotly")
    package = Path(next(iter(found.submodule_search_locations or []))) if found else Path()
    library = (package / "package_data" / "plotly.min.js").as_uri()
    with tempfile.TemporaryDirectory() as place:
        page = Path(place) / "growth.html"
        page.write_text(PAGE.format(library=library, figure=chart.to_json()))
        with chromium(Path(place) / "profile") as browser:
            browser.open(page)
            made = browser.js_async("return await Plotly.toImage('chart', a[0]);", {"format": "svg", **SIZE})
    return urllib.parse.unquote(made.partition(",")[2])


def shortened(svg: str) -> str:
    """The same picture with coordinates to a hundredth."""
    return re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", svg) + "\n"


def draw(lines: Sequence[Line], out: Path) -> None:
    """Write the picture."""
    out.write_text(shortened(drawn(figure(lines))))
    print(f"Wrote {out}")


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "growth.svg")
    options = parser.parse_args()
    draw([json.loads(line) for line in options.lines.read_text().splitlines()], options.out)


if __name__ == "__main__":
    main()
