"""What a run can be said to tell: how large it is, whether ranks wait for each other, and whether it has a course.

Imported runs may hold each worker's own time only, means over many steps, tests of links, or counters without any
step; sentences made for recorded steps would be wrong for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from starprof.model.rundata import RunData
from starprof.model.verdict import Verdict
from starprof.reports import facts

OWN_TIMES = "own"
"""Column `timing` of table `run`: what each rank needs for itself; nobody waits, or the source leaves it out."""

JOB_TIMES = "job"


@dataclass(frozen=True, slots=True)
class Told:
    """What sentences about a run may say.

    Attributes:
        waits: ranks wait for each other, so that a slow one makes everybody's steps slower.
        course: there is more than one moment: what is slow can be said to last, or to come and go.
        links: it is about connections, not ranks.
    """

    waits: bool = True
    course: bool = True
    links: bool = False


def told(run: RunData) -> Told:
    """What may be said about a run."""
    return Told(
        waits=run.info.get("timing") != OWN_TIMES,
        course=_has_course(run),
        links=run.link_tests is not None and not run.ranks,
    )


def _has_course(run: RunData) -> bool:
    if len(run.steps.steps) > 1 or run.operations is not None or any(len(f) > 1 for f in run.samples.values()):
        return True
    if run.collectives is None:
        return not facts.imported_from(run)
    return any(run.collectives[name].nunique() > 1 for name in ("step", "sequence"))


def size(run: RunData, verdict: Verdict) -> str:
    """How much was looked at: ranks and nodes, or what there is instead."""
    if run.info.get("timing") == JOB_TIMES:
        return "one series for the whole job" + (f" of {verdict.ranks} ranks" if verdict.ranks > 1 else "")
    if run.link_tests is not None and not run.ranks:
        places = {*run.link_tests["first"], *run.link_tests["second"]}
        return f"{_count(len(run.link_tests), 'test')} between {_count(len(places), 'place')}"
    if not run.ranks and run.samples:
        gpus = run.samples.get("gpu_sample")
        hosts = {node for frame in run.samples.values() if "node" in frame for node in frame["node"].unique()}
        devices = 0 if gpus is None else len(gpus.groupby(["node", "gpu"], dropna=False).size())
        seen = f"{_count(devices, 'GPU')} of " if devices else ""
        return f"counters of {seen}{_count(len(hosts), 'host')}"
    nodes = facts.node_count(run)
    return _count(verdict.ranks, "rank") + (f" on {_count(nodes, 'node')}" if nodes else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
