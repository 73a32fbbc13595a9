"""Several jobs at a glance: a line for each in the terminal, a table of links on a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from starprof.model.jobs import JobVerdict
from starprof.model.rundata import RunData
from starprof.reports import facts, html, words
from starprof.reports.markup import table, text
from starprof.reports.plain import printable, to_encoding
from starprof.reports.terminal import BOLD, VERDICT_COLORS, YELLOW, Terminal

NAME_WIDTH = 34
LEFT_AT_MOST, SHOWN = 6, 2
FULL_AT_MOST = 12


def lines(jobs: Sequence[JobVerdict], not_read: Mapping[str, str], terminal: Terminal) -> str:
    """One line a job: name, verdict, who, why, cost; then what was not read."""
    width = max(40, min(terminal.width, 160))
    names = [_cut(printable(job.name), NAME_WIDTH) for job in jobs]
    cells = [(name, _kind(job), _cost(job)) for name, job in zip(names, jobs, strict=True)]
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(3)]
    room = max(width - sum(widths) - 6, 20)
    read = sum(job.verdict is not None for job in jobs)
    told = [terminal.paint(f"{len(jobs)} jobs" + (f", {read} can be read" if read < len(jobs) else ""), BOLD)]
    for (name, kind, cost), job in zip(cells, jobs, strict=True):
        color = YELLOW if job.verdict is None else VERDICT_COLORS.get(job.verdict.verdict, YELLOW)
        start = f"{name:<{widths[0]}}  {terminal.paint(f'{kind:<{widths[1]}}', color)}  {cost:>{widths[2]}}"
        told.append(f"{start}  {_cut(printable(_about(job)), room)}".rstrip())
    told += _left(not_read, width)
    return to_encoding("\n".join(told) + "\n", terminal.encoding)


def heading(name: str, number: int, count: int, terminal: Terminal) -> str:
    """The line that opens one job's findings."""
    rule = "-" * min(max(terminal.width, 40), 110)
    title = terminal.paint(printable(f"{name} ({number} of {count})"), BOLD)
    return to_encoding(f"\n{rule}\n{title}\n", terminal.encoding)


def worth_showing(jobs: Sequence[JobVerdict]) -> frozenset[int]:
    """Positions of the jobs to show in full: all of a few; of many those that lost most."""
    readable = [i for i, job in enumerate(jobs) if job.verdict is not None]
    if len(jobs) <= FULL_AT_MOST:
        return frozenset(readable)
    told = {i: verdict for i in readable if (verdict := jobs[i].verdict) is not None and verdict.findings}
    order = sorted(told, key=lambda i: (told[i].verdict in ("none", "inconclusive"), -told[i].cost.share, i))
    return frozenset(order[:FULL_AT_MOST])


def closing(jobs: Sequence[JobVerdict], in_full: frozenset[int]) -> str:
    """What to do for those that are not shown in full; empty when all are."""
    rest = sum(job.verdict is not None for job in jobs) - len(in_full)
    if rest <= 0:
        return ""
    return f"\n{rest} more jobs stand in the overview only: name one by itself, or use --html or --json.\n"


def page(jobs: Sequence[JobVerdict], files: Sequence[str], not_read: Mapping[str, str]) -> str:
    """A self-contained page with a row a job, which leads to the job's own page.

    Args:
        jobs: all of them.
        files: name of each job's page in the same folder; "" where there is none.
        not_read: files that belong to no job.
    """
    body = table(("job", "verdict", "cost", "what"), [(j.name, _kind(j), _cost(j), _about(j)) for j in jobs])
    for job, file in zip(jobs, files, strict=True):
        cell = f"<td>{text(job.name)}</td>"
        if file:
            body = body.replace(cell, f'<td><a href="{quote(file)}">{text(job.name)}</a></td>', 1)
    left = "".join(f'<p class="note">{text(line)}</p>' for line in _left(not_read, 200))
    return html.plain_page(f"{len(jobs)} jobs", f"<section><h1>{len(jobs)} jobs</h1></section>{body}{left}")


def _kind(job: JobVerdict) -> str:
    return "Can't be read" if job.verdict is None else words.VERDICT_TITLES[job.verdict.verdict]


def _cost(job: JobVerdict) -> str:
    """Share of the time, else the time itself; empty where nothing was lost or it is not known."""
    if job.verdict is None or job.verdict.cost.seconds <= 0:
        return ""
    share = job.verdict.cost.share
    return words.percent(share) if share > 0 else words.seconds(job.verdict.cost.seconds)


def _about(job: JobVerdict) -> str:
    """Who and why; where that is not told, the reason."""
    if job.verdict is None:
        return job.error
    if job.verdict.verdict in ("inconclusive", "none") and job.verdict.reason:
        return job.verdict.reason
    found = facts.main_finding(job.verdict)
    if found is not None and found.ranks:
        blaming = [f for f in job.verdict.findings if f.ranks]
        told = [f"{words.who(f)}: {f.cause} {words.since(f)}".rstrip() for f in blaming[:SHOWN]]
        return "; ".join(told) + (f"; {len(blaming) - SHOWN} more" if len(blaming) > SHOWN else "")
    headline = words.headline(job.verdict, found, math.nan)
    return f"{headline.who}: {headline.why}" if headline.why else headline.who


def note_of(run: RunData) -> str:
    """How a run was read."""
    return str(run.info.get("note") or "")


def _left(not_read: Mapping[str, str], width: int) -> list[str]:
    if not not_read:
        return []
    names = [f"{name.rpartition('/')[2]}{f' ({why})' if why else ''}" for name, why in not_read.items()]
    more = f", ... ({len(names)} files)" if len(names) > LEFT_AT_MOST else ""
    return [_cut(printable(f"not read: {', '.join(names[:LEFT_AT_MOST])}{more}"), width)]


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"
