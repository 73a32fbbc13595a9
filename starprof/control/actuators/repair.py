"""Puts back what nobody will any more: called whenever something of ours starts, and when a recording ends.

An action is put back when the session that was to do so has ended, and a standing one when its job has.
"""

from __future__ import annotations

from pathlib import Path

from starprof.control.actuators.hand import Undone, take_back_held
from starprof.control.actuators.job import JobHere
from starprof.control.actuators.journal import Entry, JournalError, journals
from starprof.spool.layout import Spool


def repair(ended: Path | None = None) -> list[Undone]:
    """Look through all journals of this boot.

    Args:
        ended: spool of a job that is known to have ended.

    Returns:
        What was put back, or could not be.
    """
    found: list[Undone] = []
    for journal in journals():
        try:
            if not any(_is_over(entry, ended) for entry in journal.entries()):
                continue
            with journal.held():
                found += take_back_held(journal, [e for e in journal.entries() if _is_over(e, ended)])
        except (JournalError, KeyError, TypeError, ValueError):
            continue  # another user's, or of a version that writes it otherwise
    return found


def _is_over(entry: Entry, ended: Path | None) -> bool:
    if ended is not None and entry.job == str(ended.resolve()):
        return True
    if entry.session is not None:
        return entry.orphaned
    return not _runs(entry.job)


def _runs(job: str) -> bool:
    spool = Spool(Path(job))
    return spool.rings.is_dir() and JobHere(spool).running()
