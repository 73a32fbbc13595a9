"""`starprof merge`: recordings that were made on several nodes of one job become one run file.

Nodes keep their ids where they can. Two recordings that use the same id mean the same node only if host, boot and
network namespace are the same; else the later one gets a new id. Ranks must not clash. Clocks: nodes of one boot
share theirs; others are calibrated from the collectives (see `starprof.store.causality`) or stay uncalibrated.
Spools with records of one and the same run are put together first (see `starprof.store.reunite`).
"""
# ruff: noqa: S608 - names in statements are the schema's own

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from starprof.errors import NoDataError, UsageError
from starprof.model.columns import Kind, Table, row
from starprof.model.schema import TABLES
from starprof.model.tables.job import CLOCK, RUN
from starprof.store.causality import offset_of
from starprof.store.ingest import write_attempts
from starprof.store.reunite import opened, reunite
from starprof.store.runfile import RunFile, arrow_rows

MERGING_SUFFIX = ".merging"
DEVICE_KEYS = {"nic": "nic", "socket": "tcp", "disk": "disk", "cgroup": "cgroup", "gpu": "gpu"}
"""Ids that every recording of a node gives out anew, and the tables that say what they mean."""

_NOT_COPIED = {"run", "attempt", "clock"}
_Identity = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What came out: counts, and what the user should know (uncalibrated clocks, missing ranks, …)."""

    nodes: int
    ranks: int
    notes: tuple[str, ...]


@dataclass
class _Plan:
    """Which node of which recording becomes which; filled recording by recording."""

    identities: dict[int, _Identity | None] = field(default_factory=dict)
    ranks: dict[tuple[int, int], Path] = field(default_factory=dict)
    world_sizes: dict[int, tuple[int, Path]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def merge(inputs: Sequence[Path], output: Path) -> MergeReport:
    """Merge run files and spool directories into a new run file; the inputs are not changed.

    Raises:
        UsageError: they are not recordings of one job, or the output exists.
        RunFileError: one can't be read, or the output not written.
    """
    if output.exists():
        raise UsageError(f"{output} exists: choose another name, or remove it first")
    building = output.with_name(output.name + MERGING_SUFFIX)
    building.unlink(missing_ok=True)
    plan = _Plan()
    try:
        with ExitStack() as stack:
            sources = [(r.path, stack.enter_context(opened(r))) for r in reunite(inputs)]
            plan.notes += [note for _, (_, note) in sources if note]
            merged = stack.enter_context(RunFile.open(building, memory_mb=512, threads=2))
            report = _merge_into(merged, [(path, run) for path, (run, _) in sources], output.stem, plan)
        building.replace(output)
    finally:
        building.unlink(missing_ok=True)
        building.with_name(building.name + ".wal").unlink(missing_ok=True)
    return report


def _merge_into(merged: RunFile, sources: Sequence[tuple[Path, RunFile]], name: str, plan: _Plan) -> MergeReport:
    for path, source in sources:
        _check_ranks(plan, path, source)
        mapping, shared = _map_nodes(plan, source)
        with merged.attached(source.path) as tables, merged.transaction():
            _copy(merged, tables, mapping, shared)
            _copy_clocks(merged, source, mapping)
    if not plan.ranks:
        raise NoDataError("the recordings hold no rank: nothing to merge")
    with merged.transaction():
        _write_run_row(merged, [source for _, source in sources], name, plan)
        _calibrate(merged, plan)
        write_attempts(merged)
    for attempt, (world_size, _) in sorted(plan.world_sizes.items()):
        there = sum(a == attempt for a, _ in plan.ranks)
        if there < world_size:
            plan.notes.append(f"only {there} of {world_size} ranks of attempt {attempt} are in the recordings")
    return MergeReport(len(plan.identities), len(plan.ranks), tuple(plan.notes))


def _check_ranks(plan: _Plan, path: Path, source: RunFile) -> None:
    """Refuse what can't be one job."""
    for attempt, rank, world_size in source.query(
        "SELECT attempt, rank, max(world_size) FROM "
        "(SELECT attempt, rank, world_size FROM rank UNION ALL SELECT attempt, rank, NULL FROM step) "
        "GROUP BY ALL ORDER BY ALL"
    ):
        if (attempt, rank) in plan.ranks:
            other = plan.ranks[attempt, rank]
            raise UsageError(
                f"{other} and {path} both hold rank {rank} of attempt {attempt}: they are not parts of one job"
            )
        plan.ranks[attempt, rank] = path
        if world_size is None:
            continue
        known, known_in = plan.world_sizes.setdefault(attempt, (world_size, path))
        if known != world_size:
            raise UsageError(
                f"{known_in} is of a job of {known} ranks, {path} of one of {world_size}: they are not parts of one job"
            )


