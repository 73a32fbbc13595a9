"""The live view as text: what a server says of a job, fitted to a terminal of any width."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starprof.reports.plain import printable, to_encoding
from starprof.reports.terminal import BOLD, DIM, GREEN, RED, YELLOW, Terminal

MIN_WIDTH = 20
RANKS_SHOWN = 12
LOG_SHOWN = 6
_STATE_COLORS = {"confirmed": RED, "provisional": YELLOW, "silent": YELLOW, "ok": GREEN}
_VERDICT_COLORS = {"none": GREEN, "straggler": RED, "hang": RED}


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of the rank table; those of the highest `rank` go first where the terminal is narrow."""

    title: str
    width: int
    drop: int
    right: bool = True


_COLUMNS = (
    _Column("rank", 6, 0),
    _Column("host", 14, 3, right=False),
    _Column("state", 11, 1, right=False),
    _Column("lost", 8, 2),
    _Column("slower", 7, 4),
    _Column("own", 9, 5),
    _Column("waits", 9, 6),
    _Column("cause", 16, 2, right=False),
)


def render(job: Mapping[str, Any], terminal: Terminal, *, height: int | None = None) -> str:
    """A job as `serve.view` describes it, one trailing newline.

    Args:
        job: see there.
        terminal: where it goes; any width.
        height: rows of the terminal, None where there is no limit.
    """
    width = max(MIN_WIDTH, terminal.width)
    shown = RANKS_SHOWN if height is None else max(1, min(200, height - 14))
    lines = [
        _line(_title(job), width, terminal, BOLD),
        *_head(job, width, terminal),
        *_ranks(job["ranks"][:shown], int(job["world_size"]), width, terminal),
        *_silent(job["nodes"], width, terminal),
        *_log(job, width, terminal),
    ]
    return to_encoding("\n".join(lines) + "\n", terminal.encoding)


def _title(job: Mapping[str, Any]) -> str:
    attempt = f", start {job['attempt'] + 1}" if job["attempt"] else ""
    ended = ", ended" if job.get("ended_unix_ns") else ""
    return f"{job['job']}: {job['world_size']} ranks on {len(job['nodes'])} nodes{attempt}{ended}"


def _head(job: Mapping[str, Any], width: int, terminal: Terminal) -> Iterator[str]:
    verdict = job["verdict"]
    kind = verdict["verdict"] if verdict else "nothing to compare yet"
    reason = f": {verdict['reason']}" if verdict and verdict["reason"] else ""
    yield from _labelled("verdict", kind + reason, width, terminal, _VERDICT_COLORS.get(kind, YELLOW))
    if job["step"] is not None:
        rate = "" if job["steps_per_s"] is None else f", {job['steps_per_s']:.4g} steps/s"
        age = "" if job["judged_age_s"] is None else f", seen {job['judged_age_s']:.1f} s ago"
        yield from _labelled("step", f"{job['step']}, {_ms(job['step_ms'])} a step{rate}{age}", width, terminal)
    yield from _labelled("mode", str(job["mode"]), width, terminal)
    if job["lost_rows"]:
        yield from _labelled("lost", f"{job['lost_rows']} records were dropped", width, terminal, YELLOW)


def _ranks(ranks: Sequence[Mapping[str, Any]], world: int, width: int, terminal: Terminal) -> Iterator[str]:
    if not ranks:
        return
    columns = _fitting(width)
    yield ""
    yield _line(" ".join(_cell(column.title, column) for column in columns), width, terminal, DIM)
    for rank in ranks:
        cells = {
            "rank": str(rank["rank"]),
            "host": rank["host"] or f"node {rank['node']}",
            "state": rank["state"],
            "lost": f"{rank['lost_s']:.1f} s" if rank["lost_s"] else "-",
            "slower": f"{rank['slowdown']:.2f}x" if rank["slowdown"] else "-",
            "own": _ms(rank["own_ms"]),
            "waits": _ms(rank["blocked_ms"]),
            "cause": " ".join(str(part) for part in (rank["cause"], rank["why"]) if part),
        }
        text = " ".join(_cell(cells[column.title], column) for column in columns[:-1])
        last = columns[-1]
        # The last column takes whatever room is left.
        end = printable(cells[last.title]) if last.title == "cause" else _cell(cells[last.title], last)
        codes = () if rank["state"] == "ok" else (_STATE_COLORS[rank["state"]],)
        yield _line(f"{text} {end}", width, terminal, *codes)
    if world > len(ranks):
        yield _line(f"... and {world - len(ranks)} more ranks", width, terminal, DIM)


