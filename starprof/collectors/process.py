"""The process trees of the ranks, and foreign processes that use much CPU.

Per tick and process of a tree one `clock_gettime` (CPU time of all threads, in ns: /proc/PID/stat counts in ticks of
10 ms), and for the rank itself one read of /proc/PID/schedstat (main thread: where the hook's spans are measured; the
schedstat of all threads would take 40 reads for a usual rank). The rest is read once a second, of a rank's children
every two, at another tick for each process. Arguments and environment of processes are never read.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from starprof.collectors.base import NodeContext, Rows, Unavailable
from starprof.collectors.cpu import STAT_BYTES
from starprof.collectors.foreign import CpuClock, ForeignScan, Heavy
from starprof.collectors.notes import Notes, Pace
from starprof.collectors.procdetail import MISSING_DETAIL, REAL_PROC, DetailReader, ProcessFiles
from starprof.collectors.procfile import TickFile, shared
from starprof.collectors.procstat import field
from starprof.collectors.tree import ProcessTree
from starprof.model.schema import BY_NAME, INT_NULL

_PROCESS_SAMPLE = BY_NAME["process_sample"]
_SECOND_NS = 1_000_000_000
_MANY = 64
"""With more processes in the trees than this, children of ranks are sampled at 1 Hz."""
_MOST = 512
"""No more processes than this are sampled, so that descriptors and cost stay bounded."""
_FOREIGN = -1
_NOT_READ = (INT_NULL, INT_NULL)
_SCAN_SHARE = 0.001
"""Most of one core that looking through all processes of the node may take."""
_KERNEL_NS = 5 * _SECOND_NS - 50_000_000
_JOB_SETTLES_NS = 10 * _SECOND_NS
"""Other processes of the job count as foreign only that long after the last rank appeared: they may become ranks."""


def clock_id(pid: int) -> int:
    """Id of the CPU clock of a process, as clock_getcpuclockid(3) makes it."""
    return (~pid << 3) | 2


def kernel_cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process, from its CPU clock.

    Raises:
        OSError: there is no such process.
    """
    return time.clock_gettime_ns(clock_id(pid))


