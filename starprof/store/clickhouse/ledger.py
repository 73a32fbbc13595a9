"""What makes writing exactly once where there are no transactions over tables.

A commit's rows carry the writer (`commit_epoch`, drawn anew by every process that writes) and the number of the commit.
They count only if the ledger says so:

    1. `begun` goes into the ledger: from now on rows of this commit are hidden
    2. rows go into their tables, each block with a token by which the server takes it once
    3. the rows are counted: all are there, none twice, and nobody else has written to the run meanwhile
    4. `done` and the positions of the streams go into the ledger as one block, which is there as a whole or not at all

A writer that dies before 4 leaves rows that nobody sees; whoever comes next writes `void` for that commit, so that a
block still on its way changes nothing any more, and sends the rows again under its own name. `superseded` in the block
of 4 hides all that earlier writers wrote: so a whole run is replaced at once.

There is one writer of a run at a time: who folds in a spool holds its lock. Two that write at once (the same run pushed
from two places) find out in 3 and give up; ClickHouse has no lock that would keep them apart for sure.
"""
# ruff: noqa: S608 - names in statements are the schema's own

from __future__ import annotations

import datetime
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from starprof.errors import StoreError
from starprof.store.clickhouse.address import Address
from starprof.store.clickhouse.client import told
from starprof.store.clickhouse.tables import LEDGER

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_DRAWN_BITS = 24
"""Of a writer's number, drawn by chance: two that begin at the same time are told apart."""

Position = tuple[str, int, int | None]
"""Stream, its next missing row, and when the newest one was taken."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which rows of a run count at one moment.

    Attributes:
        epochs: for each writer the number of its newest commit that is done.
        hidden: commits (writer, number) that were begun and never done, or given up.
        void: those of them that are given up for good.
        superseded: writers whose rows are replaced.
        run_date: in which partition the run lies; None = there is no such run.
    """

    epochs: Mapping[int, int] = field(default_factory=dict)
    hidden: frozenset[tuple[int, int]] = frozenset()
    void: frozenset[int] = frozenset()
    superseded: frozenset[int] = frozenset()
    run_date: datetime.date | None = None

    @property
    def newest(self) -> tuple[int, int]:
        """The newest commit that counts, (0, 0) = none."""
        return max(((e, n) for e, n in self.epochs.items() if n and e not in self.superseded), default=(0, 0))

    @property
    def newest_epoch(self) -> int:
        """The newest writer, whatever became of it."""
        return max([*self.epochs, *(e for e, _ in self.hidden), 0])

    def condition(self, run_id: str) -> str:
        """SQL that is true for rows of this run that count, whatever is written later."""
        epoch, number = self.newest
        terms = [f"run_id = {quoted(run_id)}", f"(commit_epoch, commit_number) <= ({epoch}, {number})"]
        if self.hidden:
            listed = ", ".join(f"({e}, {n})" for e, n in sorted(self.hidden))
            terms.append(f"(commit_epoch, commit_number) NOT IN ({listed})")
        if self.superseded:
            terms.append(f"commit_epoch NOT IN ({', '.join(map(str, sorted(self.superseded)))})")
        return " AND ".join(terms)


def snapshot(client: Client, address: Address, run_id: str) -> Snapshot:
    """What counts of a run now."""
    with told(address):
        rows = client.query(
            f"SELECT kind, commit_epoch, max(commit_number), any(run_date) FROM {address.database}.{LEDGER}_rows "
            f"WHERE kind != 'position' AND run_id = {quoted(run_id)} GROUP BY kind, commit_epoch"
        ).result_rows
    kinds: dict[str, dict[int, int]] = {}
    for kind, epoch, number, _ in rows:
        kinds.setdefault(str(kind), {})[epoch] = number
    begun, done, void = kinds.get("begun", {}), kinds.get("done", {}), frozenset(kinds.get("void", {}))
    hidden = frozenset((e, n) for e, n in begun.items() if n > done.get(e, 0) or e in void)
    counted = {e: min(n, begun.get(e, n) - 1) if e in void else n for e, n in done.items()}
    return Snapshot(counted, hidden, void, frozenset(kinds.get("superseded", {})), rows[0][3] if rows else None)


