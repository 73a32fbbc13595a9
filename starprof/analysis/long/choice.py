"""Whether a run is diagnosed as a whole or block by block: by its size alone, so that it is the same everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from starprof.analysis.diagnose import diagnose
from starprof.analysis.long.matrix import MatrixSource
from starprof.analysis.long.run import diagnose_long
from starprof.analysis.long.scan import RunScan, scan_run
from starprof.model.rundata import STEPS_PER_RECORD, RunData
from starprof.model.stepsource import StepSource
from starprof.model.verdict import Verdict

MOST_RANK_STEPS = 2_000_000
"""Ranks times steps up to which a run is diagnosed as a whole: about 1 GB and ten seconds."""


class Loadable(StepSource, Protocol):
    """A source that can also be read as a whole."""

    def whole(self) -> RunData:
        """The run with all its step records."""
        ...


def diagnosed(source: Loadable | RunData, most: int | None = None) -> tuple[RunData, Verdict]:
    """A run as tables and charts show it, and its verdict.

    Args:
        source: of the run, or the run itself.
        most: see `MOST_RANK_STEPS`; a longer run is shown as means over windows of steps, and its note says so.
    """
    read: Loadable = MatrixSource(source) if isinstance(source, RunData) else source
    if _is_long(read, most):
        long = diagnose_long(read)
        return _noted(long.scan, len(read.numbers)), long.verdict
    run = read.whole()
    return run, diagnose(run)


def shown(source: Loadable | RunData, most: int | None = None) -> RunData:
    """A run as tables and charts show it, without its verdict; see `diagnosed`."""
    read: Loadable = MatrixSource(source) if isinstance(source, RunData) else source
    return _noted(scan_run(read), len(read.numbers)) if _is_long(read, most) else read.whole()


def _is_long(source: Loadable, most: int | None) -> bool:
    return len(source.numbers) * len(source.shell.ranks) > (MOST_RANK_STEPS if most is None else most)


def _noted(scan: RunScan, steps: int) -> RunData:
    """The means over windows, and what they are."""
    run, width = scan.windowed, scan.width
    words = f"{steps:,} steps of {len(run.ranks):,} ranks were diagnosed block by block"
    if width > 1:
        words += f"; tables and charts show means of {width:,} steps"
    note = "; ".join(part for part in (str(run.info.get("note") or ""), words) if part)
    # Told by every rank, as by logs of means: what adds times up has to know.
    ranks = tuple(
        replace(info, detail={**info.detail, STEPS_PER_RECORD: width * int(info.detail.get(STEPS_PER_RECORD, 1))})
        for info in run.ranks
    )
    return replace(run, ranks=ranks, info={**run.info, "note": note})
