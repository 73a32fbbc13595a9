"""The jobs of a server of many: who may bring records to which run, and when a run is complete.

Each job has a secret of its own (a file in a folder, named after the job), or all jobs share one and say their names.
Who knows the secret of one job can neither read nor write another's.
"""

from __future__ import annotations

import json
import os
import re
import stat
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from starprof import __version__
from starprof.errors import RunFileError, TransportError, UsageError
from starprof.launch import runinfo
from starprof.launch.inbox import Inbox
from starprof.launch.prepare import lock
from starprof.launch.questions import ask_watch
from starprof.launch.secret import MIN_SECRET_BYTES
from starprof.spool.audit import Audit
from starprof.spool.layout import RUN_SUFFIX, SPOOL_SUFFIX, Spool

MAX_JOBS = 1_000
GONE_S = 600.0
"""A job of which no node has been heard for this long is over, whether they said good-bye or not."""

LINGER_S = 5.0
"""After the last good-bye: a node that joins late would otherwise find its run closed."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass
class Job:
    """A job that is being recorded.

    Attributes:
        secret: that its nodes know.
        run_file: where its run goes.
        lock: descriptor that keeps readers of the run file from taking it for a recording that was cut off.
        empty_s: since when no node is there that has more to say, None while there is one.
        patience_s: how long after that it is over.
    """

    name: str
    secret: bytes
    run_file: Path
    inbox: Inbox
    lock: int
    info: dict[str, object] = field(default_factory=dict)
    empty_s: float | None = None
    patience_s: float = LINGER_S


class Hall:
    """Takes in the nodes of all jobs."""

    def __init__(self, folder: Path, tokens: Tokens, audit: Audit) -> None:
        """Run files go into `folder`."""
        self._folder = folder
        self._tokens = tokens
        self._audit = audit
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._known = tokens.read()

    def jobs(self) -> list[Job]:
        """Of which nodes are there, or may still come back."""
        with self._lock:
            return list(self._jobs.values())

    def inboxes(self) -> list[Inbox]:
        """Where their records go."""
        return [job.inbox for job in self.jobs()]

    def resume(self) -> None:
        """Go on with the runs that a server before us has left in the folder: their nodes come back."""
        by_name = {name: secret for secret, name in self._known.items()}
        for path in sorted(self._folder.glob(f"*{RUN_SUFFIX}{SPOOL_SUFFIX}")):
            spool = Spool(path)
            try:
                info = json.loads(spool.run_json.read_text())
                name, run_id = str(info["job"]), str(info["run_id"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # a recording of another kind
            secret = by_name.get(name, by_name.get(None))
            if secret is None or info.get("ended_unix_ns") is not None or name in self._jobs:
                continue
            run_file = path.with_name(path.name.removesuffix(SPOOL_SUFFIX))
            try:
                held = lock(spool, run_file)
            except (RunFileError, OSError):
                continue  # somebody else records there
            job = Job(name, secret, run_file, Inbox(spool, run_id), held, info)
            job.patience_s = GONE_S
            self._jobs[name] = job

    def over(self, now_s: float) -> list[Job]:
        """Jobs that are complete, or given up; they are not taken in any more."""
        ended = []
        with self._lock:
            for job in list(self._jobs.values()):
                peers = job.inbox.peers()
                there = any(not peer.done and now_s - peer.seen_s < GONE_S for peer in peers)
                if peers:
                    job.patience_s = LINGER_S
                job.empty_s = None if there else now_s if job.empty_s is None else job.empty_s
                if job.empty_s is not None and now_s - job.empty_s >= job.patience_s:
                    del self._jobs[job.name]
                    ended.append(job)
        return ended

    # What the visitors want.

    def secrets(self) -> list[bytes]:
        """The secrets of all jobs, read anew when their files have changed."""
        before = self._tokens.problems
        try:
            self._known = self._tokens.read()
        except OSError as error:
            self.note("tokens-unreadable", why=str(error))  # those that were good still are
        for why in self._tokens.problems if self._tokens.problems is not before else ():
            self.note("tokens-unreadable", why=why)
        return list(self._known)

    def inbox(self, secret: bytes, wish: dict[str, object]) -> Inbox | str:
        """The run that a node of this secret wants to join, or why it may not."""
        if secret not in self._known:
            return "this secret is not known any more"
        own, asked = self._known[secret], wish.get("job")
        name = own if own is not None else asked
        if name is None:
            return "this server takes in many jobs: say which one this is (record --job NAME, or inside a batch job)"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return "the name of a job is made of letters, digits and _ . -"
        if own is not None and asked not in (None, own):
            return f"this secret is that of another job than {str(asked)[:100]!r}"
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                if len(self._jobs) >= MAX_JOBS:
                    return f"this server takes in {MAX_JOBS} jobs already"
                job = self._jobs[name] = self._begin(name, secret, wish)
            return job.inbox if job.secret == secret else f"job {name} has another secret"

    def ask(self, secret: bytes, question: dict[str, object], answer: Callable[[bytes], None]) -> None:
        """Hand a question on; one job's secret answers questions about that job only."""
        if secret not in self._known:
            answer(_refusal("this secret is not known any more"))
            return
        own = self._known[secret]
        if own is None:
            ask_watch(self._folder, question, answer)
            return
        with self._lock:
            job = self._jobs.get(own)
        if job is None:
            answer(_refusal(f"no node of job {own} is here"))
        elif question.get("do") not in ("live", "steps"):
            answer(_refusal("this secret answers `live` and `steps` of its own job"))
        elif question.get("job") not in (None, own):
            answer(_refusal("this secret is that of another job"))
        else:
            ask_watch(self._folder, {**question, "job": watched_name(job)}, answer)

    def note(self, action: str, **fields: object) -> None:
        """Write it down."""
        self._audit.note(action, by="server", **fields)

    def _begin(self, name: str, secret: bytes, wish: dict[str, object]) -> Job:
        """A new run of a job; a job of that name that was here before keeps its run file."""
        run_file = self._free(name)
        spool = Spool.beside(run_file)
        spool.create()
        info: dict[str, object] = {
            "job": name,
            "run_id": uuid.uuid4().hex,
            "name": run_file.stem,
            "command": str(wish.get("command", ""))[:10_000],
            "starprof_version": __version__,
            "started_unix_ns": time.time_ns(),
            "ended_unix_ns": None,
            "exit_code": None,
            "node": 0,
        }
        held = lock(spool, run_file)
        runinfo.write(spool.run_json, info)
        return Job(name, secret, run_file, Inbox(spool, str(info["run_id"])), held, info)

    def _free(self, name: str) -> Path:
        number = 1
        while True:
            stem = name if number == 1 else f"{name}-{number}"
            path = self._folder / f"{stem}{RUN_SUFFIX}"
            if not path.exists() and not Spool.beside(path).root.exists():
                return path
            number += 1


