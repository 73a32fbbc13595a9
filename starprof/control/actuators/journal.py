"""What was changed, on disk before it is: whoever is killed in the middle leaves a list of what to put back.

One file for each job and boot of a machine, in a folder that outlives runs: `STARPROF_STATE`, else the user's state
folder (XDG). A line is an entry with its checksum; it is synced before the change that it tells of begins. Nothing of
another boot is ever put back: threads, groups and queues of then are gone.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from starprof.control.actuators.change import Change
from starprof.control.actuators.processes import alive, boot_id, start_of
from starprof.errors import StarprofError
from starprof.model import env

SUFFIX = ".actions"
LOCK_S = 30.0
KEPT_S = 30 * 86_400.0
"""Files of other boots are of no use, but may be another machine's in a folder that machines share."""


class JournalError(StarprofError):
    """What is to be changed can't be written down, so it is not changed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One action: changes that are made and taken back together.

    Attributes:
        number: unique.
        actuator: that makes them.
        job: key of the job that they are for, see `JobHere.key`.
        session: process, with its start, that takes them back itself; None: they stay until they are taken back.
        changes: with the old values.
        made: whether all were made; those of an entry that was cut off may have been.
    """

    number: str
    actuator: str
    job: str
    session: tuple[int, int] | None
    changes: tuple[Change, ...]
    made: bool = False

    @property
    def orphaned(self) -> bool:
        """Its session was to take it back, and has ended."""
        return self.session is not None and not alive(*self.session)


def new_entry(actuator: str, job: str, changes: Sequence[Change], *, standing: bool) -> Entry:
    """An entry of this process."""
    session = None if standing else (os.getpid(), start_of(os.getpid()))
    return Entry(uuid.uuid4().hex[:12], actuator, job, session, tuple(changes))


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the journals are."""
    told = environ.get(env.STATE)
    if told:
        return Path(told)
    home = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "/root")) / ".local" / "state")
    return Path(home) / "starprof" / "actuators"


@dataclass
class Journal:
    """One file.

    Attributes:
        path: of it.
    """

    path: Path
    _fd: int | None = field(default=None, repr=False)

    @classmethod
    def of_job(cls, job: str) -> Journal:
        """That of a job, on this boot."""
        name = hashlib.sha256(job.encode()).hexdigest()[:16]
        return cls(folder() / f"{boot_id()}-{name}{SUFFIX}")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Alone: changes of one job are made and taken back by one process at a time.

        Raises:
            JournalError: it can't be opened.
        """
        while True:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise JournalError(f"can't write {self.path}, so nothing is changed: {error.strerror}") from error
            _lock(fd, self.path)
            if os.fstat(fd).st_nlink:
                break
            os.close(fd)  # whoever had it before us has put everything back, and removed it
        self._fd = fd
        try:
            yield
            if not self.entries():
                self.path.unlink(missing_ok=True)
        finally:
            self._fd = None
            os.close(fd)

    def begin(self, entry: Entry) -> None:
        """Before the first of its changes."""
        self._add(
            {
                "do": "begin",
                "number": entry.number,
                "actuator": entry.actuator,
                "job": entry.job,
                "session": entry.session,
                "changes": [change.to_json() for change in entry.changes],
            }
        )

    def made(self, entry: Entry) -> None:
        """All are made; with the values as they have really become."""
        self._add({"do": "made", "number": entry.number, "new": [change.new for change in entry.changes]})

    def undone(self, number: str) -> None:
        """All are taken back, or can't and need not be."""
        self._add({"do": "undone", "number": number})

    def entries(self) -> list[Entry]:
        """What is not taken back, the oldest first; a torn line is no entry: nothing was changed then."""
        found: dict[str, Entry] = {}
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise JournalError(f"can't read {self.path}: {error.strerror}") from error
        for line in lines:
            told = _read(line)
            if told is None:
                continue
            number = str(told["number"])
            if told["do"] == "begin":
                found[number] = _entry(told)
            elif told["do"] == "undone":
                found.pop(number, None)
            elif number in found:
                found[number] = _as_made(found[number], told["new"])
        return list(found.values())

    def _add(self, told: Mapping[str, Any]) -> None:
        assert self._fd is not None, "it has to be held"
        text = json.dumps(told, separators=(",", ":")).encode()
        line = b"%08x %s\n" % (zlib.crc32(text), text)
        try:
            end = os.fstat(self._fd).st_size
            if end and os.pread(self._fd, 1, end - 1) != b"\n":
                line = b"\n" + line  # behind a torn line
            if os.write(self._fd, line) != len(line):
                raise OSError(0, "no space left")
            os.fsync(self._fd)
            parent = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)
        except OSError as error:
            raise JournalError(f"can't write {self.path}, so nothing more is changed: {error.strerror}") from error


def journals() -> list[Journal]:
    """All of this boot; very old ones of others are removed."""
    found = []
    try:
        paths = sorted(folder().glob(f"*{SUFFIX}"))
    except OSError:
        return []
    for path in paths:
        if path.name.startswith(boot_id()):
            found.append(Journal(path))
        elif time.time() - path.stat().st_mtime > KEPT_S:
            path.unlink(missing_ok=True)
    return found


def _lock(fd: int, path: Path) -> None:
    """Wait for it, not for ever: its holder may be stopped."""
    deadline_s = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                os.close(fd)
                raise JournalError(f"another process of starprof has held {path} for {LOCK_S:g} s") from None
            time.sleep(0.02)
        else:
            return


def _read(line: bytes) -> dict[str, Any] | None:
    checksum, _, text = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def _entry(told: Mapping[str, Any]) -> Entry:
    session = told["session"]
    return Entry(
        str(told["number"]),
        str(told["actuator"]),
        str(told["job"]),
        None if session is None else (int(session[0]), int(session[1])),
        tuple(Change.of(change) for change in told["changes"]),
    )


def _as_made(entry: Entry, values: Sequence[Any]) -> Entry:
    changes = tuple(replace(change, new=new) for change, new in zip(entry.changes, values, strict=True))
    return replace(entry, changes=changes, made=True)