def _map_nodes(plan: _Plan, source: RunFile) -> tuple[dict[int, int], set[int]]:
    """New id of each of the recording's nodes, and which of those ids an earlier recording has too."""
    known = source.query("SELECT node, host, boot_id, detail FROM node")
    identities = {node: _identity(*facts) for node, *facts in known}
    there = source.tables()
    recorded = [t.name for t in TABLES if "node" in t.names and t.name in there and t is not CLOCK]
    found = " UNION ".join(f"SELECT node FROM {name}" for name in recorded)
    earlier = dict(plan.identities)
    mapping = {}
    for (node,) in source.query(f"SELECT node FROM ({found}) WHERE node >= 0 ORDER BY node"):
        identity = identities.get(node)
        same = [n for n, other in earlier.items() if identity is not None and other == identity]
        if node not in plan.identities or node in same:
            mapping[node] = node
        else:
            mapping[node] = same[0] if same else max(plan.identities) + 1
        plan.identities[mapping[node]] = identity
    return mapping, set(mapping.values()) & earlier.keys()


def _identity(host: str | None, boot_id: str | None, detail: str | None) -> _Identity | None:
    """What tells whether two recordings are of one node; None when that is not known."""
    if host is None or boot_id is None:
        return None
    return host, boot_id, json.loads(detail).get("netns") if detail else None


def _copy(merged: RunFile, tables: set[str], mapping: dict[int, int], shared: set[int]) -> None:
    """Append the rows of the attached recording with new node ids; device ids move on where a node is shared."""
    node = f"CASE node {' '.join(f'WHEN {old} THEN {new}' for old, new in mapping.items())} ELSE node END"
    swaps = {"node": node} if mapping else {}
    if shared:
        on_shared = f"{node} IN ({', '.join(map(str, sorted(shared)))})"
        for key, dictionary in DEVICE_KEYS.items():
            ((used,),) = merged.query(f"SELECT coalesce(max({key}) + 1, 0) FROM {dictionary}")
            swaps[key] = f"{key} + CASE WHEN {on_shared} THEN {used} ELSE 0 END"
    for table in TABLES:
        for name in (table.name, f"{table.name}_rollup"):
            if name not in tables or name in _NOT_COPIED:
                continue
            if name not in merged.tables():
                merged.bulk(f"CREATE TABLE {name} AS FROM source.{name} LIMIT 0")
            swapped = ", ".join(f"{swaps[k]} AS {k}" for k in _keys(table) if k in swaps)
            columns = f"* REPLACE ({swapped})" if swapped else "*"
            new_only = f"WHERE NOT {on_shared}" if shared and name == "node" else ""
            merged.bulk(f"INSERT INTO {name} BY NAME SELECT {columns} FROM source.{name} {new_only}")


def _keys(table: Table) -> list[str]:
    return [c.name for c in table.columns if c.kind is Kind.KEY]


def _copy_clocks(merged: RunFile, source: RunFile, mapping: dict[int, int]) -> None:
    """Keep measured offsets whose reference, the recording's own node 0, is node 0 of the merged run too."""
    if mapping.get(0) != 0:
        return
    rows = source.query(f"SELECT {source.select_list(CLOCK)} FROM clock")
    merged.append(CLOCK.name, arrow_rows(CLOCK.name, [[mapping.get(node, node), *rest] for node, *rest in rows]))


def _write_run_row(merged: RunFile, runs: Sequence[RunFile], name: str, plan: _Plan) -> None:
    """One row for all: from the first start to the last end, the first exit code that is not 0."""
    known = [dict(zip(RUN.names, cells, strict=True)) for run in runs for cells in run.query("SELECT * FROM run")]
    if not known:
        return
    commands = {facts["command"] for facts in known}
    if len(commands) > 1:
        plan.notes.append(f"the recordings are of {len(commands)} different commands; the first is kept")
    ends = [facts["ended_unix_ns"] for facts in known]
    codes = [facts["exit_code"] for facts in known]
    cells = row(
        RUN,
        **known[0]
        | {
            "name": name,
            "started_unix_ns": min((f["started_unix_ns"] for f in known if f["started_unix_ns"]), default=None),
            "ended_unix_ns": None if None in ends else max(ends),
            "exit_code": next((code for code in codes if code), None if None in codes else 0),
        },
    )
    merged.replace(RUN.name, arrow_rows(RUN.name, [cells]))
    merged.set_meta({"merged_run_ids": json.dumps([facts["run_id"] for facts in known])})


def _calibrate(merged: RunFile, plan: _Plan) -> None:
    """Measure the clocks that are not; without node 0, and where the steps tell nothing, they stay uncalibrated."""
    measured = {node for (node,) in merged.query("SELECT DISTINCT node FROM clock")}
    reference = plan.identities.get(0)
    rows = []
    for node, identity in sorted(plan.identities.items()):
        if node == 0 or node in measured:
            continue
        if identity and reference and identity[1] == reference[1]:
            rows.append(row(CLOCK, node=node, offset_ns=0, error_ns=0, method="same-boot"))
            continue
        found = offset_of(merged, node)
        if isinstance(found, str):
            plan.notes.append(f"the clock of node {node} is not calibrated, its times are not compared: {found}")
            continue
        rows.append(
            row(
                CLOCK,
                node=node,
                mono_ns=found.mono_ns,
                offset_ns=found.offset_ns,
                error_ns=found.error_ns,
                method="causality",
            )
        )
    merged.append(CLOCK.name, arrow_rows(CLOCK.name, rows))
