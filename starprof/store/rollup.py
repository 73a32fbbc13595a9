"""`--max-size`: old samples become means of 1 s, later of 60 s; step records, events and slow windows stay.

`<table>_rollup` holds, for each bucket and key, the minimum, mean and maximum of every value:

    gauge    of the values in the bucket; the mean over samples
    counter  of its rate per second, from the differences of consecutive samples that end in the bucket; the mean
             over time. A difference below zero is a reset or a wrap: it counts as a gap, never as a rate.

Means of 60 s are means of the 1 s buckets, weighted by `samples` (gauges) or `covered_us` (counters): exact unless
a value is NULL in a part of a second. The last raw row of every key before the border stays, so that no
difference is lost between two passes.
"""
# ruff: noqa: S608 - names in statements are the schema's own

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from starprof.model.columns import Column, Kind, Table
from starprof.model.schema import TABLES
from starprof.store.compact import compact
from starprof.store.protect import Window, slow_windows
from starprof.store.runfile import RunFile

FINE_S, COARSE_S = 1, 60
STAGES = ((600, 6 * 3600), (60, 3600), (10, 600), (0, 60))
"""What is tried one after the other until the file is small enough: newest seconds that stay raw, and those that
are kept at 1 s at least."""

TARGET_SHARE = 0.8
"""Once over the limit, go down to this share of it: not every fold has to roll up."""

WORTH_SHARE = 0.05
"""Share of the file that has to become free before it is worth rewriting it."""

_CELL_BYTES = 2  # of a compressed cell, about
_FREED = "freed_cells"
_NS = 1_000_000_000
_SLICE_ROWS = 300_000


def keep_below(run_file: Path, max_bytes: int, *, protect: Sequence[Window] = (), wait_s: float = 0.0) -> bool:
    """Roll samples up until the file has a share of `max_bytes`; the caller keeps other writers away.

    Args:
        run_file: the file.
        max_bytes: nothing happens while the file is not larger.
        protect: windows whose raw samples stay, besides the slow ones that `slow_windows` finds.
        wait_s: how long to wait for readers.

    Returns:
        Whether the file is within `max_bytes` now; step records alone can be larger.
    """
    if run_file.stat().st_size <= max_bytes:
        return True
    for raw_s, fine_s in STAGES:
        with RunFile.open(run_file, wait_s=wait_s) as run:
            windows = [*protect, *slow_windows(run)]
            sampled = [table for table in TABLES if table.sampled]
            freed = sum(roll_up(run, t, raw_s=raw_s, fine_s=fine_s, protect=windows) for t in sampled)
            freed += int(run.meta().get(_FREED, "0"))
            worth_it = freed * _CELL_BYTES >= WORTH_SHARE * run_file.stat().st_size
            run.set_meta({_FREED: "0" if worth_it else str(freed)})
        if worth_it:
            compact(run_file)
        if run_file.stat().st_size <= TARGET_SHARE * max_bytes:
            return True
    return run_file.stat().st_size <= max_bytes


def roll_up(run: RunFile, table: Table, *, raw_s: int, fine_s: int, protect: Sequence[Window] = ()) -> int:
    """Roll up one sampled table, each node against its own clock; returns how many cells became free.

    Args:
        run: open for writing.
        table: a sampled table.
        raw_s: newest seconds that stay as they are.
        fine_s: newest seconds that stay at 1 s at least.
        protect: windows whose raw samples stay.
    """
    rolled = _Rollup(table)
    if rolled.name not in run.tables():
        run.bulk(rolled.ddl())
        run.checkpoint()
    raw_rows, fine_rows = _rows(run, table.name), 0
    for node, newest_ns in run.query(f"SELECT node, max(mono_ns) FROM {table.name} GROUP BY node"):
        border_ns = (newest_ns - raw_s * _NS) // _NS * _NS
        for begin_ns, end_ns in _slices(run, rolled, node, border_ns):
            with run.transaction():
                run.bulk(rolled.fine(node, begin_ns, end_ns))
                run.bulk(rolled.forget_raw(node, end_ns, protect))
                run.set_meta({rolled.progress_key(node): str(end_ns)})
        coarse_ns = min(border_ns, newest_ns - fine_s * _NS) // (COARSE_S * _NS) * COARSE_S * _NS
        old = f"{rolled.name} WHERE width_s = {FINE_S} AND node = {node} AND mono_ns < {coarse_ns}"
        fine_rows += _rows(run, old)
        with run.transaction():
            run.bulk(rolled.coarse(node, coarse_ns))
            run.bulk(f"DELETE FROM {old}")
    return (raw_rows - _rows(run, table.name)) * len(table.columns) + fine_rows * len(rolled.columns)


