"""Metrics without step times: whether anything is slow can't be told; what differs is shown, and nobody is blamed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.counters import numbers
from starprof.analysis.gpu_peers import Gpus, Observation, against_peers, gpus, over_time
from starprof.analysis.host_peers import interfaces, pressure
from starprof.analysis.settings import Settings
from starprof.analysis.xids import XID_CHECKS, reported
from starprof.model import causes
from starprof.model.rundata import RunData
from starprof.model.verdict import Finding, Verdict

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("gpu_sample", "cpu_sample", "node_sample", "nic_sample", "disk_sample")
MAX_LISTED = 12
NEEDED = "slowdown is measured from step times: record the job with starprof, or add its log or a trace"
_ERRORS = {
    "ecc_uncorrected": "uncorrectable memory errors",
    "remapped_rows": "memory rows remapped",
    "nvlink_errors": "NVLink errors",
}


def judge(run: RunData, settings: Settings, empty: Verdict) -> Verdict | None:  # noqa: ARG001 - the judges' contract
    """`inconclusive`, with what is worth a look as evidence; None when there are step records, or no metrics.

    Args:
        run: an imported run.
        settings: not used: no threshold of slowness applies where no time is known.
        empty: the verdict to fill in.
    """
    if run.info.get("source_format") is None or _tells_times(run):
        return None
    if not any(len(run.samples.get(name, ())) for name in TABLES) and not reported(run):
        return None
    hosts = _hosts(run)
    found = _gpus(run, hosts)
    observations = _observations(run, found, hosts)
    observations.sort(key=lambda o: -o.weight)
    return replace(
        empty,
        findings=(_finding(observations),) if observations else (),
        reason=_reason(found, observations),
    )


def _tells_times(run: RunData) -> bool:
    """Whether the run holds step times, or what other judges look at."""
    durations = run.steps.columns.get("dur_us")
    steps = durations is not None and bool(np.isfinite(durations).any())
    others = (run.operations, run.collectives, run.link_tests)
    return steps or any(frame is not None and len(frame) > 0 for frame in others)


def _hosts(run: RunData) -> dict[int, str]:
    if len(run.nodes) == 0:
        return {}
    return {int(n): str(h or "") for n, h in zip(run.nodes["node"], run.nodes["host"], strict=True)}


def _gpus(run: RunData, hosts: dict[int, str]) -> Gpus | None:
    samples = run.samples.get("gpu_sample")
    return None if samples is None or len(samples) == 0 else gpus(samples, run.samples.get("gpu"), hosts)


def _observations(run: RunData, found: Gpus | None, hosts: dict[int, str]) -> list[Observation]:
    result: list[Observation] = []
    if found is not None:
        result += against_peers(found) + over_time(found) + _errors(run, found)
    nodes, nics = run.samples.get("node_sample"), run.samples.get("nic_sample")
    if nodes is not None and len(nodes):
        result += pressure(nodes, hosts)
    if nics is not None and len(nics):
        result += interfaces(nics, run.samples.get("nic"), hosts)
    return result + _xids(run, hosts)


def _errors(run: RunData, found: Gpus) -> list[Observation]:
    """Errors that were counted while the metrics were taken, on fewer than half of the GPUs."""
    groups = run.samples["gpu_sample"].sort_values("mono_ns", kind="stable").groupby(["node", "gpu"])
    result = []
    for column, words in _ERRORS.items():
        grown = np.array([_grown(rows, column) for _, rows in groups])
        with_errors = np.flatnonzero(grown > 0)
        if len(with_errors) * 2 >= max(len(grown), 2):
            continue
        result += [
            Observation(
                1.1,
                f"{found.names[g]} counted {grown[g]:.0f} {words} meanwhile, most others none.",
                f"look at the error counters of {found.names[g]} (nvidia-smi -q)",
            )
            for g in with_errors
        ]
    return result


def _grown(rows: pd.DataFrame, column: str) -> float:
    """Growth of a counter over its samples; falls are resets and count nothing."""
    values = numbers(rows, column)
    step = np.diff(values[~np.isnan(values)])
    return float(step[step > 0].sum())


def _xids(run: RunData, hosts: dict[int, str]) -> list[Observation]:
    once = dict.fromkeys(replace(one, mono_ns=0.0) for one in reported(run))
    result = []
    for one in list(once)[:MAX_LISTED]:
        host = hosts.get(one.node, "")
        where = (f" of GPU {one.gpu}" if one.gpu else "") + (f" on {host}" if host else "")
        text = f"The driver reported {one.words}{where}."
        result.append(Observation(1.3 if one.meaning.of_hardware else 0.9, text, XID_CHECKS[one.meaning.kind]))
    return result


def _finding(observations: list[Observation]) -> Finding:
    lines = [o.text for o in observations[:MAX_LISTED]]
    if len(observations) > MAX_LISTED:
        lines.append(f"{len(observations) - MAX_LISTED} more differ less.")
    checks = "; ".join(dict.fromkeys(o.check for o in observations[:3]))
    return Finding(
        kind="chronic",
        cause=causes.UNKNOWN,
        evidence=tuple(lines),
        action=f"Nothing yet: none of this shows that the job is slower for it. To look closer: {checks}.",
        verify="Step times with and without the difference.",
        next=f"{NEEDED[0].upper()}{NEEDED[1:]}.",
    )


def _reason(found: Gpus | None, observations: list[Observation]) -> str:
    start = f"These are metrics without step times, and {NEEDED}."
    if observations:
        return f"{start} Nobody is blamed; what differs is listed as worth a look."
    if found is not None and not found.judged.any():
        return f"{start} No GPU was busy for long enough to be compared."
    return f"{start} Nothing in them stands out from its peers."