@dataclass
class Writer:
    """Everything that one process commits to one run."""

    client: Client
    address: Address
    run_id: str
    seen: Snapshot
    run_date: datetime.date
    epoch: int = 0
    number: int = 0
    broken: bool = False

    def begin(self) -> Commit:
        """Begin a commit; what an earlier one left half done is given up."""
        if not self.epoch or self.broken:
            self._take_over()
        self._mark([("begun", self.epoch, self.number + 1)])
        return Commit(self, self.number + 1)

    def finished(self, number: int) -> None:
        """A commit is done."""
        self.number = number
        self.seen = replace(self.seen, epochs={**self.seen.epochs, self.epoch: number}, run_date=self.run_date)

    def _take_over(self) -> None:
        """Choose a number for ourselves that is above everybody's."""
        left = [("void", e, n) for e, n in self.seen.hidden if e not in self.seen.void]
        if self.broken:
            left.append(("void", self.epoch, self.number + 1))
        if left:
            self._mark(left)
            self.seen = snapshot(self.client, self.address, self.run_id)
        above = max(self.seen.newest_epoch, self.epoch) >> _DRAWN_BITS
        self.epoch = (above + 1 << _DRAWN_BITS) | secrets.randbits(_DRAWN_BITS)
        self.number, self.broken = 0, False

    def _mark(self, marks: Sequence[tuple[str, int, int]]) -> None:
        self.insert(LEDGER, self.ledger_rows(marks, ()), f"{'/'.join(f'{k}-{e}-{n}' for k, e, n in marks)}")

    def ledger_rows(self, marks: Sequence[tuple[str, int, int]], positions: Sequence[Position]) -> pa.Table:
        """Rows of the ledger: marks (kind, writer, number), and positions that the last mark makes valid."""
        count = len(marks) + len(positions)
        _, epoch, number = marks[-1]
        return pa.table(
            {
                "run_id": pa.repeat(self.run_id, count),
                "run_date": pa.repeat(pa.scalar(self.run_date, pa.date32()), count),
                "kind": [kind for kind, _, _ in marks] + ["position"] * len(positions),
                "commit_epoch": pa.array([e for _, e, _ in marks] + [epoch] * len(positions), pa.uint64()),
                "commit_number": pa.array([n for _, _, n in marks] + [number] * len(positions), pa.uint32()),
                "slot": pa.array([0] * len(marks) + [number] * len(positions), pa.uint32()),
                "stream": [""] * len(marks) + [stream for stream, _, _ in positions],
                "next_seq": pa.array([None] * len(marks) + [seq for _, seq, _ in positions], pa.int64()),
                "last_mono_ns": pa.array([None] * len(marks) + [last for _, _, last in positions], pa.int64()),
                "writer": pa.repeat(f"{socket.gethostname()}/{os.getpid()}", count),
            }
        )

    def insert(self, table: str, rows: pa.Table, token: str) -> None:
        """Send one block; the token makes sure that the server takes it once."""
        with told(self.address):
            self.client.insert_arrow(
                f"{self.address.database}.{table}_rows",
                rows,
                settings={"insert_deduplication_token": f"{self.run_id}/{table}/{token}"},
            )


@dataclass
class Commit:
    """One commit that is under way."""

    writer: Writer
    number: int
    rows: int = 0
    sent: dict[str, int] = field(default_factory=dict)

    def add(self, table: str, rows: pa.Table) -> None:
        """Send rows of one table; its columns are those of the schema."""
        writer, count = self.writer, rows.num_rows
        own = {name: rows.column(name) for name in rows.column_names if name != "run_id"}
        block = pa.table(
            {
                "run_id": pa.repeat(writer.run_id, count),
                "run_date": pa.repeat(pa.scalar(writer.run_date, pa.date32()), count),
                **own,
                "commit_epoch": pa.repeat(pa.scalar(writer.epoch, pa.uint64()), count),
                "commit_number": pa.repeat(pa.scalar(self.number, pa.uint32()), count),
                "commit_row": pa.array(range(self.rows, self.rows + count), pa.uint32()),
            }
        )
        writer.insert(table, block, f"{writer.epoch}/{self.number}/{self.rows}")
        self.rows += count
        self.sent[table] = self.sent.get(table, 0) + count

    def done(self, positions: Sequence[Position], *, supersede: bool = False) -> None:
        """Make everything count.

        Raises:
            StoreError: rows are missing or doubled, or somebody else writes to the run.
        """
        writer = self.writer
        self._check_rows()
        self._check_alone()
        marks = [("done", writer.epoch, self.number)]
        if supersede:
            marks = [("superseded", e, n) for e, n in writer.seen.epochs.items() if e != writer.epoch] + marks
        writer.insert(LEDGER, writer.ledger_rows(marks, positions), f"done-{writer.epoch}-{self.number}")
        self._check_alone()
        writer.finished(self.number)
        if supersede:
            writer.seen = snapshot(writer.client, writer.address, writer.run_id)

    def _check_rows(self) -> None:
        writer = self.writer
        if not self.sent:
            return
        counts = " UNION ALL ".join(
            f"SELECT '{table}', count() FROM {writer.address.database}.{table}_rows WHERE run_id = "
            f"{quoted(writer.run_id)} AND commit_epoch = {writer.epoch} AND commit_number = {self.number}"
            for table in self.sent
        )
        with told(writer.address):
            rows: list[Any] = list(writer.client.query(counts).result_rows)
        found: dict[str, int] = dict(rows)
        if found != self.sent:
            wrong = ", ".join(f"{found[t]} of {n} in {t}" for t, n in self.sent.items() if found[t] != n)
            raise StoreError(f"{writer.address.text}: rows did not arrive as they were sent ({wrong}): try again")

    def _check_alone(self) -> None:
        """Nobody else has begun or ended anything since we looked at the ledger."""
        writer = self.writer
        now = snapshot(writer.client, writer.address, writer.run_id)
        others = {e for e in (*now.epochs, *(e for e, _ in now.hidden)) if e != writer.epoch}
        known = {e for e in (*writer.seen.epochs, *(e for e, _ in writer.seen.hidden)) if e != writer.epoch}
        if others - known or writer.epoch in now.void:
            raise StoreError(
                f"{writer.address.text}: somebody else writes to run {writer.run_id} at the same time: let one of you "
                "do it, and then try again"
            )


def quoted(text: str) -> str:
    """A text as SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
