"""What was not collected and why, and what went wrong while recording."""

from __future__ import annotations

from starprof.reports import facts
from starprof.reports.markup import Section, table
from starprof.reports.material import Material

ROWS_AT_MOST = 200


def render(material: Material) -> Section:
    """Sources that are missing, gaps, errors and notes of the hook; says so when there is nothing to tell."""
    missing = facts.missing(material.run, material.verdict)
    troubles = facts.troubles(material.run)
    body = ""
    if missing:
        rows = [(item.source, item.place, item.reason) for item in missing[:ROWS_AT_MOST]]
        body += table(("source", "where", "why"), rows)
    if troubles:
        told = [(item.kind, item.place, item.count, item.detail) for item in troubles[:ROWS_AT_MOST]]
        body += "<h3>While recording</h3>" + table(("what", "where", "times", "detail"), told, numeric=(2,))
    cut = max(len(missing) - ROWS_AT_MOST, 0) + max(len(troubles) - ROWS_AT_MOST, 0)
    if cut:
        body += f'<p class="note">{cut} more are in the run file: tables gap, unavailable and event.</p>'
    return Section(
        "missing",
        "What was not collected",
        body or "<p>Everything that was asked for was collected, without a gap.</p>",
    )
