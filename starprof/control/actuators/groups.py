"""Control groups: a file of a group that is all the job's, and a group of ours inside of the one that a process is in.

A group is known by its folder AND the folder's inode. What is put into a group of ours stays under every limit of the
group around it; when ours is removed, all that is in it (what was started since too) goes back there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starprof.control.actuators.change import GoneError, RefusedError
from starprof.control.actuators.processes import alive

PROCS = "cgroup.procs"
_EMPTYING_TRIES = 50


class GroupFile:
    """Target: `folder`, its `inode`, `file`. Value: its text."""

    def read(self, target: Mapping[str, Any]) -> str:
        """See `change.Knob`."""
        path: Path = _folder(target) / target["file"]
        return path.read_text().strip()

    def write(self, target: Mapping[str, Any], value: Any) -> None:
        """See `change.Knob`."""
        (_folder(target) / target["file"]).write_text(str(value))


class OwnGroup:
    """Target: `folder` and `inode` of the group around it, `name`, `pids` with starts. Value: its files, or None."""

    def read(self, target: Mapping[str, Any]) -> dict[str, str] | None:
        """See `change.Knob`: what its files hold; None while there is none."""
        own = _folder(target) / target["name"]
        if not own.is_dir():
            return None
        return {name: (own / name).read_text().strip() for name in target["files"]}

    def write(self, target: Mapping[str, Any], value: Any) -> None:
        """See `change.Knob`: make it and put the processes in; None: put all back, and remove it."""
        around = _folder(target)
        own = around / target["name"]
        if value is None:
            _dissolve(own, around)
            return
        own.mkdir(exist_ok=True)
        for name, text in value.items():
            (own / name).write_text(str(text))
        for pid, start in target["pids"]:
            if not alive(pid, start):
                continue
            if pid not in pids_of(around):
                raise RefusedError(f"process {pid} is in another group by now than {around}")
            with contextlib.suppress(ProcessLookupError):
                (own / PROCS).write_text(str(pid))


def pids_of(folder: Path) -> set[int]:
    """Processes of a group, without those of groups inside of it."""
    return {int(word) for word in (folder / PROCS).read_text().split()}


def _folder(target: Mapping[str, Any]) -> Path:
    folder = Path(target["folder"])
    try:
        inode = folder.stat().st_ino
    except OSError as error:
        raise GoneError(f"the group {folder} is gone") from error
    if inode != target["inode"]:
        raise GoneError(f"the group {folder} is another one by now")
    return folder


def _dissolve(own: Path, around: Path) -> None:
    for _ in range(_EMPTYING_TRIES):
        for pid in pids_of(own):
            with contextlib.suppress(ProcessLookupError):
                (around / PROCS).write_text(str(pid))
        try:
            own.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            continue  # something was started in it just now, or is a zombie
        return
    os.rmdir(own)  # noqa: PTH106 - says why it can't be
