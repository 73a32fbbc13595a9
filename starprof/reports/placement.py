"""The answer of `starprof placement` in the terminal."""

from __future__ import annotations

import textwrap

from starprof.analysis.placement import NodeEffect, Placement
from starprof.reports.plain import printable, to_encoding
from starprof.reports.terminal import BOLD, GREEN, RED, YELLOW, Terminal

ROWS_AT_MOST = 40
TITLES = {
    "slow-nodes": ("Slow nodes", RED),
    "undecidable": ("Undecidable", YELLOW),
    "none": ("No slow node", GREEN),
    "inconclusive": ("Inconclusive", YELLOW),
}


def render(found: Placement, left: list[str], terminal: Terminal) -> str:
    """The answer first, then what to run next, then every node with its interval."""
    width = max(40, min(terminal.width, 110))
    title, color = TITLES[found.answer]
    lines = [
        terminal.paint(line, BOLD, color)
        for line in textwrap.wrap(printable(f"{title.upper()}: {found.reason}"), width)
    ]
    groups = f" in {found.groups} groups that are comparable among themselves" if found.groups > 1 else ""
    lines.append(f"{found.runs} runs compared{groups}")
    for pair in found.undecidable:
        lines += ["", terminal.paint("Next placements to try", BOLD)]
        for placement in pair.next_placements:
            lines += textwrap.wrap(
                printable(", ".join(placement)), width, initial_indent="  ", subsequent_indent="    "
            )
    lines += ["", *_table(found.nodes, terminal)]
    if left:
        lines += ["", terminal.paint("Left out", BOLD)]
        lines += [f"  {printable(line)[: width - 2]}" for line in left[:ROWS_AT_MOST]]
    return to_encoding("\n".join(lines) + "\n", terminal.encoding)


def _table(nodes: tuple[NodeEffect, ...], terminal: Terminal) -> list[str]:
    names = [printable(node.node)[:40] for node in nodes[:ROWS_AT_MOST]]
    widest = max([4, *map(len, names)])
    rows = [terminal.paint(f"{'node':<{widest}}  {'runs':>5}  {'slowdown':>8}  {'between':>13}  what is known", BOLD)]
    for name, node in zip(names, nodes, strict=False):
        slowdown = "" if node.slowdown is None else f"{node.slowdown:.2f}"
        between = "" if node.low is None or node.high is None else f"{node.low:.2f} - {min(node.high, 999):.2f}"
        rows.append(f"{name:<{widest}}  {node.runs:>5}  {slowdown:>8}  {between:>13}  {node.status}")
    if len(nodes) > ROWS_AT_MOST:
        rows.append(f"... and {len(nodes) - ROWS_AT_MOST} more")
    return rows
