"""The terminal summary: verdict first, then findings, ranks, what is missing, and what recording cost."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from starprof.analysis.binding_table import UNBOUND, binding_table, placing
from starprof.model.rundata import RunData
from starprof.model.verdict import Finding, Verdict
from starprof.reports import facts, words
from starprof.reports.plain import printable, to_encoding
from starprof.reports.synchronised import synchronised, told_in_short
from starprof.reports.told import Told, size, told

RANKS_AT_MOST = 24  # rows of the rank table that fit a screen
MIN_WIDTH, MAX_WIDTH = 40, 110
LABEL_WIDTH = 10
PLACES_AT_MOST = 8


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where the summary goes: columns, whether escapes for colour may be used, and the encoding."""

    width: int = 80
    color: bool = False
    encoding: str = "utf-8"

    def paint(self, text: str, *codes: int) -> str:
        """Wrap in SGR codes, when this terminal takes them."""
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if self.color else text


BOLD, DIM, RED, GREEN, YELLOW = 1, 2, 31, 32, 33
VERDICT_COLORS = {"none": GREEN, "straggler": RED, "hang": RED}


def render(run: RunData, verdict: Verdict, terminal: Terminal) -> str:
    """The whole summary as text, one trailing newline."""
    out = _Lines(terminal)
    _headline(out, run, verdict)
    for number, finding in enumerate(verdict.findings, 1):
        _finding(out, number, finding, facts.total_seconds(run, verdict), told(run))
    _ranks(out, run, verdict)
    _binding(out, run)
    _missing(out, run, verdict)
    _overhead(out, run, verdict)
    _trouble(out, run)
    return to_encoding("\n".join(out.lines) + "\n", terminal.encoding)


