"""The control socket of a job: where it is, how to listen there, and how to ask it something."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starprof.errors import StarprofError, TransportError
from starprof.spool.layout import Spool

NAME = "control.sock"
FOLDER = "control"
"""In the spool of a run."""

MAX_LINE_BYTES = 4 << 20
_READ_BYTES = 1 << 16


class NobodyListensError(StarprofError):
    """The job has no coordinator, or it is not there any more."""


def folder_of(job: Path) -> Path:
    """Where the control socket of a job is.

    Args:
        job: its run file, its spool, or the folder of the socket itself.
    """
    folder = job if job.is_dir() else Spool.beside(job).root
    inside = folder / FOLDER
    return inside if inside.is_dir() else folder


@contextlib.contextmanager
def reachable(folder: Path, name: str = NAME) -> Iterator[str]:
    """A short name of the socket: the names that a socket takes are shorter than paths may be.

    Raises:
        OSError: the folder can't be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


class ControlSocket:
    """A socket that listens there, in the place of whoever did before; only this user can connect.

    Raises:
        TransportError: that can't be.
    """

    def __init__(self, folder: Path, name: str = NAME) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = folder / name
        before = os.umask(0o177)
        try:
            self._path.unlink(missing_ok=True)
            with reachable(folder, name) as short:
                self.sock.bind(short)
            self._inode = self._path.stat().st_ino
            self.sock.listen(64)
        except OSError as error:
            self.sock.close()
            raise TransportError(f"can't listen on {self._path}: {error.strerror or error}") from error
        finally:
            os.umask(before)

    def close(self) -> None:
        """Go away, and take the name along unless it is another one's by now."""
        with contextlib.suppress(OSError):  # it is gone already
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        self.sock.close()


def ask(folder: Path, question: dict[str, Any], timeout_s: float = 10.0) -> dict[str, Any]:
    """Ask a coordinator something (see `coordinator.desk`), and get its answer.

    Raises:
        NobodyListensError: no coordinator is there.
        TransportError: it did not answer in time, or not as coordinators do.
    """
    hint = "is the job running, and recorded with control?"
    return ask_at(folder, NAME, question, timeout_s, who="coordinator", hint=hint)


def ask_at(
    folder: Path, name: str, question: dict[str, Any], timeout_s: float, *, who: str, hint: str
) -> dict[str, Any]:
    """Ask whoever listens on a socket of that name.

    Raises:
        NobodyListensError: nobody is there; `who` should be, and `hint` asks what may be wrong.
        TransportError: it did not answer in time, or with something else than one JSON object.
    """
    deadline_s = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        try:
            with reachable(folder, name) as short:
                sock.connect(short)
        except OSError as error:
            raise NobodyListensError(f"no {who} listens in {folder} ({error.strerror or error}): {hint}") from error
        try:
            sock.sendall(json.dumps(question).encode() + b"\n")
            line = _line(sock, deadline_s)
        except OSError as error:
            raise TransportError(f"the {who} did not answer: {error}") from error
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TransportError(f"what answers in {folder} is no {who}") from error
    if not isinstance(value, dict):
        raise TransportError(f"what answers in {folder} is no {who}")
    return value


def _line(sock: socket.socket, deadline_s: float) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or len(line) > MAX_LINE_BYTES:
            raise TimeoutError("it takes too long")
        sock.settimeout(left_s)
        data = sock.recv(_READ_BYTES)
        if not data:
            raise OSError("it has hung up")
        line += data
    return bytes(line)
