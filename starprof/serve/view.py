"""What the live view, queries and metrics are told of a job: plain JSON, versioned, the same for all of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.serve.jobwatch import JobWatch
from starprof.serve.standing import ADVISOR_STATE, Blame

SCHEMA = 1
"""Fields are added, never renamed."""

RANKS_AT_MOST = 32
LOG_AT_MOST = 20
MAX_BYTES = 1 << 18


def describe(watch: JobWatch, name: str, now_s: float, *, ranks: int = RANKS_AT_MOST) -> dict[str, Any]:
    """A job as it is now, with the `ranks` that harm it most."""
    blames = watch.blames(now_s)
    verdict = watch.verdict()
    return {
        "job": name,
        **_run(watch),
        "attempt": watch.attempt if watch.attempt >= 0 else None,
        "step": watch.last_step(),
        "step_ms": _rounded(watch.step_ms()),
        "steps_per_s": _rounded(watch.steps_per_s()),
        "judged_age_s": _rounded(watch.judged_age_s(now_s)),
        "latency_s": _latency(watch),
        "mode": watch.mode,
        "verdict": None if verdict is None else verdict.to_json(),
        "world_size": len(watch.ranks),
        "ranks": _ranks(watch, blames, set(watch.silent_nodes(now_s)))[:ranks],
        "nodes": _nodes(watch, now_s),
        "switches": [_switch(cells) for cells in list(watch.switches)[-LOG_AT_MOST:]],
        "advisor": _json(watch.spool.root / ADVISOR_STATE),
        "lost_rows": watch.lost_rows,
        "duplicate_rows": watch.tail.duplicates,
        "late_rows": watch.late_rows(),
    }


def _run(watch: JobWatch) -> dict[str, Any]:
    """What the recorder has written down of the run."""
    known = _json(watch.spool.run_json) or {}
    return {name: known.get(name) for name in ("run_id", "command", "started_unix_ns", "ended_unix_ns", "exit_code")}


def _latency(watch: JobWatch) -> dict[str, float] | None:
    """From the end of a step to its verdict, over the newest steps."""
    if not watch.latencies_s:
        return None
    middle, late, most = np.quantile(np.array(watch.latencies_s), (0.5, 0.99, 1.0))
    return {"p50": round(float(middle), 4), "p99": round(float(late), 4), "max": round(float(most), 4)}


def _json(path: Path) -> dict[str, Any] | None:
    """A small JSON object that somebody else keeps up to date; None where there is none."""
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _ranks(watch: JobWatch, blames: Iterable[Blame], silent: set[int]) -> list[dict[str, Any]]:
    """Every rank, most harmful first: those that are late by what they cost, the others by how long they need."""
    times = watch.step_times()
    late = {blame.rank: blame for blame in blames}
    own = _middle(times.own_us) if times is not None else np.full(len(watch.ranks), np.nan)
    blocked = _middle(times.blocked_us) if times is not None else np.full(len(watch.ranks), np.nan)
    typical = float(np.nanmedian(own)) if np.isfinite(own).any() else 0.0
    rows = []
    for info, own_us, blocked_us in zip(watch.ranks, own.tolist(), blocked.tolist(), strict=True):
        blame = late.get(info.rank)
        rows.append(
            {
                "rank": info.rank,
                "host": info.host,
                "node": info.node,
                "role": dict(info.role),
                "state": blame.status if blame else "silent" if info.node in silent else "ok",
                "lost_s": round(blame.lost_s, 3) if blame else 0.0,
                "slowdown": round(blame.slowdown, 4) if blame else None,
                "since_step": blame.onset_step if blame else None,
                "cause": blame.cause if blame else None,
                "why": blame.why if blame else None,
                "own_ms": _rounded(own_us / 1e3),
                "blocked_ms": _rounded(blocked_us / 1e3),
                "of_typical": _rounded(own_us / typical) if typical else None,
            }
        )
    return sorted(rows, key=lambda row: (-row["lost_s"], -(row["own_ms"] or 0.0), row["rank"]))


def _middle(values: Floats) -> Floats:
    """Median of each row without NaN; NaN for a row of nothing else."""
    known = np.isfinite(values).any(axis=1)
    result = np.full(len(values), np.nan)
    if known.any():
        result[known] = np.nanmedian(values[known], axis=1)
    return result


def _nodes(watch: JobWatch, now_s: float) -> list[dict[str, Any]]:
    rows = []
    for number in sorted(watch.nodes):
        node = watch.nodes[number]
        track = watch.clocks.get(number)
        offset = track.now() if track is not None else None
        rows.append(
            {
                "node": number,
                "host": node.host,
                "heard_age_s": _rounded(now_s - node.heard_s) if node.heard_s else None,
                "clock_offset_us": None if offset is None else offset.offset_ns // 1000,
                "clock_error_us": None if offset is None else -(-offset.error_ns // 1000),
                "agent_cpu_s": round(node.agent_cpu_us / 1e6, 3),
                "agent_rss_bytes": node.agent_rss_bytes,
            }
        )
    return rows


def _switch(cells: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": cells["version"],
        "from": cells["from_mode"],
        "to": cells["to_mode"],
        "options": cells["to_options"],
        "asked_by": cells["asked_by"],
        "reason": cells["reason"] or "",
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(float(value), 4)
