"""Why changing ranks are late: what all of them have in common on the host."""

from __future__ import annotations

import numpy as np

from starprof.analysis.binding import bindings
from starprof.analysis.causes.base import COINCIDES, Case, Explanation, ms, pct
from starprof.analysis.causes.contrast import rate
from starprof.analysis.causes.processes import host_phases, main_process
from starprof.analysis.counters import numbers
from starprof.model import causes

UNBOUND = 0.9
MIN_MOVES = 0.1
SPARSE = 0.3
MAX_ONE_PHASE = 0.8


def explain_rotating(case: Case) -> Explanation | None:
    """Run-queue delay, unbound processes that move between NUMA nodes, or pauses of the whole process."""
    if case.phases.share(*host_phases(case)) < case.settings.min_cause_share:
        return None
    return _crowded(case) or _unbound(case) or _pauses(case)


def _lost_s(case: Case) -> float:
    """Time that all late ranks lost, seconds."""
    return sum(float(np.nansum(values)) for values in case.lost_us.values()) / 1e6


def _crowded(case: Case) -> Explanation | None:
    """All that the late ranks lost they spent in the run queue."""
    delays = []
    for row in case.rows:
        start, end = case.span_ns(row)
        per_second = rate(case.counters, main_process(case, row), "run_delay_us", (start, end))
        delays.append(per_second / 1e6 * (end - start) / 1e9)
    lost = _lost_s(case)
    known = [d for d in delays if d == d]
    if not known or lost <= 0 or sum(known) < case.settings.min_cause_share * lost:
        return None
    node = case.own.infos[case.rows[0]].node
    cores = case.counters.cores.get(node)
    here = sum(info.node == node for info in case.own.infos)
    return Explanation(
        cause=causes.OVERSUBSCRIPTION,
        share=min(1.0, sum(known) / lost),
        evidence=(
            f"The late ranks were runnable but not running for {ms(sum(known) * 1e6)} in all, they lost "
            f"{ms(lost * 1e6)}: the ranks and their threads compete for the CPUs.",
        ),
        action="Give each rank its own cores"
        + (f" ({max(1, cores // max(1, here))} of {cores}) and set OMP_NUM_THREADS to their number." if cores else "."),
        verify="run_delay_us of all ranks should nearly stand still, and the late steps become rare.",
    )


def _unbound(case: Case) -> Explanation | None:
    """Processes without a binding that move over the CPUs of a machine with several NUMA nodes."""
    table = {binding.rank: binding for binding in bindings(case.run)}
    found = [(row, moves) for row in case.rows if (moves := _moves(case, row)) is not None]
    unbound = [
        (row, moves) for row, moves in found if moves >= MIN_MOVES and (table[case.own.rank(row)].numa_nodes or 1) > 1
    ]
    if not found or 2 * len(unbound) < len(case.rows):
        return None
    node = case.own.infos[unbound[0][0]].node
    domains = table[case.own.rank(unbound[0][0])].numa_nodes
    moves = float(np.mean([m for _, m in unbound]))
    share = case.phases.share(*host_phases(case))
    commands = [b.command for b in table.values() if b.command]
    hint = f", such as {commands[0]}" if commands else ""
    return Explanation(
        cause=causes.AFFINITY,
        share=share,
        evidence=(
            f"The ranks may run on all CPUs of a host with {domains} NUMA nodes ({case.counters.host(node)}) and were "
            f"seen on another CPU than before in {pct(moves)} of the samples.",
            f"{pct(share)} of the excess lies on the host, in changing ranks; no rank and no node is at fault.",
        ),
        action=f"Bind each rank to the cores of one NUMA node, its GPU's{hint}; do not exchange nodes.",
        verify="With every rank bound the late steps must become rare; if they do not, moving between CPUs was not the "
        f"cause. The gain is at most the {ms(_lost_s(case) * 1e6)} that the late ranks lost.",
        certainty=COINCIDES,
        against=("That the moves make the stalls is concluded from the shape, not measured: binding is the test.",),
    )


def _moves(case: Case, row: int) -> float | None:
    """Share of the samples in which an unbound rank was on another CPU than before; None when bound or unknown."""
    rows = main_process(case, row)
    cores = case.counters.cores.get(case.own.infos[row].node)
    if rows is None or cores is None:
        return None
    allowed = case.counters.mean(rows, "allowed_cpus", *case.span_ns(row))
    where = numbers(rows, "last_cpu")
    where = where[~np.isnan(where)]
    if not allowed >= UNBOUND * cores or len(where) < 2:
        return None
    return float((np.diff(where) != 0).mean())


def _pauses(case: Case) -> Explanation | None:
    """Few late steps, each anywhere in the step: something stops the process as a whole."""
    inside = slice(*case.window)
    sparse = float(case.steps[inside].mean()) <= SPARSE
    largest = case.phases.ranked()
    if not sparse or not largest or largest[0][1] >= MAX_ONE_PHASE:
        return None
    lost = [float(v[v > 0].mean()) for v in case.lost_us.values() if (v > 0).any()]
    if not lost or np.median(lost) < case.own.healthy_step_us:
        return None
    recorded = case.run.steps.columns.get("gc_us")
    hooked = recorded is not None and bool(np.nansum(recorded) > 0)
    collector = (
        "Python's garbage collector was recorded and did not run then."
        if hooked
        else "Whether Python's garbage collector ran then was not recorded."
    )
    return Explanation(
        cause=causes.HOST_PAUSE,
        share=1.0,
        evidence=(
            f"The process stood still for about {ms(float(np.median(lost)))} at a time, in whatever phase it was, each "
            f"time on another rank. {collector}",
        ),
        action="Disable automatic garbage collection and collect on all ranks in the same step; that lets the pauses "
        "coincide instead of adding up, but does not make one shorter (gc.freeze and fewer live objects do).",
        verify="The pauses should then come in the same steps on all ranks; if they do not, the collector was not the "
        "cause.",
        certainty=COINCIDES,
        next="Record with the hook active, so that garbage collections are timed."
        if not hooked
        else "Profile the ranks with a sampling profiler to see what stops them.",
    )
