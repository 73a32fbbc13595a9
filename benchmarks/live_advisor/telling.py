"""Tables of the results, as markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import mean, median
from typing import Any

from faults import APPLY, FAULTS, HEALTHY, NEVER, PLAIN, STAYS_S

ONSET_S = STAYS_S[0]

Record = dict[str, Any]


def told(records: Iterable[Record]) -> list[str]:
    """The table of faults, and what is said of jobs in which nobody is slow."""
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        found.setdefault((record["fault"], record["how"]), {})[record["seed"]] = record
    lines = [
        "| fault, from second 4 on | jobs | time from the onset to the accuracy, of plain DDP's | to the end "
        "| accuracy lost, points | onset to action, s | to force, s | steps/s after it, of before the fault "
        "| gradients an update holds, of all | samples/s after it | moved | replicas |",
        "|" + "---|" * 12,
    ]
    lines += [_row(fault, found) for fault in FAULTS if (fault, APPLY) in found]
    return [*lines, "", *_never(found), *_healthy(found)]


def _row(fault: str, found: dict[tuple[str, str], dict[int, Record]]) -> str:
    jobs, plain = found[fault, APPLY], found.get((fault, PLAIN), {})
    pairs = [(jobs[seed], plain[seed]) for seed in sorted(jobs.keys() & plain.keys())]
    times = [
        a["tta_after_onset_s"] / b["tta_after_onset_s"]
        for a, b in pairs
        if a["tta_after_onset_s"] and b["tta_after_onset_s"]
    ]
    whole = [(a["seconds"] - ONSET_S) / (b["seconds"] - ONSET_S) for a, b in pairs]
    missed = [sum(job["tta_s"] is None for job in side) for side in zip(*pairs, strict=True)]
    lost = [100 * (b["accuracy"] - a["accuracy"]) for a, b in pairs]
    kept = [job["late_rate"] / job["usual_rate"] for job in jobs.values() if _rated(job)]
    cells = [
        fault,
        str(len(jobs)),
        _spread(times) + (f"; never: {missed[0]} with the advisor, {missed[1]} without" if any(missed) else ""),
        _spread(whole),
        f"{mean(lost):+.2f}" if lost else "",
        _spread([job["onset_to_action_s"] for job in jobs.values() if "onset_to_action_s" in job]),
        _spread([job["onset_to_force_s"] for job in jobs.values() if "onset_to_force_s" in job]),
        _spread(kept),
        _spread([job["share"] for job in jobs.values()]),
        _spread([job["share"] * job["late_rate"] / job["usual_rate"] for job in jobs.values() if _rated(job)]),
        f"{sum(bool(job['forced']) for job in jobs.values())} of {len(jobs)}",
        "same" if all(job["identical"] for job in jobs.values()) else "differ",
    ]
    return f"| {' | '.join(cells)} |"


def _rated(job: Record) -> bool:
    return bool(job["late_rate"] and job["usual_rate"])


def _never(found: dict[tuple[str, str], dict[int, Record]]) -> Iterator[str]:
    jobs, plain = found.get(("compute", NEVER), {}), found.get(("compute", PLAIN), {})
    ratios = [jobs[seed]["seconds"] / plain[seed]["seconds"] for seed in sorted(jobs.keys() & plain.keys())]
    if ratios:
        yield f"Under control and never moved, fault `compute`: {_spread(ratios)} of plain DDP's time."


def _healthy(found: dict[tuple[str, str], dict[int, Record]]) -> Iterator[str]:
    jobs, plain = found.get((HEALTHY, APPLY), {}), found.get((HEALTHY, PLAIN), {})
    if not jobs:
        return
    ratios = [jobs[seed]["step_ms"] / plain[seed]["step_ms"] for seed in sorted(jobs.keys() & plain.keys())]
    wrong = sum(job["actions"] for job in jobs.values())
    yield f"Nobody slow: {wrong} actions in {len(jobs)} jobs; step with the advisor over plain DDP's {_spread(ratios)}."


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else ""
