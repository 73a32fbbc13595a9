"""The rank wants a CPU and does not get it: foreign load, a narrow affinity mask, or too many threads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starprof.analysis.causes.base import Case, Explanation, ms, pct
from starprof.analysis.causes.contrast import NAN, OverSpan, Span, over_span, rate
from starprof.analysis.causes.processes import CPU_PHASES, main_process
from starprof.analysis.counters import numbers
from starprof.model import causes

MIN_FOREIGN_SHARE = 0.1
"""A foreign process below this share of one core is not what slows a rank, unless the rank waited hardly longer."""

LEAST_FOREIGN_SHARE = 0.02
FOREIGN_OF_DELAY = 0.5
MORE_THREADS = 1.5

NARROW_FACTOR = 0.5
BUSY_CORE = 0.85


@dataclass(frozen=True, slots=True)
class _Delay:
    """Run-queue delay of one rank's main thread: seconds in the slow window, and the usual amount for as long."""

    seconds: float
    usual: float

    @property
    def gained(self) -> float:
        return max(0.0, self.seconds - self.usual)


def explain_affinity(case: Case) -> Explanation | None:
    """The rank may use far fewer cores than its peers or its own past, and keeps those busy."""
    found = [part for part in (_narrowed(case, row) for row in case.rows) if part is not None]
    if len(found) < len(case.rows):
        return None
    allowed, usual, threads, busy = found[0]
    if not (threads > allowed or busy >= BUSY_CORE):
        return None
    share = case.phases.share(*CPU_PHASES)
    return Explanation(
        cause=causes.AFFINITY,
        share=share,
        evidence=(
            f"{case.who} may run on {allowed:.0f} CPU(s) only, its peers on {usual:.0f}; it has {threads:.0f} threads "
            f"and keeps what it has {pct(min(busy, 1.0))} busy.",
            f"{pct(share)} of its excess lies in phases that need the CPU.",
        ),
        action=f"Widen the affinity mask of {case.who} (taskset, cpuset, OMP/KMP_AFFINITY, launcher binding).",
        verify=f"allowed_cpus of {case.who} should equal its peers', and its lateness should vanish.",
    )


def _narrowed(case: Case, row: int) -> tuple[float, float, float, float] | None:
    """(allowed CPUs, usual number, threads, busy share of the allowed CPUs) when the mask collapsed."""
    rows = main_process(case, row)
    if rows is None:
        return None
    start, end = case.span_ns(row)
    allowed = case.counters.mean(rows, "allowed_cpus", start, end)
    usual = [
        case.counters.mean(other, "allowed_cpus", *case.span_ns(peer))
        for peer in case.peers(row)
        if (other := main_process(case, peer)) is not None
    ]
    past = case.past_span_ns(row)
    if past is not None:
        usual.append(case.counters.mean(rows, "allowed_cpus", *past))
    usual = [u for u in usual if u == u]
    if not usual or allowed != allowed or allowed > NARROW_FACTOR * float(np.median(usual)):
        return None
    threads = case.counters.mean(rows, "threads", start, end)
    used = case.counters.grew(rows, "cpu_us", start, end).per_second / 1e6
    return allowed, float(np.median(usual)), threads, used / allowed


def explain_contention(case: Case) -> Explanation | None:
    """Foreign processes on the rank's cores, and run-queue delay that grew by as much as the rank is late."""
    delays = [delay for delay in (_delay(case, row) for row in case.rows) if delay is not None]
    if not delays or case.excess_s <= 0:
        return None
    gained = float(np.mean([delay.gained for delay in delays]))
    share = min(1.0, gained / case.excess_s)
    if share < 0.1:
        return None
    foreign = [use for row in case.rows for use in _foreign(case, row, gained)]
    if not foreign:
        return _crowded(case, gained, share)
    name, pid, cpu, _ = max(foreign, key=lambda f: f[3])
    use = sum(f[3] for f in foreign) / len(case.rows)
    others = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
    spread = case.phases.share(*CPU_PHASES)
    return Explanation(
        cause=causes.CPU_CONTENTION,
        share=share,
        evidence=(
            f"Outside the job, process {pid} ({name}){others} used {pct(use)} of a CPU on the cores where {case.who} "
            f"ran (mostly CPU {cpu}).",
            f"{case.who} was runnable but not running for {ms(gained * 1e6)} more than usual: {pct(share)} of the "
            f"{ms(case.excess_s * 1e6)} by which it was late ({pct(spread)} of that in phases that need the CPU).",
        ),
        action=f"Move or stop process {pid} ({name}) on {_host(case)}, or bind {case.who} to other cores.",
        verify=f"run_delay_us of {case.who} should grow no faster than its peers', and its lateness should vanish.",
        partly=f"waiting for a CPU beside process {pid} ({name}) covers {pct(share)}",
    )


