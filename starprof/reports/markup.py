"""HTML in small pieces; every text that comes from a run passes `text` and is inert afterwards."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starprof.reports.plain import printable


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the report: anchor, heading, body (HTML), and what its chart is drawn from, if it has one."""

    anchor: str
    title: str
    body: str
    chart: Mapping[str, Any] | None = None


def text(content: object) -> str:
    """Escape for element content and quoted attributes; hidden control and direction characters become visible."""
    return html.escape(printable(str(content)), quote=True)


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numeric: Iterable[int] = (),
    marked: Iterable[int] = (),
    caption: str = "",
) -> str:
    """A table of escaped cells.

    Args:
        headers: texts of the head row.
        rows: cells of every row.
        numeric: positions of right-aligned columns.
        marked: positions of rows that stand out.
        caption: what the table shows, for readers and screen readers.
    """
    right, bold = set(numeric), set(marked)

    def cells(tag: str, values: Sequence[object]) -> str:
        attribute = dict.fromkeys(right, ' class="num"')
        return "".join(f"<{tag}{attribute.get(at, '')}>{text(value)}</{tag}>" for at, value in enumerate(values))

    head = f"<caption>{text(caption)}</caption>" if caption else ""
    starts = dict.fromkeys(bold, '<tr class="culprit">')
    body = "".join(f"{starts.get(at, '<tr>')}{cells('td', row)}</tr>" for at, row in enumerate(rows))
    return (
        f'<div class="scroll"><table>{head}<thead><tr>{cells("th", headers)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """A definition list of escaped pairs; pairs without a value are left out."""
    told = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in pairs if value not in (None, "")
    )
    return f'<dl class="facts">{told}</dl>'


def chart(anchor: str, description: str) -> str:
    """The place a chart is drawn into; without JavaScript it says what is missing."""
    return (
        f'<div class="chart" id="chart-{anchor}" role="img" aria-label="{text(description)}">'
        f'<p class="nojs">This chart is drawn by JavaScript.</p></div>'
    )


def json_for_page(document: object) -> str:
    """JSON that can stand inside a `<script>` element: pure ASCII, no `<`, `>` or `&` in it."""
    plain = json.dumps(document, indent=1)
    for character in "<>&":
        plain = plain.replace(character, f"\\u{ord(character):04x}")
    return plain
