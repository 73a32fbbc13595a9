"""Findings on time that all ranks lose from the first step on: a quota, a mask of few CPUs, or too many threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from starprof.analysis.causes import pct
from starprof.analysis.causes.base import COINCIDES
from starprof.analysis.causes.processes import main_process
from starprof.analysis.confined import confined
from starprof.analysis.findings import Context
from starprof.analysis.slowness import Slowness
from starprof.model import causes
from starprof.model.ranklists import listed
from starprof.model.verdict import Finding

Words = tuple[tuple[str, ...], str, str]
"""Evidence, action, how to verify."""

MENTIONED = 0.05


def counted_finding(context: Context, slowness: Slowness) -> Finding:
    """All ranks lose time from the first step on, as counters of lost time show."""
    words = {causes.CGROUP_THROTTLING: _quota, causes.AFFINITY: _few_cpus}.get(slowness.span, _crowd)
    evidence, action, verify = words(context, slowness.after_us)
    alone = context.own.shape[0] == 1
    peers = "there is nobody to compare it with" if alone else "on all ranks alike: no rank is late"
    return replace(
        context.base(slowness),
        cause=slowness.span,
        cause_share=1.0,
        confidence=COINCIDES,
        evidence=(*evidence, f"It was so from the first step on, and {peers}; no step record shows it."),
        action=action,
        verify=verify,
    )


def _who(context: Context) -> str:
    ranks = context.own.shape[0]
    return f"all {ranks} ranks" if ranks > 1 else f"rank {context.own.rank(0)}, the only one,"


def _quota(context: Context, share: float) -> Words:
    first = f"The CPU quota of their control groups stops {_who(context)} for {pct(share)} of their own time."
    return (
        (first,),
        "Raise or remove the quota (CPU limit of the container), or start fewer threads and loader workers.",
        "nr_throttled must stand still and the steps become shorter; if they do not, the quota was not the cause.",
    )


def _few_cpus(context: Context, share: float) -> Words:
    node = next(info.node for info in context.own.infos)
    found = confined(context, node)
    assert found is not None  # the slowness came from it
    place = context.counters.host(node)
    which = f"CPU{'s' if len(found.cpus) > 1 else ''} {listed(found.cpus)}"
    idle = f" while the others are idle: the machine's mean CPU use of {pct(found.node_busy)} hides it"
    return (
        (
            f"The {found.processes} processes of the job on {place} may run on {found.allowed} of {found.cores} CPUs "
            f"only ({which}), and keep {'it' if found.allowed == 1 else 'them'} {pct(found.busy)} busy"
            f"{idle if found.node_busy == found.node_busy else ''}.",
            f"The main thread of {_who(context)} was runnable but not running for {pct(share)} of its own time.",
        ),
        "Widen the affinity mask: look for KMP_AFFINITY, GOMP_CPU_AFFINITY and OMP_PROC_BIND (a library may set them "
        "when it is imported), taskset, the cpuset of the container, and the launcher's binding. Loader workers "
        "inherit the mask of the process that starts them.",
        f"allowed_cpus must be a fair share of the {found.cores} CPUs and the steps become shorter; if they do not, "
        "the mask was not the cause.",
    )


def _crowd(context: Context, share: float) -> Words:
    own, node = context.own, context.own.infos[0].node
    here = [row for row, info in enumerate(own.infos) if info.node == node]
    cores = context.counters.cores.get(node)
    first = (
        f"All {own.shape[0]} ranks were runnable but not running for {pct(share)} of their own time: on "
        f"{context.counters.host(node)} {len(here)} ranks have {_threads(context, here):.0f} threads for "
        f"{cores if cores else 'an unknown number of'} CPUs."
    )
    per_rank = max(1, (cores or len(here)) // max(1, len(here)))
    return (
        (first, *_loader_part(context)),
        f"Set OMP_NUM_THREADS={per_rank} per rank (cores / ranks of the node) and bind each rank to its cores.",
        "run_delay_us must nearly stand still; if the steps are no shorter then, threads were not the cause.",
    )


def _loader_part(context: Context) -> list[str]:
    """How much of the own time waiting for data is: a crowded machine slows everything, not the loader alone."""
    own = context.own
    part = float(np.nansum(own.phases["data_wait"]) / max(1.0, float(np.nansum(own.work))))
    if not MENTIONED <= part < context.settings.min_cause_share:
        return []
    return [f"Waiting for data is only {pct(part)} of their own time: the loader is not the whole story."]


def _threads(context: Context, rows: list[int]) -> float:
    """Threads of some ranks' own processes, where they were counted."""
    sampled = ((row, samples) for row in rows if (samples := main_process(context, row)) is not None)
    counts = [context.counters.mean(samples, "threads", *context.whole_span_ns(row)) for row, samples in sampled]
    return sum(count for count in counts if count == count)
