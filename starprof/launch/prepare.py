"""Before the job starts: name the run, take its lock, and refuse now what could not be recorded later.

Whatever is wrong here is one clear line and no job; whatever goes wrong later never hurts the job.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from starprof.errors import RunFileError, SpoolError, UsageError
from starprof.launch.environment import job_id
from starprof.spool.layout import RUN_SUFFIX, Spool

NEEDED_BYTES = 8 * 1024 * 1024
"""Room for the rings of a few ranks and the first segments."""

_SIZES = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_LOCK_TRIES = 5


def default_name(command: Sequence[str], now_s: float) -> str:
    """Name from the command's script and the time: `train-20250131-140509`."""
    script = next((Path(word).stem for word in command if word.endswith(".py")), None)
    if script is None and "-m" in command[:-1]:
        script = command[command.index("-m") + 1].rpartition(".")[2]
    stem = re.sub(r"[^A-Za-z0-9_.+-]+", "-", script or Path(command[0]).stem).strip(".-") or "run"
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now_s))}"


def run_path(output: str, *, node: int | None, environ: Mapping[str, str]) -> Path:
    """Absolute path of the run file: place-holders filled in, suffix appended.

    Raises:
        UsageError: the name is empty or needs something that is not known here.
    """
    values = {"{host}": socket.gethostname().partition(".")[0], "{rank}": node, "{job}": job_id(environ)}
    hints = {"{rank}": "give --node-rank", "{job}": "no batch job's id is set in the environment"}
    for holder, value in values.items():
        if holder in output and value is None:
            raise UsageError(f"{holder} in the file name is not known here: {hints[holder]}")
        output = output.replace(holder, str(value))
    path = Path(output).expanduser()
    if not path.name or output.endswith(os.sep) or path.is_dir():
        raise UsageError(f"-o {output!r} is a folder: give a file name, such as -o {Path(output) / 'run'}")
    if path.suffix != RUN_SUFFIX:
        path = path.with_name(path.name + RUN_SUFFIX)
    return path.absolute()


def size_bytes(text: str) -> int:
    """Bytes of a size such as `500M` or `2G` (powers of 1024).

    Raises:
        UsageError: not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"{text!r} is not a size: write it like 500M or 2G")
    return int(float(match[1]) * _SIZES[match[2].upper()])


def check_command(command: Sequence[str]) -> None:
    """Make sure that there is something to start.

    Raises:
        UsageError: no command, or it is not found, or it may not be executed.
    """
    if not command:
        raise UsageError("no command to record: write it after --, as in `starprof record -- python train.py`")
    if shutil.which(command[0]) is None:
        reason = "is not executable" if Path(command[0]).exists() and os.sep in command[0] else "was not found"
        raise UsageError(f"the command {command[0]!r} {reason}")


def claim(run_file: Path, *, force: bool) -> int:
    """Create the spool of a run and take its lock; returns the descriptor that holds the lock.

    Raises:
        RunFileError: the file exists, or another recorder has it.
        SpoolError: the folder can't be written or has no room.
    """
    spool = Spool.beside(run_file)
    if run_file.exists() and not spool.lock.exists() and not force:
        raise RunFileError(f"{run_file} exists: choose another name with -o, or overwrite it with --force")
    try:
        spool.create()
        descriptor = lock(spool, run_file)
    except OSError as error:
        raise SpoolError(
            f"can't record in {run_file.parent}: {error.strerror}; choose another place with -o"
        ) from error
    try:
        _refuse_or_clear(spool, run_file, force=force)
        _probe(spool.root)
    except BaseException:
        abandon(spool, descriptor)
        raise
    return descriptor


def abandon(spool: Spool, lock_fd: int) -> None:
    """Leave nothing behind of a recording that did not begin: remove what is empty, then let go of the lock."""
    if not spool.run_json.exists():
        spool.lock.unlink(missing_ok=True)
        for folder in (spool.rings, spool.segments, spool.agents, spool.root):
            try:
                folder.rmdir()
            except OSError:
                break  # it holds records of an earlier recording: they stay
    os.close(lock_fd)


def lock(spool: Spool, run_file: Path) -> int:
    """Take the lock that says that a run is being recorded; returns the descriptor that holds it.

    Raises:
        RunFileError: another recorder has it.
        OSError: the folder can't be written.
    """
    for _ in range(_LOCK_TRIES):
        descriptor = os.open(spool.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise RunFileError(
                f"{run_file} is being recorded by process {holder}: choose another name with -o"
            ) from error
        if _same_file(descriptor, spool.lock):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor
        os.close(descriptor)  # the recorder before us removed it between our open and our lock
    raise RunFileError(f"{run_file} is being recorded and removed by others: choose another name with -o")


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _refuse_or_clear(spool: Spool, run_file: Path, *, force: bool) -> None:
    left_over = spool.run_json.exists()
    if force:
        for path in (run_file, run_file.with_name(run_file.name + ".wal"), spool.run_json):
            path.unlink(missing_ok=True)
        for folder in (spool.rings, spool.segments, spool.agents):
            shutil.rmtree(folder)
        spool.create()
    elif left_over:
        raise RunFileError(
            f"{spool.root} holds a recording that was cut off: `starprof summary {run_file}` folds it in, "
            "--force throws it away"
        )
    elif run_file.exists():
        raise RunFileError(f"{run_file} exists: choose another name with -o, or overwrite it with --force")


def _probe(folder: Path) -> None:
    """Really allocate: a quota or a full disk shows now, not in the middle of the job."""
    probe = folder / "probe"
    descriptor = -1
    try:
        descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(descriptor, 0, NEEDED_BYTES)
    except OSError as error:
        raise SpoolError(
            f"can't record in {folder.parent}: {error.strerror} ({NEEDED_BYTES >> 20} MB are needed to begin); "
            "choose another place with -o"
        ) from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)
            probe.unlink(missing_ok=True)
