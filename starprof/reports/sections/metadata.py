"""What was recorded: command, time, nodes and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import numpy as np

from starprof.reports import words
from starprof.reports.facts import duration, imported_from
from starprof.reports.markup import Section, facts, table
from starprof.reports.material import Material

OPEN_UP_TO = 16  # ranks: a longer table starts folded


def render(material: Material) -> Section:
    """Facts of the run, then nodes and ranks as tables."""
    run, info = material.run, material.run.info
    source = imported_from(run)
    pairs = (
        ("Command", info.get("command")),
        ("Started", _clock(info.get("started_unix_ns"))),
        ("Ended", _clock(info.get("ended_unix_ns")) or ("" if source else "not recorded")),
        ("Exit code", info.get("exit_code")),
        ("Attempt", _attempt(material)),
        ("Steps", _steps(material)),
        ("Time in steps", words.seconds(material.total_seconds)),
        ("PyTorch", _all_of(rank.torch_version for rank in run.ranks)),
        ("Gradients through", _all_of(rank.framework for rank in run.ranks)),
        ("Backend", _all_of(rank.backend for rank in run.ranks)),
        ("Recorded by", "" if source else f"starprof {info.get('starprof_version') or 'of unknown version'}"),
        ("Read from", source),
    )
    return Section("run", "The run", facts(pairs) + _nodes(material) + _ranks(material))


def _clock(unix_ns: object) -> str:
    """UTC, so that the page does not depend on where it is made."""
    if not isinstance(unix_ns, (int, np.integer)):
        return ""
    return datetime.fromtimestamp(int(unix_ns) / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _attempt(material: Material) -> str:
    attempts = material.run.info.get("attempts")
    count = len(attempts) if isinstance(attempts, (list, tuple)) else attempts
    return f"{material.run.attempt + 1} of {count}" if isinstance(count, int) and count > 1 else ""


def _steps(material: Material) -> str:
    steps = material.run.steps.steps
    return f"{steps[0]}-{steps[-1]} ({len(steps):,})" if len(steps) else "none"


def _all_of(values: Iterable[str | None]) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _nodes(material: Material) -> str:
    frame = material.run.nodes
    if frame.empty:
        return ""
    ranks_on: dict[int, list[int]] = {}
    for rank in material.run.ranks:
        ranks_on.setdefault(rank.node, []).append(rank.rank)
    rows = []
    for row in frame.sort_values("node").to_dict("records"):
        node = int(row["node"])
        rows.append(
            (
                f"n{node}",
                _told(row, "host"),
                _ranges(ranks_on.get(node, [])),
                _told(row, "cpus"),
                words.mebibytes(float(row["memory_bytes"])) if _told(row, "memory_bytes") else "",
                _told(row, "kernel"),
                _offset(material.run.clock_offset_ns, node),
            )
        )
    headers = ("node", "host", "ranks", "CPUs", "memory", "kernel", "clock against n0")
    return _folded("Nodes", table(headers, rows, numeric=(3, 4)), len(rows))


def _told(row: Mapping[object, object], name: str) -> str:
    value = row.get(name)
    if value is None or value != value:
        return ""
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def _offset(offsets: Mapping[int, tuple[int, int]], node: int) -> str:
    if node not in offsets:
        return "not calibrated" if node else "reference"
    offset, error = offsets[node]
    return "reference" if not node else f"{offset / 1e6:+,.3f} ms ± {error / 1e6:.3f} ms"


def _ranges(numbers: list[int]) -> str:
    """1, 2, 3, 7 as "1-3, 7"."""
    told: list[list[int]] = []
    for number in sorted(numbers):
        if told and number == told[-1][1] + 1:
            told[-1][1] = number
        else:
            told.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in told)


def _ranks(material: Material) -> str:
    medians = material.medians
    rows = []
    for at, rank in enumerate(material.run.ranks):
        values = (medians.step[at], medians.own[at], medians.arrival[at], medians.blocked[at], medians.late[at])
        rows.append(
            (
                rank.rank,
                f"n{rank.node}",
                "" if rank.local_rank is None else rank.local_rank,
                " ".join(part for part in (rank.device, rank.gpu_uuid) if part),
                rank.cpus or "",
                " ".join(f"{name} {value}" for name, value in rank.role.items()),
                *(duration(material.run, value) for value in values),
                f"{medians.records[at]:,}",
                "culprit" if at in material.culprits else "",
            )
        )
    spans = ("step", "own", "arrival", "blocked" if material.run.sync_steps is None else "waited", "late")
    headers = ("rank", "node", "local", "device", "CPUs", "role", *spans, "records", "")
    optional = (2, 3, 4, 5)
    empty = {at for at in optional if all(row[at] == "" for row in rows)}
    kept = [at for at in range(len(headers)) if at not in empty]
    body = table(
        [headers[at] for at in kept],
        [[row[at] for at in kept] for row in rows],
        numeric=[new for new, at in enumerate(kept) if at in (0, 2) or 6 <= at <= 11],
        marked=material.culprits,
        caption=f"Medians of {material.window_words}",
    )
    return _folded("Ranks", body, len(rows))


def _folded(title: str, body: str, rows: int) -> str:
    return f"<details{' open' if rows <= OPEN_UP_TO else ''}><summary>{title} ({rows})</summary>{body}</details>"
