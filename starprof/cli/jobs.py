"""What `analyze` makes of the jobs that it reads: each is diagnosed, drawn and kept while it is in memory."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from starprof.errors import StarprofError
from starprof.model.jobs import JobVerdict
from starprof.spool.layout import RUN_SUFFIX

if TYPE_CHECKING:
    from starprof.analysis.baseline import Profile
    from starprof.importers.jobs import Job
    from starprof.model.rundata import RunData
    from starprof.model.verdict import Verdict

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 100


@dataclass(slots=True)
class Done:
    """One job that was read.

    Attributes:
        job: what it was read from.
        verdict: None when it can't be read.
        profile: what a step of it consists of; None without step times.
        text: the whole summary for the terminal.
        note: how it was read.
        error: why it can't be read.
    """

    job: Job
    verdict: Verdict | None
    profile: Profile | None = None
    text: str = ""
    note: str = ""
    error: str = ""


@dataclass(slots=True)
class Outputs:
    """Files that were asked for, made aside and put in their places when all are there.

    Attributes:
        run: where to keep the run; with several jobs each name gets the job's behind it.
        page: where to write the page; likewise, and the page itself becomes an overview.
        force: overwrite what is there.
    """

    run: Path | None
    page: Path | None
    force: bool
    _aside: dict[Path, Path] = field(default_factory=dict)

    @contextmanager
    def open(self) -> Iterator[None]:
        """A place aside, in the targets' own folders, for as long as they are made."""
        from contextlib import ExitStack

        with ExitStack() as places:
            try:
                for target in (self.run, self.page):
                    if target is not None:
                        place = TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent)
                        self._aside[target] = Path(places.enter_context(place))
            except OSError as error:
                raise StarprofError(f"can't write there: {error.strerror or error}") from error
            yield

    def make(self, number: int, run: RunData, verdict: Verdict, shown: RunData) -> None:
        """Make the files of one job: the run is kept as it is, the page shows it as `shown`."""
        from starprof.reports import html, write

        if self.page is not None:
            write.write(self._made(self.page, number), html.render(shown, verdict))
        if self.run is not None:
            self._save(run, self._made(self.run, number))

    def place(self, names: list[str], overview: str) -> None:
        """Put everything where it belongs, or nothing.

        Args:
            names: of the jobs; "" for one that can't be read.
            overview: page of all jobs; "" when there is only one job.
        """
        from starprof.reports import write
        from starprof.reports.words import file_size

        moves = [
            (self._made(target, number), beside(target, name) if overview else target)
            for target in (self.page, self.run)
            if target is not None
            for number, name in enumerate(names)
            if name or not overview
        ]
        if overview and self.page is not None:
            write.write(self._made(self.page, len(names)), overview)
            moves.append((self._made(self.page, len(names)), self.page))
        for _, target in moves:
            write.check_target(target, force=self.force)
        for made, target in moves:
            size = made.stat().st_size
            try:
                made.replace(target)
            except OSError as error:
                raise StarprofError(f"can't write {target}: {error.strerror or error}") from error
            print(f"Wrote {target} ({file_size(size)})", file=sys.stderr)

    def _made(self, target: Path, number: int) -> Path:
        return self._aside[target] / f"{number}{target.suffix}"

    @staticmethod
    def _save(run: RunData, target: Path) -> None:
        from starprof.errors import RunFileError
        from starprof.store.save import save_run

        try:
            target.unlink(missing_ok=True)
            save_run(run, target)
        except OSError as error:
            raise RunFileError(f"can't write {target.name}: {error.strerror or error}") from error


def beside(target: Path, name: str) -> Path:
    """Name of one job's file beside the common one: `RUN-NAME.starprof`, without anything a file name can't hold."""
    fit = _UNFIT.sub("_", name).strip("._")[:_LONGEST]
    return target.with_name(f"{target.stem}-{fit}{target.suffix}")


def fit_names(names: list[str], done: list[Done]) -> list[str]:
    """Names that stay different as parts of file names; "" for what can't be read."""
    seen: dict[str, int] = {}
    result = []
    for name, one in zip(names, done, strict=True):
        fit = _UNFIT.sub("_", name).strip("._")[: _LONGEST - 6] or "job"
        seen[fit] = seen.get(fit, 0) + 1
        result.append("" if one.verdict is None else fit if seen[fit] == 1 else f"{fit}-{seen[fit]}")
    return result


def told(names: list[str], done: list[Done]) -> list[JobVerdict]:
    """The jobs as the envelope and the overview take them."""
    return [
        JobVerdict(name, tuple(s.name for s in one.job.sources), one.verdict, one.note, one.error)
        for name, one in zip(names, done, strict=True)
    ]


def run_target(output: Path | None) -> Path | None:
    """The run file that is meant, with its suffix."""
    return output.with_name(output.name.removesuffix(RUN_SUFFIX) + RUN_SUFFIX) if output is not None else None
