"""The jobs behind what the user names: told apart by their content and folders, read one at a time.

What an importer finds to be of several jobs (see `parts`) is divided; a further format is a job of its own where it
lies apart from the first one's files, else it is left out as one more account of the same job. Metrics go to the jobs
that lie nearest to them.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import cast

from starprof.errors import InputError
from starprof.importers import database
from starprof.importers.base import Importer
from starprof.importers.collect import collect
from starprof.importers.found import Found, Group, named, read_groups, recognised
from starprof.importers.parts import SeveralJobsError, folders_of
from starprof.importers.source import Source
from starprof.model.rundata import RunData

MAX_JOBS = 2000

_ENDINGS = re.compile(
    r"(\.(csv|tsv|jsonl?|gz|log|mllog|txt|out|err|parquet|trace|pt|pickle|pkl|dump|prom))+$", re.IGNORECASE
)


@dataclass(frozen=True)
class Job:
    """Sources of one job, as far as is known before they are read.

    Attributes:
        importer: who reads the steps, or the metrics when there is nothing else.
        sources: what it reads.
        metrics: samples to lay beside.
        left: files that nobody reads, with the reason where there is one.
    """

    importer: Importer
    sources: tuple[Source, ...]
    metrics: tuple[Group, ...] = ()
    left: dict[str, str] = field(default_factory=dict, compare=False)

    def read(self) -> RunData:
        """Read it; may be done again while the scope of `opened` lasts.

        Raises:
            InputError: it can't be read.
        """
        return read_groups([(self.importer, list(self.sources)), *self.metrics], self.left)


@dataclass(frozen=True, slots=True)
class Failed:
    """A job that can't be read, and why."""

    reason: str


@dataclass(frozen=True)
class Jobs:
    """All jobs behind the paths.

    Attributes:
        left: files that are nobody's, with the reason where there is one.
    """

    left: dict[str, str]
    _found: tuple[Job, ...]
    _metrics: tuple[Group, ...]

    def each(self) -> Iterator[tuple[Job, RunData | Failed]]:
        """Each job with its run, one in memory at a time.

        Raises:
            InputError: there is only one job, and it can't be read; or there are far too many.
        """
        waiting, count = list(reversed(self._found)), 0
        while waiting:
            job = waiting.pop()
            try:
                run: RunData | Failed = self._placed(job, count + len(waiting)).read()
            except SeveralJobsError as several:
                if len(several.parts) > 1 and job.sources not in several.parts:
                    waiting += [Job(job.importer, part) for part in reversed(several.parts)]
                    if count + len(waiting) > MAX_JOBS:
                        raise InputError(f"more than {MAX_JOBS} jobs: name the ones to analyze") from None
                    continue
                run = Failed(str(several))
            except InputError as error:
                if not count and not waiting:
                    raise
                run = Failed(str(error))
            count += 1
            yield self._placed(job, count - 1 + len(waiting)), run

    def _placed(self, job: Job, others: int) -> Job:
        """The job with the metrics that lie nearest to it, and the files left over when it is the only one."""
        if not others:
            return Job(job.importer, job.sources, self._metrics, self.left)
        places = [s for one in self._found for s in one.sources]
        groups = []
        for importer, sources in self._metrics:
            near = [s for s in sources if _nearness(s, job.sources) == _nearness(s, places)]
            if near:
                groups.append((importer, near))
        return Job(job.importer, job.sources, tuple(groups))


@contextlib.contextmanager
def opened(paths: Sequence[str], source_format: str | None = None) -> Iterator[Jobs]:
    """The jobs behind the paths; they can be read until the scope ends.

    Args:
        paths: files, folders, globs, archives; or addresses of runs in databases.
        source_format: an importer's NAME; recognised from the content when None.

    Raises:
        UsageError: there is no such format.
        InputError: nothing is recognised.
    """
    if runs := database.sources_of(paths):
        yield Jobs({}, tuple(Job(cast("Importer", database), (run,)) for run in runs), ())
        return
    chosen = None if source_format is None else named(source_format)
    with tempfile.TemporaryDirectory(prefix="starprof-") as scratch:
        sources = collect(paths, Path(scratch))
        if not sources:
            raise InputError(f"{paths[0]} holds no file")
        found = Found([(chosen, sources)]) if chosen is not None else recognised(sources)
        yield _jobs(found)


def _jobs(found: Found) -> Jobs:
    if not found.steps:
        (importer, sources), *others = found.metrics
        return Jobs(found.left, (Job(importer, tuple(sources)),), tuple(others))
    jobs, left, taken = [], dict(found.left), set[tuple[str, ...]]()
    for importer, sources in found.steps:
        apart = [s for s in sources if folders_of(s) not in taken]
        left |= {s.name: "" for s in sources if folders_of(s) in taken}
        if apart:
            jobs.append(Job(importer, tuple(apart)))
        taken |= {folders_of(s) for s in apart}
    return Jobs(left, tuple(jobs), tuple(found.metrics))


def _nearness(source: Source, sources: Sequence[Source]) -> int:
    """How many folders a source shares with the nearest of others."""
    mine = folders_of(source)
    return max((_shared(mine, folders_of(other)) for other in sources), default=-1)


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def names_of(jobs: Sequence[Job]) -> list[str]:
    """A short name for each job that tells it from the others: its file or folder, with as many folders as needed."""
    paths = [_path(job) for job in jobs]
    names = [path[-1] for path in paths]
    last = Counter(names)
    # A file name that several jobs share tells nothing beside their folders.
    paths = [path[:-1] if last[path[-1]] > 1 and len(path) > 1 else path for path in paths]
    names = [path[-1] for path in paths]
    for depth in range(2, 1 + max((len(path) for path in paths), default=0)):
        count = Counter(names)
        names = ["/".join(p[-depth:]) if count[n] > 1 else n for p, n in zip(paths, names, strict=True)]
    seen: Counter[str] = Counter()
    for i, name in enumerate(names):
        seen[name] += 1
        names[i] = f"{name} ({seen[name]})" if seen[name] > 1 else name
    return names


def _path(job: Job) -> tuple[str, ...]:
    """Folders of the job and, of a single file, its name without endings."""
    if len(job.sources) == 1:
        return (*folders_of(job.sources[0]), _ENDINGS.sub("", job.sources[0].base) or job.sources[0].base)
    folders = [folders_of(source) for source in job.sources]
    return folders[0][: min(_shared(folders[0], other) for other in folders)] or (job.sources[0].base,)