class _Lines:
    """Collects lines; every text passes `printable`, so names of hosts or files can't drive the terminal."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.width = max(MIN_WIDTH, min(terminal.width, MAX_WIDTH))
        self.lines: list[str] = []

    def text(self, content: str, *codes: int, indent: int = 0, label: str = "") -> None:
        first = " " * indent + (f"{label:<{LABEL_WIDTH}}" if label else "")
        rest = " " * (indent + (LABEL_WIDTH if label else 0))
        for line in textwrap.wrap(
            printable(content), self.width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
        ):
            self.lines.append(self.terminal.paint(line, *codes) if codes else line)

    def title(self, content: str, *codes: int) -> None:
        self.lines.append("")
        self.text(content, BOLD, *codes)

    def row(self, content: str, *codes: int) -> None:
        line = printable(content)[: self.width].rstrip()
        self.lines.append(self.terminal.paint(line, *codes) if codes else line)


def _headline(out: _Lines, run: RunData, verdict: Verdict) -> None:
    color = VERDICT_COLORS.get(verdict.verdict, YELLOW)
    total = facts.total_seconds(run, verdict)
    may = told(run)
    sentence = words.headline(
        verdict, facts.main_finding(verdict), total, waits=may.waits, course=may.course, links=may.links
    ).sentence
    out.text(f"{words.VERDICT_TITLES[verdict.verdict].upper()}: {sentence}", BOLD, color)
    if verdict.reason and verdict.verdict != "straggler" and verdict.reason not in sentence:
        out.text(verdict.reason)
    if verdict.cost.money is not None:
        out.text(f"In money: {words.money(verdict.cost)}")
    steps = f", steps {verdict.steps[0]}-{verdict.steps[1]}" if verdict.steps else ""
    spent = f", {words.seconds(total)} in steps" if total == total else ""
    out.text(f"{verdict.run}: {size(run, verdict)}{steps}{spent}", DIM)
    sync = synchronised(run)
    if sync is not None:
        out.text(f"Synchronisation: {told_in_short(sync)}")
    if run.info.get("note"):
        out.text(f"Note: {run.info['note']}", YELLOW)


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else noun + "s"


def _finding(out: _Lines, number: int, finding: Finding, total: float, may: Told) -> None:
    blamed = words.who(finding) if finding.ranks or finding.nodes else ""
    when = f"{finding.kind if may.course else ''} {words.since(finding)}".strip()
    about_whom = ", ".join(part for part in (blamed, when) if part)
    out.title(f"{number}. {finding.cause}" + (f": {about_whom}" if about_whom else ""))
    about = f"{words.CAUSE_TITLES.get(finding.cause, finding.cause)}; "
    about += f"confidence {words.percent(finding.confidence)} ({words.certainty(finding.confidence)})"
    if finding.cause_share > 0:
        about += f", explains {words.percent(finding.cause_share)} of the slowdown"
    out.text(about, indent=3, label="what")
    for position, evidence in enumerate(finding.evidence):
        out.text(evidence, indent=3, label="evidence" if not position else " ")
    parts = (
        ("action", finding.action),
        ("gain", words.gain(finding, total, waits=may.waits)),
        ("verify", finding.verify),
        ("next", finding.next),
    )
    for label, text in parts:
        if text:
            out.text(text, indent=3, label=label)


def _ranks(out: _Lines, run: RunData, verdict: Verdict) -> None:
    if not run.ranks or not len(run.steps.steps) or run.info.get("timing") == "job":
        return
    finding = facts.main_finding(verdict)
    inside = facts.window(run, finding)
    picked = run.steps.steps[inside]
    medians = facts.rank_medians(run, inside)
    culprits = set(facts.culprit_rows(run, verdict))
    rows, left_out = facts.telling_rows(run, verdict, RANKS_AT_MOST)
    out.title(f"Ranks (medians of steps {picked[0]}-{picked[-1]})" if len(picked) > 1 else "Ranks (one value each)")
    blocked = "blocked" if run.sync_steps is None else "waited"  # in rounds for a release, not in a collective
    out.row(f"{'rank':>6} {'node':>5} {'step':>10} {'own':>10} {'arrival':>10} {blocked:>10}", DIM)
    places = {rank.node: f"n{rank.node}" if facts.node_count(run) else words.UNKNOWN for rank in run.ranks}
    for row in rows:
        rank = run.ranks[row]
        values = (medians.step[row], medians.own[row], medians.arrival[row], medians.blocked[row])
        cells = " ".join(f"{facts.duration(run, value):>10}" for value in values)
        mark = " <- culprit" if row in culprits else ""
        out.row(f"{rank.rank:>6} {places[rank.node]:>5} {cells}{mark}", *([BOLD, RED] if row in culprits else []))
    if left_out:
        out.row(f"       … and {left_out} more ranks (fastest, median and slowest own time are shown)", DIM)


def _binding(out: _Lines, run: RunData) -> None:
    """Ranks that do not run beside their GPUs; the whole table is in the HTML report."""
    places = binding_table(run)
    if not any(place.faults for place in places):
        return
    out.title("Where ranks run")
    out.text(f"{placing(places)} The HTML report has the table.", indent=3)
    wrong = [place for place in places if place.faults and place.faults != (UNBOUND,)]
    for place in wrong[:PLACES_AT_MOST]:
        parts = (
            f"GPU {place.gpu or '?'} on NUMA node {'?' if place.gpu_numa is None else place.gpu_numa}",
            f"cores {place.cpus or '?'} on {', '.join(map(str, place.cpu_numa)) or '?'}",
            " or ".join(place.nic),
        )
        ranks = "rank" if len(place.ranks) == 1 else "ranks"
        out.text(f"{ranks} {place.who}: {', '.join(p for p in parts if p)}: {'; '.join(place.faults)}", indent=3)
    if len(wrong) > PLACES_AT_MOST:
        out.text(f"… and {len(wrong) - PLACES_AT_MOST} more", indent=3)
    proposed = [place for place in wrong or places if place.command]
    if proposed:
        first = proposed[0]
        out.text(f"such as, for rank {first.ranks[0]}: {first.command}", indent=3)


def _missing(out: _Lines, run: RunData, verdict: Verdict) -> None:
    items = facts.missing(run, verdict)
    if not items:
        return
    out.title("Not collected")
    for item in items:
        place = f" ({item.place})" if item.place else ""
        out.text(f"{item.source}{place}: {item.reason}", indent=3)


def _overhead(out: _Lines, run: RunData, verdict: Verdict) -> None:
    if facts.imported_from(run):
        return
    out.title("What recording cost")
    spent, step = verdict.overhead.step_us, facts.step_us(run)
    share = f" ({words.percent(spent / step)} of a step)" if spent is not None and step > 0 else ""
    out.text("hook: not measured" if spent is None else f"hook: {spent:.1f} µs a step{share}", indent=3)
    out.text("; ".join(_agents(run, verdict)), indent=3)


def _agents(run: RunData, verdict: Verdict) -> Iterable[str]:
    costs = facts.agent_costs(run)
    if not costs:
        used = verdict.overhead.agent_cpu
        yield "agent: not measured" if used is None else f"agent: {words.percent(used)} of a core"
    for cost in costs[:RANKS_AT_MOST]:
        yield f"agent on node {cost.node}: {words.percent(cost.cpu_share)} of a core, {words.mebibytes(cost.rss_bytes)}"


def _trouble(out: _Lines, run: RunData) -> None:
    found = facts.troubles(run)
    if not found:
        return
    out.title("While recording", YELLOW)
    for item in found[:RANKS_AT_MOST]:
        often = f" ({item.count}x)" if item.count > 1 else ""
        out.text(f"{item.kind} on {item.place}{often}: {item.detail}", indent=3)
    if len(found) > RANKS_AT_MOST:
        out.text(f"… and {len(found) - RANKS_AT_MOST} more", indent=3)