def _crowded(case: Case, gained: float, share: float) -> Explanation | None:
    """Run-queue delay without foreign load: the job's own threads are too many for the cores."""
    node = case.own.infos[case.rows[0]].node
    cores = case.counters.cores.get(node)
    here = [row for row in range(case.own.shape[0]) if case.own.infos[row].node == node]
    threads = sum(
        case.counters.mean(rows, "threads", *case.span_ns(row))
        for row in here
        if (rows := main_process(case, row)) is not None
    )
    delayed = f"waiting for a CPU covers {pct(share)} ({ms(gained * 1e6)}), and no foreign process was seen"
    if cores is None or not threads > cores or not (len(here) > cores or _more_threads(case)):
        return Explanation(causes.UNKNOWN, 0.0, (), "", "", partly=delayed)
    return Explanation(
        cause=causes.OVERSUBSCRIPTION,
        share=share,
        evidence=(
            f"{case.who} was runnable but not running for {ms(gained * 1e6)} more than usual ({pct(share)} of its "
            f"lateness); the {len(here)} ranks of {_host(case)} have {threads:.0f} threads for {cores} CPUs, and no "
            "foreign process was busy there.",
        ),
        action=f"Set OMP_NUM_THREADS to {max(1, cores // max(1, len(here)))} per rank (cores / ranks of the node).",
        verify=f"run_delay_us of {case.who} should fall to that of its peers.",
        partly=delayed,
    )


def _more_threads(case: Case) -> bool:
    """Late ranks have more threads than their peers or than before: most of a process's threads only sleep."""

    def count(row: int, span: Span) -> float:
        rows = main_process(case, row)
        return NAN if rows is None else case.counters.mean(rows, "threads", *span)

    found = [over_span(case, row, count) for row in case.rows]
    return any(part.known and part.now >= MORE_THREADS * part.usual_low for part in found)


def _delay(case: Case, row: int) -> _Delay | None:
    """Run-queue delay in the slow window, and what the rank's past or its peers, if more, would show meanwhile."""
    rows = main_process(case, row)
    if rows is None:
        return None
    start, end = case.span_ns(row)
    seconds = (end - start) / 1e9
    grown = case.counters.grew(rows, "run_delay_us", start, end)
    if grown.seconds <= 0:
        return None
    usual = over_span(case, row, _delay_rate(case)).usual_high
    return _Delay(grown.per_second * seconds / 1e6, (usual if usual == usual else 0.0) * seconds / 1e6)


def _delay_rate(case: Case) -> OverSpan:
    return lambda row, span: rate(case.counters, main_process(case, row), "run_delay_us", span)


def _foreign(case: Case, row: int, delayed_s: float) -> list[tuple[str, int, int, float]]:
    """(name, pid, CPU, share of that CPU) of busy processes outside the job on CPUs that the rank runs on."""
    rows = main_process(case, row)
    info = case.own.infos[row]
    if rows is None:
        return []
    start, end = case.span_ns(row)
    times = numbers(rows, "mono_ns")
    mine = numbers(rows, "last_cpu")[(times >= start) & (times <= end)]
    cpus = {int(c) for c in mine[~np.isnan(mine)]}
    found = []
    for (node, pid, rank), samples in case.counters.series("process_sample", ("node", "pid", "rank")).items():
        if rank != -1 or node != info.node:
            continue
        use = case.counters.grew(samples, "cpu_us", start, end)
        busy = use.amount / 1e6 / max((end - start) / 1e9, 1e-9)
        where = numbers(samples, "last_cpu")
        shared = np.isin(where, list(cpus))
        enough = busy >= LEAST_FOREIGN_SHARE and use.amount / 1e6 >= FOREIGN_OF_DELAY * delayed_s
        if not (enough or busy >= MIN_FOREIGN_SHARE) or not shared.any():
            continue
        cpu = int(np.bincount(where[shared].astype(int)).argmax())
        found.append((_process_name(case, node, pid), int(pid), cpu, busy))
    return found


def _process_name(case: Case, node: float, pid: float) -> str:
    named = case.counters.series("process", ("node", "pid")).get((node, pid))
    return "?" if named is None else str(named["name"].iloc[-1])


def _host(case: Case) -> str:
    return case.counters.host(case.own.infos[case.rows[0]].node)
