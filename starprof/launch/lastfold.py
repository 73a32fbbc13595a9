"""The last ingester run of a recording, as a process that gets ready while the agent still stops.

    python -m starprof.launch.lastfold SPOOL RUN [--max-size BYTES]          RUN: a run file or address of a database

It imports what it needs (the slow part), waits for `go` on its standard input, folds everything in, and prints one
JSON object: {"ranks": ..., "steps": ..., "bytes": size of the run file, "left": files of the spool that are not done
with}, or {"error": why not}.
Closing its input without `go`, as the recorder's death does, ends it with nothing done.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from starprof.errors import StarprofError
from starprof.spool.layout import Spool
from starprof.spool.smallprocess import leave_pandas_out
from starprof.store.base import ReadableRun
from starprof.store.clickhouse.address import is_address, parse
from starprof.store.ingest import fold
from starprof.store.runfile import RunFile

GO = b"go\n"
WAIT_S = 30.0
"""For a reader that has the run file open at this moment."""


def main(argv: list[str]) -> int:
    """Fold in when told to; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m starprof.launch.lastfold")
    parser.add_argument("spool", type=Path)
    parser.add_argument("run")
    parser.add_argument("--max-size", type=int)
    chosen = parser.parse_args(argv)
    leave_pandas_out()
    if sys.stdin.buffer.readline() != GO:
        return 1
    try:
        if is_address(chosen.run):
            from starprof.store.clickhouse.folding import fold_into_database

            report = fold_into_database(Spool(chosen.spool), chosen.run, final=True, wait_s=WAIT_S)
            counts = _counts_in_database(Spool(chosen.spool), chosen.run)
        else:
            file = Path(chosen.run)
            report = fold(Spool(chosen.spool), file, final=True, wait_s=WAIT_S, max_size_bytes=chosen.max_size)
            with RunFile.open_read_only(file, wait_s=WAIT_S) as run:
                counts = {**_counts(run), "bytes": file.stat().st_size}
    except StarprofError as error:
        sys.stdout.write(json.dumps({"error": str(error)}))
        return error.exit_code
    left = len(report.left) + len(report.damaged)
    sys.stdout.write(json.dumps({**counts, "left": left}))
    return 0


def _counts(run: ReadableRun) -> dict[str, int]:
    """Ranks seen, and steps of the job over all attempts."""
    ((ranks, steps),) = run.query(
        "SELECT (SELECT count(DISTINCT rank) FROM rank), (SELECT count(DISTINCT (attempt, step)) FROM step)"
    )
    return {"ranks": ranks, "steps": steps}


def _counts_in_database(spool: Spool, place: str) -> dict[str, int]:
    from starprof.store.clickhouse.folding import run_id_of
    from starprof.store.clickhouse.run import ClickHouseRun

    with ClickHouseRun.open_read_only(parse(place).of_run(run_id_of(spool))) as run:
        return _counts(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
