"""Logs with a line per worker and time, such as `rank: 4, total_time=6.9` or `[worker 3] step 12 step_time_ms: 340`.

Of the times that the lines name, the one that most lines have is taken. Temperatures of a node's cores, when a file
beside the log tells them, are kept with the node.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from starprof.errors import InputError
from starprof.importers.parts import SeveralJobsError, by_folder, folders_of
from starprof.importers.source import Source
from starprof.importers.workers.worker_columns import holds_no_waiting, is_whole_step
from starprof.importers.workers.worker_table import STEP_INDEX, Records, unit_of, worker_run
from starprof.model.columns import row
from starprof.model.rundata import RunData
from starprof.model.tables.job import NODE

NAME = "worker-log"

MAX_RECORDS = 5_000_000
MAX_LINE = 4096
MAX_HOSTS = 100_000
MAX_CORES = 100_000
LEAST_LINES = 2

_WORKER = re.compile(
    r"\b(?:global_?)?(?:rank|worker|replica|trainer)(?:_?id)?\b\s{0,3}[:=#\[(]?\s{0,3}(\d{1,9})\b", re.I
)
_STEP = re.compile(
    r"\b(?:global_?)?(?:step|iter|iteration|batch)\b\s{0,3}[:=#\[(]?\s{0,3}(\d{1,15})\b(?!\s{0,3}[:=]\s{0,3}\d)", re.I
)
_PAIR = re.compile(
    r"\b([A-Za-z_][\w.\-]{0,60})\s{0,3}[:=]\s{0,3}(\d{1,15}(?:\.\d{0,15})?(?:[eE][+-]?\d{1,3})?)\s{0,3}"
    r"(ns|us|µs|ms|sec|secs|seconds?|s|min)?(?![\w.])"
)
_TIME = re.compile(r"time|dur|elapsed|latency|took|compute|busy", re.I)
_NO_TIME = re.compile(r"stamp|start|end|eta|remaining|date|count|limit|out$", re.I)
_SUFFIX = {"µs": "us", "sec": "s", "secs": "s", "second": "s", "seconds": "s"}
_HOST = re.compile(r"\b(?:gather|rank|worker)\b\s{0,3}[:=#]?\s{0,3}(\d{1,9})\s{0,3}\(([A-Za-z][\w.\-]{0,80})\)", re.I)
_NODE = re.compile(r"^\s{0,8}(?:node|host(?:name)?)\s{0,3}[:=]\s{0,3}([\w.\-]{1,80})\s*$", re.I)
_CORE = re.compile(r"\bcore\s{0,3}(\d{1,6})\s{0,3}[:=]\s{0,3}(-?\d{1,4}(?:\.\d{1,3})?)\s{0,3}°?\s{0,1}C\b", re.I)


def recognises(source: Source) -> bool:
    """Several lines of the head name a worker and a time, or the temperatures of a node's cores."""
    if b"\0" in source.head:
        return False
    lines = source.head.decode("utf-8", errors="replace").splitlines()
    timed = sum(1 for line in lines if _times(line[:MAX_LINE]) is not None)
    return timed >= LEAST_LINES or _is_sensors(lines)


def read(sources: Sequence[Source]) -> RunData:
    """Logs of one run, all workers in one or one a worker, and sensor files beside them.

    Raises:
        InputError: no times, temperatures only, or far too many lines.
    """
    log = _Log()
    told: dict[Source, frozenset[Hashable]] = {}
    for source in sources:
        before = len(log.workers)
        log.read(source)
        told[source] = frozenset(log.workers[before:])
    _refuse_several(told)
    if not log.workers:
        what = "temperatures only" if log.cores else "no line with a worker and a time"
        raise InputError(f"{sources[0].name} has {what}: give the log that tells each worker's times")
    key = log.main_key()
    return worker_run(NAME, sources, log.records(key))


def _refuse_several(told: dict[Source, frozenset[Hashable]]) -> None:
    """Files of one folder may go on with each other; the same worker in several folders is of several runs.

    Raises:
        SeveralJobsError: there are such folders.
    """
    folders: dict[tuple[str, ...], frozenset[Hashable]] = {}
    for source, workers in told.items():
        folders[folders_of(source)] = folders.get(folders_of(source), frozenset()) | workers
    if sum(map(len, folders.values())) > len(frozenset().union(*folders.values())):
        names = ", ".join("/".join(folder[-1:]) for folder in list(folders)[:3])
        raise SeveralJobsError(f"logs of several runs, the same workers are in {names}: name one", by_folder([*told]))


