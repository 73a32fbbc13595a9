"""What control brings on real jobs, against native DDP and against what else a user may put in its place.

    python benchmarks/sync run [--out FILE] [--minutes N] [--only REGEX] [--seeds N] [--epochs N] [--retry]
                              [--compute-ms MS]
    python benchmarks/sync list [--only REGEX]
    python benchmarks/sync tell [--out FILE] [--plot PICTURE.svg]

`run` runs jobs of 2, 4 and 8 gloo processes (small real models on real data, `tasks.py`) with slow ranks that are
emulated (`compute.py`) or real (`disturb.py`), in every mode that can be had in running jobs, one job after the other.
Each job's result is a line of FILE as soon as it is there; a second start goes on where the first one stopped. The
order is such that whatever is there is balanced (`design.py`): the goals' jobs take the first quarter of an hour, all
takes about one and a half. `tell` prints the tables and goals from FILE.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cells import run
from design import SEEDS, Cell, design

sys.path.append(str(Path(__file__).resolve().parents[1]))
from _records import append, read

RESULTS = Path("sync.jsonl")


def results(path: Path) -> list[dict[str, Any]]:
    """What is there; of a cell that was run again, the newest."""
    return list({record["cell"]: record for record in read(path)}.values())


def wanted(options: argparse.Namespace) -> Iterator[Cell]:
    """The cells that are asked for."""
    pattern = re.compile(options.only)
    return (cell for cell in design(options.seeds) if pattern.search(cell.name))


def run_all(options: argparse.Namespace) -> int:
    """Run what is not there yet; 1 when a job has failed."""
    done = {record["cell"]: "failed" in record for record in results(options.out)}
    todo = [cell for cell in wanted(options) if cell.name not in done or (options.retry and done[cell.name])]
    ends_s = time.monotonic() + 60.0 * options.minutes
    failed = False
    for place, cell in enumerate(todo):
        if time.monotonic() > ends_s:
            print(f"{len(todo) - place} jobs are left: start it again to go on", file=sys.stderr)
            break
        record = run(cell, options.epochs, options.compute_ms)
        append(options.out, record)
        failed |= "failed" in record
        said = why_not(record) or f"{record['step_ms']:.1f} ms a step"
        print(f"{place + 1}/{len(todo)}  {cell.name}  {record['took_s']:.0f} s: {said}", file=sys.stderr)
    return int(failed)


def why_not(record: dict[str, Any]) -> str:
    """Why a cell has no figures, in a line; "" if it has some."""
    lines = (record.get("failed") or record.get("cannot", "")).splitlines()
    return f"{lines[0]} {lines[-1]}" if len(lines) > 1 else "".join(lines)


def list_all(options: argparse.Namespace) -> int:
    """Print the cells in their order."""
    for cell in wanted(options):
        print(cell.name)
    return 0


def tell(options: argparse.Namespace) -> int:
    """Print the tables; draw the picture."""
    from tables import goals, methods

    found = [record for record in results(options.out) if "step_ms" in record]
    for lines in (goals(found), methods(found)):
        print("\n".join(lines) + "\n")
    for record in results(options.out):
        if why_not(record):
            print(f"{record['cell']}: {why_not(record)}", file=sys.stderr)
    if options.plot:
        from picture import draw

        draw(found, options.plot)
    return 0


def main() -> int:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["run", "list", "tell"])
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of results")
    parser.add_argument("--minutes", type=float, default=90.0, help="begin no job after this time")
    parser.add_argument("--only", default="", help="a regular expression that the names of cells match")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--epochs", type=int, help="of every job, instead of its own")
    parser.add_argument("--compute-ms", type=float, help="emulated compute of a step, instead of the cell's own")
    parser.add_argument("--retry", action="store_true", help="run again what has failed")
    parser.add_argument("--plot", type=Path, help="draw the picture there")
    options = parser.parse_args()
    return {"run": run_all, "list": list_all, "tell": tell}[options.do](options)


if __name__ == "__main__":
    sys.exit(main())
