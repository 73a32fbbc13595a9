"""The HTML report: one self-contained file that needs no network, and stays inert whatever a run contains.

The page carries its style sheet, its script, plotly's JavaScript (from the installed plotly package) and its data.
A Content-Security-Policy allows exactly the two scripts, by hash, and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from functools import cache
from importlib import resources
from pathlib import Path

from starprof.errors import StarprofError
from starprof.model.rundata import RunData
from starprof.model.verdict import Verdict
from starprof.reports import words
from starprof.reports.markup import Section, json_for_page, text
from starprof.reports.material import Material
from starprof.reports.pack import squeeze
from starprof.reports.sections import SECTIONS
from starprof.reports.told import size

_NO_SCRIPTS = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def render(run: RunData, verdict: Verdict) -> str:
    """The page for one run; the same input gives the same text.

    Raises:
        StarprofError: plotly's JavaScript is not where the installed plotly package keeps it.
    """
    material = Material(run, verdict)
    sections = [section for make in SECTIONS if (section := make(material)) is not None]
    charts = {section.anchor: section.chart for section in sections if section.chart is not None}
    library, script = _plotly(), _asset("report.js")
    title = f"{verdict.run}: {verdict.verdict}"
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(script, library)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{text(title)} - starprof</title>",
            f"<style>{_asset('report.css')}</style>",
            "</head>",
            "<body>",
            _top(material),
            "<main>",
            *(_section(section) for section in sections),
            "</main>",
            "<footer>Written by starprof. This file is complete: it loads nothing and sends nothing.</footer>",
            f'<script type="application/json" id="starprof-verdict">{json_for_page(verdict.to_json())}</script>',
            f'<script type="text/plain" id="starprof-data">{material.pack.container({"charts": charts})}</script>',
            f'<script type="text/plain" id="starprof-plotly">{_squeezed(library)}</script>',
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        )
    )


def plain_page(title: str, body: str) -> str:
    """A page without charts or scripts.

    Args:
        title: of the window.
        body: escaped HTML.
    """
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_NO_SCRIPTS}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{text(title)} - starprof</title>",
            f"<style>{_asset('report.css')}</style>",
            "</head>",
            "<body>",
            '<div class="top"><span class="brand">starprof</span></div>',
            f"<main>{body}</main>",
            "<footer>Written by starprof. This file loads nothing and sends nothing.</footer>",
            "</body>",
            "</html>",
            "",
        )
    )


def _section(section: Section) -> str:
    heading = f"<h2>{text(section.title)}</h2>" if section.title else ""
    return f'<section id="{section.anchor}">{heading}{section.body}</section>'


def _top(material: Material) -> str:
    """The line above the verdict: which run this is."""
    verdict, run = material.verdict, material.run
    steps = f"steps {verdict.steps[0]:,}-{verdict.steps[1]:,}" if verdict.steps else ""
    rest = "".join(f"<span>{text(part)}</span>" for part in (size(run, verdict), steps) if part)
    note = str(run.info.get("note") or "")
    told = f'<p class="notice">{text(words.sentence(note))}.</p>' if note else ""
    name = f'<span class="run">{text(verdict.run)}</span>'
    return f'<div class="top"><span class="brand">starprof</span>{name}{rest}{told}</div>'


def _policy(*scripts: str) -> str:
    """Nothing from anywhere, but the given scripts, inline styles, and images that plotly draws (heatmap cells)."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _asset(name: str) -> str:
    return (resources.files("starprof.reports") / "page" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    """plotly.js as the installed plotly package ships it (found without importing the package)."""
    found = importlib.util.find_spec("plotly")
    places = found.submodule_search_locations if found else None
    path = Path(next(iter(places or ["plotly"]))) / "package_data" / "plotly.min.js"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StarprofError(
            f"plotly's JavaScript can't be read ({error}); reinstall it: pip install 'plotly>=6'"
        ) from error


@cache
def _squeezed(library: str) -> str:
    return squeeze(library.encode())