def _fitting(width: int) -> list[_Column]:
    """The columns that a width has room for."""
    columns = list(_COLUMNS)
    while len(columns) > 2 and sum(column.width + 1 for column in columns) - 1 > width:
        columns.remove(max(columns, key=lambda column: column.drop))
    return columns


def _silent(nodes: Sequence[Mapping[str, Any]], width: int, terminal: Terminal) -> Iterator[str]:
    for node in nodes:
        age_s = node["heard_age_s"]
        if age_s is not None and age_s > 5.0:
            text = f"node {node['node']} ({node['host']}) has been silent for {age_s:.0f} s"
            yield _line(text, width, terminal, YELLOW)


def _log(job: Mapping[str, Any], width: int, terminal: Terminal) -> Iterator[str]:
    switches = [
        f"mode {s['from']} -> {s['to']}, asked for by {s['asked_by']}" + (f" ({s['reason']})" if s["reason"] else "")
        for s in job["switches"]
    ]
    for title, content in (("switches", switches), ("advisor", _advisor(job["advisor"]))):
        if content:
            yield ""
            yield _line(title, width, terminal, DIM)
            yield from (_line(f"  {text}", width, terminal) for text in content[-LOG_SHOWN:])


def _advisor(state: Mapping[str, Any] | None) -> list[str]:
    """What the advisor says of itself: what it is at, and its newest notes."""
    if not state:
        return []
    told = [f"{state.get('authority', '')}: {state.get('phase', '')}"]
    told += [f"{name} {state[name]}" for name in ("predicted", "measured", "standing_by") if state.get(name)]
    notes = state.get("notes")
    for note in notes if isinstance(notes, list) else ():
        if isinstance(note, dict):
            mode = f" {note['mode']}" if note.get("mode") else ""
            told.append(f"{note.get('at_s')} s ago, {note.get('stage')}{mode}: {note.get('reason')}")
    return told


def _labelled(label: str, text: str, width: int, terminal: Terminal, *codes: int) -> Iterator[str]:
    """A label and a text that goes on below itself where the line ends."""
    indent = 9 if width >= 40 else 0
    if not indent:
        yield _line(label, width, terminal, DIM)
    rest, first = printable(text), True
    while rest or first:
        piece, rest = _split(rest, width - indent)
        yield f"{label if first else '':<{indent}}"[:indent] + (terminal.paint(piece, *codes) if codes else piece)
        first = False


def _line(text: str, width: int, terminal: Terminal, *codes: int) -> str:
    piece, _ = _cut(printable(text), width)
    piece = piece.rstrip()
    return terminal.paint(piece, *codes) if codes and piece else piece


def _cell(text: str, column: _Column) -> str:
    piece, used = _cut(printable(text), column.width)
    room = " " * (column.width - used)
    return room + piece if column.right else piece + room


def _cut(text: str, width: int) -> tuple[str, int]:
    """As much of a text as fits, and how many columns that takes."""
    used = 0
    for place, character in enumerate(text):
        wide = columns_of(character)
        if used + wide > width:
            return text[:place], used
        used += wide
    return text, used


def _split(text: str, width: int) -> tuple[str, str]:
    """A line, cut between words where it has any, and the rest."""
    piece, _ = _cut(text, width)
    if len(piece) == len(text):
        return text, ""
    blank = piece.rfind(" ")
    if blank > 0:
        return piece[:blank], text[blank + 1 :]
    return (piece, text[len(piece) :]) if piece else (text[:1], text[1:])


def columns_of(character: str) -> int:
    """Columns of a terminal that a character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e3:.2f} s" if value >= 1e3 else f"{value:.3g} ms"
