"""Runs in ClickHouse beside run files: rows a second in, bytes on disk for each rank-step, and the time of a verdict.

    python benchmarks/clickhouse.py [--ranks 64] [--steps 20000]

The server is the tests': chdb behind HTTP on this machine, in a process of its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "store"))

from clickhouse_parts import Engine

from starprof.analysis.long.choice import diagnosed
from starprof.analysis.synthetic import SyntheticRun
from starprof.analysis.synthetic.faults import CpuHog
from starprof.store.clickhouse import client, transfer
from starprof.store.clickhouse.address import parse
from starprof.store.clickhouse.run import ClickHouseRun
from starprof.store.query import load_run, open_steps
from starprof.store.runfile import RunFile
from starprof.store.save import save_run

QUESTION = (
    "SELECT rank, median(dur_us), max(blocked_us) FROM step WHERE attempt = 0 AND step > 9 GROUP BY rank ORDER BY rank"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.starprof"
        run = SyntheticRun(
            ranks=chosen.ranks, nodes=max(1, chosen.ranks // 8), steps=chosen.steps, faults=(CpuHog(rank=1),)
        )
        data = run.data()
        began = time.perf_counter()
        save_run(data, path)
        saved_s = time.perf_counter() - began
        del data
        engine = Engine.start(Path(folder) / "db")
        try:
            _compare(path, engine, chosen.ranks * chosen.steps, saved_s)
        finally:
            engine.stop()


def _compare(path: Path, engine: Engine, rank_steps: int, saved_s: float) -> None:
    address = parse(engine.url)
    connection = client.connect(address)
    client.prepare(connection, address)
    began = time.perf_counter()
    pushed = transfer.push(path, address)
    pushed_s = time.perf_counter() - began
    connection.command("OPTIMIZE TABLE starprof.step_rows FINAL")
    ((step_bytes,),) = connection.query(
        "SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database = 'starprof' AND table = 'step_rows'"
    ).result_rows
    ((all_bytes,),) = connection.query(
        "SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database = 'starprof'"
    ).result_rows
    with RunFile.open_read_only(path) as run:
        blocks = run.query("SELECT count(DISTINCT block_id) FROM pragma_storage_info('step') WHERE block_id >= 0")
    print(f"{pushed.rows:,} rows, {rank_steps:,} rank-steps")
    print(f"{'':<34}{'run file':>12}{'ClickHouse':>12}")
    row("written, rows/s", pushed.rows / saved_s, pushed.rows / pushed_s, ",.0f")
    row("steps on disk, bytes/rank-step", blocks[0][0] * 65536 / rank_steps, step_bytes / rank_steps, ".2f")
    row("all on disk, MB", path.stat().st_size / 1e6, all_bytes / 1e6, ".1f")
    with RunFile.open_read_only(path) as file, ClickHouseRun.open_read_only(address.of_run(pushed.run_id)) as run:
        row("one question in SQL, s", timed(file.query, QUESTION), timed(run.query, QUESTION), ".3f")
    view = f"{QUESTION.replace('FROM step', 'FROM starprof.step')}".replace(
        " AND", f" AND run_id = '{pushed.run_id}' AND"
    )
    row("  the same of the view, s", float("nan"), timed(connection.query, view), ".3f")
    for title, ask in (("read whole, s", load_run), ("verdict, s", verdict)):
        row(title, timed(ask, str(path)), timed(ask, pushed.place), ".2f")
    connection.close()


def verdict(place: str) -> None:
    with open_steps(place) as steps:
        diagnosed(steps)


def timed(ask, place: str) -> float:
    """The faster of two."""
    taken = []
    for _ in range(2):
        began = time.perf_counter()
        ask(place)
        taken.append(time.perf_counter() - began)
    return min(taken)


def row(title: str, file: float, database: float, form: str) -> None:
    print(f"{title:<34}{file:>12{form}}{database:>12{form}}")


if __name__ == "__main__":
    main()
