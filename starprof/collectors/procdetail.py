"""Per process: the kept-open files, and what is read of them once a second (of a rank's children every two)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from starprof.collectors.base import NodeContext, Rows
from starprof.collectors.notes import Notes, Pace
from starprof.collectors.procfile import ProcFile, read_once
from starprof.collectors.procstat import Stat, Status, command_name, field, parse_stat, parse_status
from starprof.model.schema import BY_NAME, INT_NULL

_PROCESS = BY_NAME["process"]
_SECOND_NS = 1_000_000_000
_SLACK_NS = 50_000_000
"""A tick may come early by that much."""
_RANK_NS = _SECOND_NS - _SLACK_NS
_CHILD_NS = 2 * _SECOND_NS - _SLACK_NS
_CHILD_STATUS_NS = 6 * _SECOND_NS - _SLACK_NS
"""How often the status file of a rank's child is read: it is the dearest of all."""
_MOST_NAMES = 10_000
_MINUTE_NS = 60 * _SECOND_NS
_FDS_NS = 10 * _SECOND_NS - _SLACK_NS
_PSS_SHARE = 0.0005
"""Most of one core that reading PSS may take; the kernel walks the page tables for it (17 ms a GiB)."""
_PSS_MOST_BYTES = 2 << 30
"""No PSS of larger processes: the read would be felt by the process itself."""

REAL_PROC = Path("/proc")
"""Only here system calls may stand in for files: with another procfs its pids are not this kernel's."""
MISSING_DETAIL = (INT_NULL,) * 14
"""The columns from `voluntary_switches` on, in a row between two detailed ones."""


class ProcessFiles:
    """Kept-open files of one process of a rank's tree; `clock_id` is what the clock of its CPU time takes."""

    __slots__ = (
        "allowed_cpus",
        "clock_id",
        "cpus",
        "due_ns",
        "fds_due_ns",
        "io",
        "is_rank",
        "pid",
        "pss_due_ns",
        "rank",
        "said",
        "schedstat",
        "stat",
        "status",
        "status_due_ns",
    )

    def __init__(self, pid: int, rank: int, is_rank: bool, stat: ProcFile) -> None:
        self.pid = pid
        self.clock_id = pid
        self.rank = rank
        self.is_rank = is_rank
        self.stat = stat
        self.schedstat: ProcFile | None = None
        self.status: ProcFile | None = None
        self.io: ProcFile | None = None
        self.due_ns = 0
        self.fds_due_ns = 0
        self.pss_due_ns = 0
        self.status_due_ns = 0
        self.cpus: str | None = None
        self.said = ""
        self.allowed_cpus = INT_NULL

    def scheduled(self) -> tuple[int, int]:
        """Time on a CPU and time runnable without one of the main thread, us.

        Raises:
            OSError: the process ended.
        """
        if self.schedstat is None:
            return INT_NULL, INT_NULL
        on_cpu, delay, _ = self.schedstat.read().split()
        return int(on_cpu) // 1000, int(delay) // 1000

    def close(self) -> None:
        """Close all descriptors."""
        for file in (self.stat, self.schedstat, self.status, self.io):
            if file is not None:
                file.close()


