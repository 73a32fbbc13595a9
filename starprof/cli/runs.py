"""What the verbs that give a verdict read: a run, as a whole or block by block when it is too long for memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starprof.model.rundata import RunData
    from starprof.model.verdict import Verdict


def run_and_verdict(path: Path | str) -> tuple[RunData, Verdict]:
    """A run file's run, as it is shown, and its verdict.

    Raises:
        RunFileError: the file can't be read.
        NoDataError: there is nothing in it yet.
    """
    from starprof.analysis.long.choice import diagnosed
    from starprof.store.query import open_steps

    with open_steps(path) as steps:
        return diagnosed(steps)


def run_as_shown(path: Path | str) -> RunData:
    """The same without the verdict.

    Raises:
        RunFileError: the file can't be read.
        NoDataError: there is nothing in it yet.
    """
    from starprof.analysis.long.choice import shown
    from starprof.store.query import open_steps

    with open_steps(path) as steps:
        return shown(steps)
