"""Runs with the nodes that they ran on: from tables of runs, from run files, and from whatever `analyze` reads.

A table has a row per run with its hosts in one column, or a row per run and host. Logs seldom name the hosts of each
rank, but often the list that the scheduler gave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from starprof.analysis.baseline import profile_of
from starprof.analysis.placement import RunOn
from starprof.errors import InputError
from starprof.importers import hostlists
from starprof.importers.jobs import Failed, Job, names_of, opened
from starprof.importers.source import Source
from starprof.importers.workers.csv_rows import MAX_ROWS, number
from starprof.importers.workers.worker_columns import Layout, header_of
from starprof.importers.workers.worker_table import UNITS_US, unit_of
from starprof.model.rundata import RunData

LOOKED_AT_LINES = 5000
MAX_CELLS = 4_000_000
"""Runs by nodes: 4,000 runs on 1,000 nodes are a matter of minutes."""

_LIST = re.compile(r"(node|host)(s|_?list|_?names|s?_used)|placement|slurm(_job)?_nodelist|allocated_nodes")
_ONE = re.compile(r"(node|host)(_?name|_?id)?|machine|instance")
_RUN = re.compile(r"(run|job|trial|experiment)(_?(id|name|no|number))?|name|id")
_GROUP = re.compile(r"group|model|config(uration)?|workload|task|benchmark|script|kind|type|recipe")
_STEP_TIME = re.compile(r"(mean|median|avg|average)?_?(step|iter(ation)?)_?(time|dur(ation)?)?(_.*)?")
_RUN_TIME = re.compile(r"(total|wall|run|elapsed|job)?_?(time|dur(ation)?|elapsed|runtime|seconds|secs|hours)(_.*)?")
_IN_LOG = re.compile(
    r"\b(?:SLURM_(?:JOB_)?NODELIST|nodelist|node_list|hostlist|hosts?|nodes?|machines)\b[\"']?\s*[=:]\s*[\"']?"
    r"((?:[A-Za-z][\w.-]*(?:\[[\d,-]+\])?[\s,;|]*)+)",
    re.IGNORECASE,
)


def is_table(source: Source) -> bool:
    """A table with a column of hosts and one of times."""
    layout = header_of(source)
    return layout is not None and _columns(layout) is not None


def read_table(source: Source) -> list[RunOn]:
    """The runs of a table.

    Raises:
        InputError: it holds no run with a time and hosts.
    """
    layout = header_of(source)
    columns = None if layout is None else _columns(layout)
    if layout is None or columns is None:
        raise InputError(f"{source.name} is no table of runs: it needs a column of hosts (nodes) and one of times")
    hosts, time, run, groups = columns
    unit = UNITS_US[unit_of(layout.names[time]) or "s"] / 1e6
    found: dict[str, RunOn] = {}
    for row, cells in enumerate(_rows(source, layout)):
        nodes = frozenset(hostlists.expand(cells[hosts]) if hosts < len(cells) else ())
        seconds = number(cells[time].strip()) * unit if time < len(cells) else np.nan
        if not nodes or not seconds > 0:
            continue
        name = cells[run].strip()[:200] if run is not None and run < len(cells) else f"row {row + 1}"
        group = " ".join(cells[c].strip()[:200] for c in groups if c < len(cells))
        known = found.get(name)
        if known is None:
            found[name] = RunOn(name, seconds, nodes, group)
        elif known.nodes.isdisjoint(nodes):  # a row per host: the slowest is the run's time
            found[name] = replace(known, nodes=known.nodes | nodes, seconds=max(known.seconds, seconds))
        else:
            found[f"{name} (row {row + 1})"] = RunOn(name, seconds, nodes, group)
    if not found:
        raise InputError(f"{source.name} holds no run with a time and hosts")
    return list(found.values())


def _columns(layout: Layout) -> tuple[int, int, int | None, tuple[int, ...]] | None:
    """Hosts, time, name of the run, and what makes runs comparable; None when hosts or time are not there."""
    names = [layout.clean(c) for c in range(len(layout.names))]

    def first(*patterns: re.Pattern[str]) -> int | None:
        return next((i for p in patterns for i, name in enumerate(names) if p.fullmatch(name)), None)

    hosts, time = first(_LIST, _ONE), first(_STEP_TIME, _RUN_TIME)
    run = first(_RUN)
    single = hosts is not None and not _LIST.fullmatch(names[hosts])
    if hosts is None or time is None or hosts == time or not np.isfinite(layout.numbers(time)).any():
        return None
    if single and run is None:
        return None
    groups = tuple(i for i, name in enumerate(names) if _GROUP.fullmatch(name) and i not in {hosts, time, run})
    return hosts, time, run, groups


def _rows(source: Source, layout: Layout) -> Iterator[list[str]]:
    """Cells of each row; commas inside brackets or quotes do not separate."""
    lines = (line for line in source.text_lines() if line.strip() and not line.startswith("#"))
    next(lines, None)
    for count, line in enumerate(lines):
        if count >= MAX_ROWS:
            raise InputError(f"{source.name} has more than {MAX_ROWS} rows")
        yield _cells(line, layout.separator)


def _cells(line: str, separator: str) -> list[str]:
    cells, start, depth, quoted = [], 0, 0, False
    for i, sign in enumerate(line):
        if sign == '"':
            quoted = not quoted
        elif sign == "[" and not quoted:
            depth += 1
        elif sign == "]" and not quoted:
            depth = max(depth - 1, 0)
        elif sign == separator and not quoted and not depth:
            cells.append(line[start:i].strip().strip('"'))
            start = i + 1
    return [*cells, line[start:].strip().strip('"')]


def read_runs(paths: Sequence[str]) -> tuple[list[RunOn], list[str]]:
    """The runs behind the paths: tables of runs, or one for each job that `analyze` reads.

    Returns:
        The runs, and a line for each job that tells no time or no hosts.

    Raises:
        InputError: a path can't be read, or there are too many runs.
    """
    runs: list[RunOn] = []
    left: list[str] = []
    for path in paths:
        source = Source(path, Path(path))
        if source.path.is_file() and is_table(source):
            runs += read_table(source)
            continue
        with opened([path]) as jobs:
            each = [(job, _of_job(job, run)) for job, run in jobs.each()]
            for name, (_, told) in zip(names_of([job for job, _ in each]), each, strict=True):
                if isinstance(told, str):
                    left.append(f"{name}: {told}")
                else:
                    runs.append(replace(told, name=name))
    nodes = len(frozenset[str]().union(*(run.nodes for run in runs)))
    if len(runs) * nodes > MAX_CELLS:
        raise InputError(f"{len(runs)} runs on {nodes} nodes are too many: name the latest, or those of one job")
    return runs, left


def _of_job(job: Job, run: RunData | Failed) -> RunOn | str:
    if isinstance(run, Failed):
        return run.reason
    told = run_on(run)
    if isinstance(told, RunOn) and not told.nodes:
        hosts = next((found for source in job.sources if (found := _hosts_in(source))), frozenset[str]())
        told = replace(told, nodes=hosts) if hosts else "it names no hosts"
    return told


def run_on(run: RunData) -> RunOn | str:
    """A recorded or imported run; without nodes when its ranks name no hosts; why not, when it has no step times."""
    profile = profile_of(run)
    if profile is None:
        return "it has no step times"
    hosts = frozenset(info.host for info in run.ranks if info.host)
    load = "" if np.isnan(profile.load) else f"{profile.load:.4g}"
    command = str(run.info.get("command") or "")
    group = " ".join([*profile.kind, str(profile.world), load, command])
    return RunOn(profile.name, profile.step_us / 1e6, hosts, group)


def _hosts_in(source: Source) -> frozenset[str]:
    """The longest list of hosts that the first lines of a log tell."""
    longest: frozenset[str] = frozenset()
    if b"\0" in source.head:
        return longest
    for line in islice(source.text_lines(), LOOKED_AT_LINES):
        for found in _IN_LOG.finditer(line[:100_000]):
            hosts = frozenset(hostlists.expand(found[1]))
            longest = max(longest, hosts, key=len)
    return longest