@dataclass
class _Log:
    """What was read so far: one entry per line that names a worker and a time."""

    workers: list[int] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    hosts: dict[str, str] = field(default_factory=dict)
    cores: dict[str, list[float]] = field(default_factory=dict)

    def read(self, source: Source) -> None:
        """Take a file in."""
        node = ""
        for line in source.text_lines():
            text = line[:MAX_LINE]
            host = _HOST.search(text)
            if host is not None and len(self.hosts) < MAX_HOSTS:
                self.hosts[str(int(host[1]))] = host[2]
            named = _NODE.match(text)
            if named is not None:
                node = named[1]
            core = _CORE.search(text)
            if core is not None and len(self.cores.setdefault(node, [])) < MAX_CORES:
                self.cores[node].append(float(core[2]))
            found = _times(text)
            if found is not None:
                self._add(source, *found)

    def _add(self, source: Source, worker: int, step: float, times: dict[str, float]) -> None:
        for key, value in times.items():
            self.workers.append(worker)
            self.steps.append(step)
            self.values.append(value)
            self.keys.append(key)
        if len(self.workers) > MAX_RECORDS:
            raise InputError(f"{source.name} has more than {MAX_RECORDS} times: cut the log into parts")

    def main_key(self) -> str:
        """The time that most lines have; of equals the first."""
        return Counter(self.keys).most_common(1)[0][0]

    def records(self, key: str) -> Records:
        """The lines that have this time."""
        mine = [i for i, name in enumerate(self.keys) if name == key]
        names = tuple(dict.fromkeys(str(self.workers[i]) for i in mine))
        index = {name: i for i, name in enumerate(names)}
        steps = np.array([self.steps[i] for i in mine])
        stepped = bool(np.isfinite(steps).all())
        name, _, suffix = key.partition("|")
        unit = suffix or unit_of(name)
        others = [k.partition("|")[0] for k in dict.fromkeys(self.keys) if k != key]
        left = f" ({', '.join(others[:3])} not used)" if others else ""
        return Records(
            names=names,
            worker=np.array([index[str(self.workers[i])] for i in mine], np.int64),
            at=steps if stepped else np.full(len(mine), np.nan),
            at_kind=STEP_INDEX if stepped else None,
            values=np.array([self.values[i] for i in mine]),
            unit=unit,
            value_name=name,
            whole_steps=is_whole_step(name.lower()),
            no_waiting=holds_no_waiting(name.lower()),
            at_name="step",
            notes=(f"time of a worker is {name!r} in {unit or 'arbitrary units'}{left}",),
            hosts=self.hosts,
            nodes=self._nodes(names),
        )

    def _nodes(self, names: tuple[str, ...]) -> pd.DataFrame | None:
        """Table `node` with the temperatures that were told."""
        order = list(dict.fromkeys(self.hosts.get(name, "") for name in names))
        rows = [
            row(NODE, node=order.index(host), host=host, detail=json.dumps({"core_c": temperatures}))
            for host, temperatures in self.cores.items()
            if host in order
        ]
        return pd.DataFrame(rows, columns=list(NODE.names)) if rows else None


def _times(text: str) -> tuple[int, float, dict[str, float]] | None:
    """Worker, step (NaN when not told) and times of a line; None when it names no worker or no time."""
    worker = _WORKER.search(text)
    if worker is None:
        return None
    times = dict(_pairs(text))
    if not times:
        return None
    step = _STEP.search(text)
    return int(worker[1]), float(step[1]) if step else float("nan"), times


def _pairs(text: str) -> Iterator[tuple[str, float]]:
    """Times of a line by their name, with `|unit` where a unit follows the number."""
    for name, number, suffix in _PAIR.findall(text):
        if _TIME.search(name) and not _NO_TIME.search(name):
            unit = _SUFFIX.get(suffix, suffix)
            yield (f"{name}|{unit}" if unit else name), float(number)


def _is_sensors(lines: Sequence[str]) -> bool:
    return any(_NODE.match(line) for line in lines) and sum(1 for line in lines if _CORE.search(line[:MAX_LINE])) >= 1