def watched_name(job: Job) -> str:
    """Name under which the watch knows a job: that of its run file."""
    return job.run_file.stem


class Tokens:
    """The secrets that a server knows.

    Attributes:
        problems: why files of the folder are left out, a line each.
    """

    def __init__(self, *, shared: bytes | None = None, folder: Path | None = None) -> None:
        """Either one for all jobs, or a folder of files, each named after its job.

        Raises:
            UsageError: there is no such folder.
        """
        self.problems: list[str] = []
        self._shared = shared
        self._folder = folder
        self._seen: tuple[object, ...] | None = None
        self._known: dict[bytes, str | None] = {}
        if folder is not None and not folder.is_dir():
            raise UsageError(f"--token-dir {folder} is no folder")

    def read(self) -> dict[bytes, str | None]:
        """Each secret, and the name of its job (None: whatever its nodes say).

        One file that is not as it should be does not keep the others from being known.

        Raises:
            TransportError: this is the first time, and one is not as it should be.
            OSError: the folder can't be read.
        """
        if self._folder is None:
            return {} if self._shared is None else {self._shared: None}
        seen = self._state()
        if seen != self._seen:
            found, problems = self._load()
            if problems and self._seen is None:
                raise TransportError(problems[0])
            self._known, self.problems, self._seen = found, problems, seen
        return self._known

    def _state(self) -> tuple[object, ...]:
        assert self._folder is not None
        with os.scandir(self._folder) as entries:
            return tuple(sorted((entry.name, _changed_ns(entry)) for entry in entries))

    def _load(self) -> tuple[dict[bytes, str | None], list[str]]:
        assert self._folder is not None
        found: dict[bytes, str | None] = {}
        problems: list[str] = []
        for path in sorted(self._folder.iterdir()):
            if not _NAME.fullmatch(path.name) or not path.is_file() or len(found) >= MAX_JOBS:
                continue
            try:
                secret = _secret_in(path)
                if secret in found:
                    raise TransportError(f"{path} and {found[secret]} hold the same secret: each job needs its own")
            except (TransportError, OSError) as error:
                problems.append(str(error))
            else:
                found[secret] = path.name
        return found, problems


def _changed_ns(entry: os.DirEntry[str]) -> int:
    """When a file was changed, or its permissions; 0 where it can't be looked at, such as a link to nothing."""
    try:
        return entry.stat().st_ctime_ns
    except OSError:
        return 0


def _secret_in(path: Path) -> bytes:
    """The secret of a file.

    Raises:
        TransportError: others may read it, or it is too short.
    """
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise TransportError(f"others may read the secret in {path}: chmod 600 {path}")
    secret = path.read_bytes().strip()
    if len(secret) < MIN_SECRET_BYTES:
        raise TransportError(f"the secret in {path} is too short: at least {MIN_SECRET_BYTES} characters")
    return secret


def _refusal(why: str) -> bytes:
    return json.dumps({"ok": False, "schema": 1, "error": why, "usage": False}).encode()
