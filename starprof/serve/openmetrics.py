"""OpenMetrics 1.0 text of the jobs that a server follows.

Labels are bounded: nodes by number, and only ranks that are late have series of their own, so that a job of thousands
of ranks is a handful of series as long as nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from starprof.serve.jobwatch import JobWatch

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its samples are told together."""

    name: str
    kind: str
    help: str
    unit: str = ""


_FAMILIES = {
    family.name: family
    for family in (
        Family("starprof_ranks", "gauge", "Ranks of the job."),
        Family("starprof_step", "gauge", "Newest step that all ranks have told."),
        Family("starprof_steps", "counter", "Steps judged."),
        Family("starprof_step_seconds", "gauge", "Median time of a recent step.", "seconds"),
        Family("starprof_step_rate", "gauge", "Steps per second."),
        Family("starprof_judged_age_seconds", "gauge", "Time since the newest step was judged.", "seconds"),
        Family("starprof_verdict_latency_seconds", "gauge", "From a step's end to its verdict.", "seconds"),
        Family("starprof_mode", "stateset", "Synchronisation mode."),
        Family("starprof_late_ranks", "gauge", "Ranks that are late now, by how sure that is."),
        Family("starprof_rank_slowdown_ratio", "gauge", "Own time of a late rank over its peers'.", "ratio"),
        Family("starprof_rank_lost_seconds", "gauge", "Time that a late rank has cost the job.", "seconds"),
        Family("starprof_mode_switches", "counter", "Changes of the synchronisation mode."),
        Family("starprof_lost_rows", "counter", "Records that were dropped, as those who dropped them said."),
        Family("starprof_duplicate_rows", "counter", "Records that came again and were left out."),
        Family("starprof_node_heard_age_seconds", "gauge", "Time since a node's agent was heard.", "seconds"),
        Family("starprof_node_clock_offset_seconds", "gauge", "Node 0's clock minus the node's.", "seconds"),
        Family("starprof_node_clock_error_seconds", "gauge", "Bound of the error of that offset.", "seconds"),
        Family("starprof_agent_cpu_seconds", "counter", "CPU time of a node's agent.", "seconds"),
        Family("starprof_agent_resident_bytes", "gauge", "Memory of a node's agent.", "bytes"),
    )
}

_Sample = tuple[str, dict[str, str], float]


def text(jobs: Mapping[str, JobWatch], now_s: float) -> str:
    """Everything, as a server of metrics reads it."""
    by_family: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in _FAMILIES}
    for job in sorted(jobs):
        for name, labels, value in _samples(jobs[job], now_s):
            by_family[name].append(({"job": job, **labels}, value))
    lines = []
    for name, samples in by_family.items():
        if samples:
            lines += _head(_FAMILIES[name])
            suffix = "_total" if _FAMILIES[name].kind == "counter" else ""
            lines += [f"{name}{suffix}{{{_labels(labels)}}} {_number(value)}" for labels, value in samples]
    return "\n".join([*lines, "# EOF", ""])


def _samples(watch: JobWatch, now_s: float) -> Iterator[_Sample]:
    yield "starprof_ranks", {}, len(watch.ranks)
    yield "starprof_steps", {}, watch.steps
    step, step_ms, rate, age_s = watch.last_step(), watch.step_ms(), watch.steps_per_s(), watch.judged_age_s(now_s)
    for name, value in (
        ("starprof_step", step),
        ("starprof_step_seconds", None if step_ms is None else step_ms / 1e3),
        ("starprof_step_rate", rate),
        ("starprof_judged_age_seconds", age_s),
    ):
        if value is not None:
            yield name, {}, value
    if watch.latencies_s:
        for quantile in (0.5, 0.99):
            value = float(np.quantile(np.array(watch.latencies_s), quantile))
            yield "starprof_verdict_latency_seconds", {"quantile": str(quantile)}, value
    yield "starprof_mode", {"starprof_mode": watch.mode}, 1
    blames = watch.blames(now_s)
    for status in ("provisional", "confirmed"):
        yield "starprof_late_ranks", {"status": status}, sum(blame.status == status for blame in blames)
    for blame in blames:
        who = {"rank": str(blame.rank), "host": blame.host}
        yield "starprof_rank_slowdown_ratio", {**who, "cause": blame.cause}, blame.slowdown
        yield "starprof_rank_lost_seconds", who, blame.lost_s
    yield "starprof_mode_switches", {}, len(watch.switches)
    yield "starprof_lost_rows", {}, watch.lost_rows
    yield "starprof_duplicate_rows", {}, watch.tail.duplicates
    yield from _node_samples(watch, now_s)


def _node_samples(watch: JobWatch, now_s: float) -> Iterator[_Sample]:
    for number, node in sorted(watch.nodes.items()):
        who = {"node": str(number), "host": node.host}
        if node.heard_s:
            yield "starprof_node_heard_age_seconds", who, now_s - node.heard_s
            yield "starprof_agent_cpu_seconds", who, node.agent_cpu_us / 1e6
            yield "starprof_agent_resident_bytes", who, node.agent_rss_bytes
        offset = watch.clocks[number].now() if number in watch.clocks else None
        if offset is not None:
            yield "starprof_node_clock_offset_seconds", who, offset.offset_ns / 1e9
            yield "starprof_node_clock_error_seconds", who, offset.error_ns / 1e9


def _head(family: Family) -> list[str]:
    unit = [f"# UNIT {family.name} {family.unit}"] if family.unit else []
    return [f"# TYPE {family.name} {family.kind}", *unit, f"# HELP {family.name} {family.help}"]


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    whole = value.encode("utf-8", "replace").decode()
    return whole.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"