class DetailReader:
    """Reads what is needed seldom, and names the processes in table `process`."""

    def __init__(self, context: NodeContext, notes: Notes) -> None:
        self._proc = str(context.proc)
        self._real = context.proc == REAL_PROC
        self._node = context.node
        self._notes = notes
        self._tick_us = 1_000_000 // os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._users = _users()
        self._named: dict[int, tuple[str, str]] = {}
        self._pss_pace = Pace(_SECOND_NS, _PSS_SHARE, time.thread_time_ns)
        self._counts_blkio: bool | None = None

    def cpu_ns(self, pid: int) -> int:
        """CPU time of a process from its stat file: for a procfs that is not this kernel's.

        Raises:
            OSError: there is no such process.
        """
        return parse_stat(read_once(f"{self._proc}/{pid}/stat")).cpu_ticks * self._tick_us * 1000

    def open_process(self, pid: int, rank: int, is_rank: bool, rows: Rows) -> ProcessFiles | None:
        """Open a process of a rank's tree; None when it ended meanwhile. What may not be read stays NULL."""
        folder = f"{self._proc}/{pid}"
        try:
            files = ProcessFiles(pid, rank, is_rank, ProcFile(f"{folder}/stat", 512))
        except OSError as error:
            self._note_refusal(error, "stat", rows)
            return None
        for name, size in (("schedstat", 128), ("status", 4096), ("io", 512)):
            try:
                file = ProcFile(f"{folder}/{name}", size)
            except OSError as error:
                self._note_refusal(error, name, rows)
            else:
                setattr(files, name, file)
        return files

    def _note_refusal(self, error: OSError, name: str, rows: Rows) -> None:
        if isinstance(error, PermissionError):
            reason = f"/proc/PID/{name} may not be read: run as the job's user or with CAP_SYS_PTRACE"
        elif isinstance(error, FileNotFoundError) and name == "schedstat" and not self._has("self/schedstat"):
            reason = "no /proc/PID/schedstat: kernel without CONFIG_SCHED_INFO"
        elif isinstance(error, FileNotFoundError | ProcessLookupError):
            return  # it ended
        else:
            reason = f"/proc/PID/{name}: {error.strerror}"
        self._notes.unavailable(rows, name, reason)

    def _has(self, name: str) -> bool:
        return os.access(f"{self._proc}/{name}", os.F_OK)

    def read(self, files: ProcessFiles, mono_ns: int, rows: Rows) -> tuple[int, ...]:
        """The detailed columns of a process of a tree; sets when it is due next.

        Raises:
            OSError: the process ended.
        """
        # Spread over the second by pid, so that no tick has to read all processes.
        next_ns = _RANK_NS if files.is_rank else _CHILD_NS
        first = files.due_ns == 0
        files.due_ns = mono_ns + (next_ns * (500 + files.pid * 97 % 500) // 1000 if first else next_ns)
        data = files.stat.read()
        stat = parse_stat(data)
        allowed_cpus = self._allowed(files)
        said = command_name(data)
        new = allowed_cpus != files.allowed_cpus or said != files.said
        voluntary = involuntary = INT_NULL
        if files.is_rank or mono_ns >= files.status_due_ns or new:
            files.status_due_ns = mono_ns + _CHILD_STATUS_NS
            status = parse_status(files.status.read()) if files.status is not None else _NO_STATUS
            voluntary, involuntary = status.voluntary_switches, status.involuntary_switches
            allowed_cpus = files.allowed_cpus = status.allowed_cpus
            if (said, status.cpus) != (files.said, files.cpus):
                files.said, files.cpus = said, status.cpus
                self._name(files.pid, files.rank, data, status, mono_ns, rows)
        read_bytes, write_bytes = self._io(files, rows)
        pss = self._pss(files, stat.rss_pages * self._page_bytes, mono_ns, rows)
        tail = (read_bytes, write_bytes, self._blkio_us(stat, rows), *self._descriptors(files, mono_ns, rows))
        return (voluntary, involuntary, *self._memory_and_place(stat, pss), allowed_cpus, *tail)

    def _allowed(self, files: ProcessFiles) -> int:
        """Size of the affinity mask from the kernel itself: a tenth of the price of the status file."""
        if not self._real:
            return files.allowed_cpus
        try:
            return len(os.sched_getaffinity(files.pid))
        except OSError:
            return files.allowed_cpus

    def _memory_and_place(self, stat: Stat, pss_bytes: int) -> tuple[int, ...]:
        """The columns from `minor_faults` to `last_cpu`."""
        rss_bytes = stat.rss_pages * self._page_bytes
        return (stat.minor_faults, stat.major_faults, stat.threads, rss_bytes, pss_bytes, stat.last_cpu)

    def read_foreign(self, pid: int, mono_ns: int, rows: Rows) -> tuple[int, ...] | None:
        """The detailed columns of a foreign process; None when it ended meanwhile or may not be read."""
        try:
            data = read_once(f"{self._proc}/{pid}/stat")
            status = parse_status(read_once(f"{self._proc}/{pid}/status"))
        except OSError as error:
            self._note_refusal(error, "foreign", rows)
            return None
        stat = parse_stat(data)
        said = (command_name(data), status.cpus)
        if self._named.get(pid) != said:
            if len(self._named) > _MOST_NAMES:
                self._named.clear()
            self._named[pid] = said
            self._name(pid, -1, data, status, mono_ns, rows)
        switches = (status.voluntary_switches, status.involuntary_switches)
        tail = (status.allowed_cpus, INT_NULL, INT_NULL, self._blkio_us(stat, rows), INT_NULL, INT_NULL)
        return (*switches, *self._memory_and_place(stat, INT_NULL), *tail)

    def _blkio_us(self, stat: Stat, rows: Rows) -> int:
        return stat.blkio_ticks * self._tick_us if self._blkio_counts(rows) else INT_NULL

    def _blkio_counts(self, rows: Rows) -> bool:
        """Whether the kernel accounts block I/O delays: since 5.14 it does not unless asked, and then says 0."""
        if self._counts_blkio is None:
            try:
                self._counts_blkio = read_once(f"{self._proc}/sys/kernel/task_delayacct").strip() != b"0"
            except OSError:
                self._counts_blkio = True
            if not self._counts_blkio:
                self._notes.unavailable(rows, "blkio_delay_us", "off: turn on with sysctl kernel.task_delayacct=1")
        return self._counts_blkio

    def _io(self, files: ProcessFiles, rows: Rows) -> tuple[int, int]:
        if files.io is None:
            return INT_NULL, INT_NULL
        try:
            data = files.io.read()
        except PermissionError as error:
            self._note_refusal(error, "io", rows)
            files.io.close()
            files.io = None
            return INT_NULL, INT_NULL
        return field(data, b"\nread_bytes:"), field(data, b"\nwrite_bytes:")

    def _descriptors(self, files: ProcessFiles, mono_ns: int, rows: Rows) -> tuple[int, int]:
        """Open file descriptors and their limit, every ten seconds."""
        if mono_ns < files.fds_due_ns:
            return INT_NULL, INT_NULL
        files.fds_due_ns = mono_ns + _FDS_NS
        folder = f"{self._proc}/{files.pid}"
        try:
            # Since Linux 6.2 the size of that directory is their number: nothing has to be listed.
            count = Path(f"{folder}/fd").stat().st_size if self._real else 0
            return count or _entries(f"{folder}/fd"), _soft_limit(read_once(f"{folder}/limits"))
        except OSError as error:
            self._note_refusal(error, "fd", rows)
            return INT_NULL, INT_NULL

    def _pss(self, files: ProcessFiles, rss_bytes: int, mono_ns: int, rows: Rows) -> int:
        """PSS in bytes, at most once a minute for a process and within the budget of all."""
        if mono_ns < files.pss_due_ns or not self._pss_pace.due(mono_ns):
            return INT_NULL
        files.pss_due_ns = mono_ns + _MINUTE_NS
        if rss_bytes > _PSS_MOST_BYTES:
            self._notes.unavailable(rows, "pss_bytes", "not read for processes of more than 2 GiB: it would slow them")
            return INT_NULL
        try:
            data = read_once(f"{self._proc}/{files.pid}/smaps_rollup")
        except OSError as error:
            self._note_refusal(error, "smaps_rollup", rows)
            return INT_NULL
        finally:
            self._pss_pace.done(mono_ns)
        pss_kib = field(data, b"\nPss:")
        return pss_kib * 1024 if pss_kib >= 0 else INT_NULL

    def _name(self, pid: int, rank: int, stat: bytes, status: Status, mono_ns: int, rows: Rows) -> None:
        """A row of table `process`: at first sight, and again when the affinity mask changed."""
        user = self._users.get(status.uid, str(status.uid)) if status.uid >= 0 else None
        who = (self._node, pid, rank, parse_stat(stat).parent_pid, command_name(stat), user)
        cells = (*who, status.cpus or None, self._group(pid), mono_ns)
        rows.add(_PROCESS, cells)

    def _group(self, pid: int) -> str | None:
        """Path of the control group that governs the CPU: v1 controller `cpu`, else v2."""
        try:
            lines = read_once(f"{self._proc}/{pid}/cgroup").decode(errors="replace").splitlines()
        except OSError:
            return None
        unified = None
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if "cpu" in controllers.split(","):
                return path
            if not controllers:
                unified = path
        return unified


def _entries(folder: str) -> int:
    with os.scandir(folder) as entries:
        return sum(1 for _ in entries)


def _soft_limit(limits: bytes) -> int:
    """Soft limit of open files in /proc/PID/limits; NULL for none."""
    _, _, rest = limits.partition(b"Max open files")
    words = rest.split(maxsplit=1)
    return int(words[0]) if words and words[0].isdigit() else INT_NULL


_NO_STATUS = Status(INT_NULL, "", INT_NULL, INT_NULL, INT_NULL)


def _users() -> dict[int, str]:
    """User names of /etc/passwd; a directory service is not asked, it may block."""
    try:
        lines = read_once("/etc/passwd").decode(errors="replace").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        parts = line.split(":")
        if len(parts) > 2 and parts[2].isdecimal():
            found[int(parts[2])] = parts[0]
    return found