class ProcessCollector:
    """Rows of `process_sample` and `process`; keeps `NodeContext.tree` current."""

    name = "process"
    dear = False

    def __init__(self) -> None:
        self._context = NodeContext()
        self._tracked: dict[int, ProcessFiles] = {}
        self._rank_pids: dict[int, int] = {}
        self._settled_ns = 0
        self._forks = INT_NULL
        self._ended = False
        self._kernel_due_ns = 0
        self._stat: TickFile | None = None
        self._pace = Pace(_SECOND_NS, _SCAN_SHARE, time.thread_time_ns)
        self._clock: CpuClock = kernel_cpu_ns

    def open(self, context: NodeContext, rows: Rows) -> None:
        """Look at procfs once.

        Raises:
            Unavailable: procfs can't be listed.
        """
        self._context = context
        self._notes = Notes(self.name, context.node)
        self._tree = ProcessTree(str(context.proc))
        self._detail = DetailReader(context, self._notes)
        # The kernel's clocks are of the real processes: with another procfs they come from its stat files.
        self._clock = kernel_cpu_ns if context.proc == REAL_PROC else self._detail.cpu_ns
        try:
            self._stat = shared(context.shared, context.proc / "stat", STAT_BYTES)
        except OSError:
            self._stat = None
        self._foreign = ForeignScan(self._clock)
        self._kernel_threads = ForeignScan(self._clock)
        try:
            self._tree.refresh({})  # the ranks join at the first sample
        except OSError as error:
            raise Unavailable(f"{context.proc} can't be listed: {error.strerror}") from error
        hidden = _why_foreign_hidden(context.proc)
        if hidden:
            self._notes.unavailable(rows, "foreign", hidden)

    def sample(self, mono_ns: int, rows: Rows) -> None:
        """Append a row for each process that is due; processes that ended just leave."""
        if self._context.rank_pids != self._rank_pids:
            self._rank_pids = dict(self._context.rank_pids)
            self._settled_ns = mono_ns + _JOB_SETTLES_NS
            self._refresh(rows)
        elif self._pace.due(mono_ns):
            if self._something_changed(mono_ns):
                self._refresh(rows)
            if self._rank_pids:
                self._sample_foreign(mono_ns, rows)
            self._pace.done(mono_ns)
        self._sample_tree(mono_ns, rows)

    def _something_changed(self, mono_ns: int) -> bool:
        """Whether a process may have started or one of ours ended: else listing procfs would be for nothing."""
        stat = self._stat.at(mono_ns) if self._stat is not None else b""
        before, self._forks = self._forks, field(stat, b"\nprocesses ")
        return self._forks != before or self._forks == INT_NULL or self._ended

    def _refresh(self, rows: Rows) -> None:
        """Follow the trees: open what is new, close what left."""
        tree = self._tree
        self._ended = False
        if not tree.refresh(self._rank_pids):
            return
        self._context.tree = dict(tree.rank_of)
        for pid in self._tracked.keys() - tree.rank_of.keys():
            self._tracked.pop(pid).close()
        ranks = set(self._rank_pids.values())
        for pid, rank in sorted(tree.rank_of.items(), key=lambda item: item[0] not in ranks):
            known = self._tracked.get(pid)
            if known is not None and known.rank == rank:
                known.is_rank = pid in ranks
                continue
            if known is not None:
                self._tracked.pop(pid).close()
            if len(self._tracked) >= _MOST:
                self._notes.unavailable(rows, "children", f"only {_MOST} processes of the ranks are sampled")
                break
            files = self._detail.open_process(pid, rank, pid in ranks, rows)
            if files is not None:
                files.clock_id = clock_id(pid) if self._clock is kernel_cpu_ns else pid
                self._tracked[pid] = files

    def _sample_tree(self, mono_ns: int, rows: Rows) -> None:
        clock = time.clock_gettime_ns if self._clock is kernel_cpu_ns else self._clock
        node, add = self._context.node, rows.add
        children_too = len(self._tracked) <= _MANY
        gone = []
        for pid, files in self._tracked.items():
            detailed = mono_ns >= files.due_ns
            if not (detailed or children_too or files.is_rank):
                continue
            try:
                cpu_us = clock(files.clock_id) // 1000
                on_cpu_us, run_delay_us = files.scheduled() if detailed or files.is_rank else _NOT_READ
                detail = self._detail.read(files, mono_ns, rows) if detailed else MISSING_DETAIL
            except OSError:  # it ended
                gone.append(pid)
                continue
            head = (node, mono_ns, pid, files.rank, int(files.is_rank), cpu_us, run_delay_us, on_cpu_us)
            add(_PROCESS_SAMPLE, head + detail)
        for pid in gone:
            self._tracked.pop(pid).close()
            self._tree.forget(pid)
        self._ended = self._ended or bool(gone)

    def _sample_foreign(self, mono_ns: int, rows: Rows) -> None:
        """Processes once a second, kernel threads (most of all pids, seldom heavy) every five seconds."""
        scans = [(self._foreign, self._tree.processes)]
        if mono_ns >= self._kernel_due_ns:
            self._kernel_due_ns = mono_ns + _KERNEL_NS
            scans.append((self._kernel_threads, self._tree.kernel_threads))
        excluded = self._not_foreign(mono_ns)
        for scan, pids in scans:
            found, reused = scan.scan(mono_ns, pids, excluded)
            for pid in reused:
                self._tree.forget(pid)
                self._ended = True
            for heavy in found:
                self._add_foreign(heavy, mono_ns, rows)

    def _not_foreign(self, mono_ns: int) -> set[int]:
        """The ranks' trees, starprof's own processes, and for a while what may still become a rank."""
        context, tree = self._context, self._tree
        excluded = set(tree.rank_of) | context.own_pids
        if context.supervisor_pid is None:
            return excluded
        roots = tree.job_roots(context.supervisor_pid)
        # Beside the job the supervisor starts only agents and ingesters.
        excluded |= (tree.children(context.supervisor_pid) | {context.supervisor_pid}) - roots
        if mono_ns < self._settled_ns:
            excluded |= {pid for pid in tree.parents if tree.below(pid, roots)}
        return excluded

    def _add_foreign(self, heavy: Heavy, mono_ns: int, rows: Rows) -> None:
        detail = self._detail.read_foreign(heavy.pid, mono_ns, rows)
        if detail is None:
            return
        node = self._context.node
        times = [(mono_ns, heavy.cpu_ns, detail)]
        if heavy.before_mono_ns is not None:
            times.insert(0, (heavy.before_mono_ns, heavy.before_cpu_ns, MISSING_DETAIL))
        for at_ns, cpu_ns, rest in times:
            head = (node, at_ns, heavy.pid, _FOREIGN, 0, cpu_ns // 1000, INT_NULL, INT_NULL)
            rows.add(_PROCESS_SAMPLE, head + rest)

    def close(self) -> None:
        """Close all descriptors."""
        for files in self._tracked.values():
            files.close()
        self._tracked.clear()
        if self._stat is not None:
            self._stat.close()
            self._stat = None


def _why_foreign_hidden(proc: Path) -> str:
    """Why processes outside the job can't be seen, or an empty text."""
    try:
        kernel_thread = (proc / "2" / "comm").read_bytes()
    except PermissionError:
        return f"{proc} is mounted with hidepid: run the agent as root or in the group of its gid= option"
    except OSError:
        kernel_thread = b""
    if kernel_thread == b"kthreadd\n":
        return ""
    if not os.access(proc / "1", os.F_OK):
        return f"{proc} is mounted with hidepid: run the agent as root or in the group of its gid= option"
    return "this is a PID namespace of its own (a container): processes outside it can't be seen"