def rolled_up_columns(table: Table) -> list[str]:
    """Columns of what a sampled table is rolled up to, each with its type."""
    return _Rollup(table).columns


def rolled_up_ddl(table: Table) -> str:
    """CREATE TABLE of what a sampled table is rolled up to."""
    return _Rollup(table).ddl()


def _rows(run: RunFile, source: str) -> int:
    ((rows,),) = run.query(f"SELECT count(*) FROM {source}")
    return int(rows)


def _slices(run: RunFile, rolled: _Rollup, node: int, border_ns: int) -> Iterator[tuple[int, int]]:
    """Stretches of whole seconds up to the border that are not rolled up yet, of a bounded number of rows."""
    done = run.meta().get(rolled.progress_key(node))
    newer = f"AND mono_ns >= {done}" if done else ""
    ((rows, first_ns),) = run.query(
        f"SELECT count(*), min(mono_ns) FROM {rolled.table.name} WHERE node = ? AND mono_ns < ? {newer}",
        [node, border_ns],
    )
    if not rows:
        return
    begin_ns = int(done) if done else first_ns // _NS * _NS
    slices = -(-rows // _SLICE_ROWS)
    length_ns = -(-(border_ns - begin_ns) // (slices * _NS)) * _NS
    while begin_ns < border_ns:
        end_ns = min(begin_ns + length_ns, border_ns)
        yield begin_ns, end_ns
        begin_ns = end_ns


@dataclass(frozen=True)
class _Rollup:
    """The statements that roll up one table."""

    table: Table

    @property
    def name(self) -> str:
        return f"{self.table.name}_rollup"

    def progress_key(self, node: int) -> str:
        """Key in `meta` of the time up to which a node's rows are rolled up."""
        return f"rolled_up_ns/{self.table.name}/{node}"

    def of_kind(self, *kinds: Kind) -> list[Column]:
        return [c for c in self.table.columns if c.kind in kinds]

    @property
    def keys(self) -> str:
        return ", ".join(c.name for c in self.of_kind(Kind.KEY))

    @property
    def columns(self) -> list[str]:
        """Columns of the rolled-up table, with their types."""
        columns = ["width_s BIGINT", *(f"{c.name} BIGINT" for c in self.of_kind(Kind.KEY))]
        columns += ["mono_ns BIGINT", "samples BIGINT", "covered_us BIGINT"]
        columns += [f"{c.name} BIGINT" for c in self.of_kind(Kind.FACT)]
        for c in self.of_kind(Kind.COUNTER, Kind.GAUGE):
            columns += [f"{c.name}_{part} FLOAT" for part in ("min", "mean", "max")]
        return columns

    def ddl(self) -> str:
        """CREATE TABLE of the rolled-up table."""
        return f"CREATE TABLE {self.name} ({', '.join(self.columns)})"

    def fine(self, node: int, begin_ns: int, end_ns: int) -> str:
        """Raw rows of a stretch of time to buckets of 1 s."""
        window = f"(PARTITION BY {self.keys} ORDER BY mono_ns)"
        differences = [f"mono_ns - lag(mono_ns) OVER {window} AS gone_ns"]
        values = [f"max({c.name}) AS {c.name}" for c in self.of_kind(Kind.FACT)]
        for c in self.of_kind(Kind.COUNTER):
            d = f"{c.name}_d"
            differences.append(f"{c.name} - lag({c.name}) OVER {window} AS {d}")
            valid = f"FILTER ({d} >= 0 AND gone_ns > 0)"
            rate = f"{d} * {_NS}::DOUBLE / gone_ns"
            values += [
                f"min({rate}) {valid} AS {c.name}_min",
                f"sum({d}) {valid} * {_NS}::DOUBLE / sum(gone_ns) {valid} AS {c.name}_mean",
                f"max({rate}) {valid} AS {c.name}_max",
            ]
        for c in self.of_kind(Kind.GAUGE):
            values += [f"{f}({c.name}) AS {c.name}_{part}" for f, part in _PARTS]
        return f"""
            INSERT INTO {self.name} BY NAME
            WITH source AS (
                SELECT * FROM {self.table.name} WHERE node = {node} AND mono_ns >= {begin_ns} AND mono_ns < {end_ns}
                UNION ALL BY NAME
                SELECT * FROM {self.table.name} WHERE node = {node} AND mono_ns < {begin_ns}
                QUALIFY row_number() OVER (PARTITION BY {self.keys} ORDER BY mono_ns DESC) = 1
            ), stepped AS (SELECT *, {", ".join(differences)} FROM source)
            SELECT {FINE_S} AS width_s, {self.keys}, mono_ns // {FINE_S * _NS} * {FINE_S * _NS} AS mono_ns,
                count(*) AS samples, coalesce(sum(gone_ns) // 1000, 0) AS covered_us, {", ".join(values)}
            FROM stepped WHERE mono_ns >= {begin_ns}
            GROUP BY ALL ORDER BY mono_ns"""

    def coarse(self, node: int, end_ns: int) -> str:
        """Buckets of 1 s before a time to buckets of 60 s."""
        values = [f"max({c.name}) AS {c.name}" for c in self.of_kind(Kind.FACT)]
        for kind, weight in ((Kind.COUNTER, "covered_us"), (Kind.GAUGE, "samples")):
            for c in self.of_kind(kind):
                known = f"FILTER ({c.name}_mean IS NOT NULL)"
                mean = f"sum({c.name}_mean * {weight}) {known} / nullif(sum({weight}) {known}, 0)"
                values += [
                    f"min({c.name}_min) AS {c.name}_min",
                    f"{mean} AS {c.name}_mean",
                    f"max({c.name}_max) AS {c.name}_max",
                ]
        return f"""
            INSERT INTO {self.name} BY NAME
            SELECT {COARSE_S} AS width_s, {self.keys}, mono_ns // {COARSE_S * _NS} * {COARSE_S * _NS} AS mono_ns,
                sum(samples) AS samples, sum(covered_us) AS covered_us, {", ".join(values)}
            FROM {self.name} WHERE width_s = {FINE_S} AND node = {node} AND mono_ns < {end_ns}
            GROUP BY ALL ORDER BY mono_ns"""

    def forget_raw(self, node: int, end_ns: int, protect: Sequence[Window]) -> str:
        """DELETE of the raw rows before a time, but the protected ones and the newest of each key."""
        kept = [
            f"AND NOT mono_ns BETWEEN {window.from_ns} AND {window.to_ns}"
            for window in protect
            if window.node is None or window.node == node
        ]
        older = f"node = {node} AND mono_ns < {end_ns}"
        return f"""
            DELETE FROM {self.table.name} WHERE {older} {" ".join(kept)} AND rowid NOT IN (
                SELECT arg_max(rowid, mono_ns) FROM {self.table.name} WHERE {older} GROUP BY {self.keys})"""


_PARTS = (("min", "min"), ("avg", "mean"), ("max", "max"))
