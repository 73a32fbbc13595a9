"""`starprof sql RUN "select …"`: ask a run file anything; nothing can be written, and no other file be read."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

from starprof.errors import UsageError

JSON_SCHEMA = 1


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("sql")(sql)


def sql(
    run: Path = typer.Argument(help="Run file (NAME.starprof)."),
    query: str = typer.Argument(help="One SELECT; docs/schema.md describes the tables."),
    as_csv: bool = typer.Option(False, "--csv", help="Print CSV with a header line."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object with columns and rows."),
) -> None:
    """Run a SQL query on a run."""
    from starprof.store.query import open_for_reading

    if as_csv and as_json:
        raise UsageError("--csv and --json exclude each other")
    with open_for_reading(run) as reading:
        if reading.note:
            print(f"starprof: {reading.note}", file=sys.stderr)
        columns, rows = reading.run.answer(query)
        if as_csv:
            _print_csv(columns, rows)
        elif as_json:
            print(json.dumps({"schema": JSON_SCHEMA, "columns": columns, "rows": _jsonable(rows)}, allow_nan=False))
        else:
            _print_table(columns, rows)


def _print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)


def _jsonable(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Numbers and texts as they are, NaN and infinities as null, everything else as text."""
    return [[_jsonable_cell(cell) for cell in row] for row in rows]


def _jsonable_cell(cell: Any) -> Any:
    if isinstance(cell, float) and cell - cell != 0:
        return None
    return cell if cell is None or isinstance(cell, (bool, int, float, str)) else str(cell)


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Aligned columns, numbers to the right; NULL is spelled out."""
    listed = list(rows)
    texts = [[_text(cell) for cell in row] for row in listed]
    widths = [max([len(name), *(len(row[i]) for row in texts)]) for i, name in enumerate(columns)]
    right = [all(isinstance(row[i], (int, float)) for row in listed if row[i] is not None) for i in range(len(columns))]
    for line in [list(columns), ["-" * width for width in widths], *texts]:
        cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)]
        print("  ".join(cells).rstrip())


def _text(cell: Any) -> str:
    if cell is None:
        return "NULL"
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)
