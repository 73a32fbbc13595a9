"""The live advisor against never switching and against plain DDP, on real jobs of four ranks on this machine.

    python benchmarks/live_advisor run [--out FILE] [--minutes N] [--only REGEX] [--seeds N] [--healthy N] [--first N]
    python benchmarks/live_advisor tell [--out FILE]
    python benchmarks/live_advisor schedules -n 10000   # random schedules of faults, in virtual time

The jobs are those of `benchmarks/sync` (digits, a step's compute is a sleep, so that four ranks fit on two cores), with
a fault that strikes four seconds after the training has begun (`faults.py`). Each job is a line of FILE when it has
ended; a second start goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
sys.path.append(str(HERE.parent / "sync"))
sys.path.append(str(HERE.parents[1] / "tests" / "advisor"))
from _records import append, read  # noqa: E402 - found by the paths above
from faults import design  # noqa: E402


def main() -> int:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    jobs = what.add_parser("run")
    jobs.add_argument("--minutes", type=float, default=90.0, help="begin no job after this time")
    jobs.add_argument("--only", default="", help="a regular expression that the names of cells match")
    jobs.add_argument("--seeds", type=int, default=5, help="of each fault")
    jobs.add_argument("--healthy", type=int, default=20, help="pairs of jobs in which nobody is slow")
    jobs.add_argument("--first", type=int, default=0, help="the first seed")
    telling = what.add_parser("tell")
    for one in (jobs, telling):
        one.add_argument("--out", type=Path, default=Path("advisor.jsonl"), help="file of results")
    schedules = what.add_parser("schedules")
    schedules.add_argument("-n", type=int, default=10_000)
    schedules.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    if given.what == "run":
        return _run(given)
    if given.what == "tell":
        from telling import told

        print("\n".join(told(record for record in read(given.out) if "failed" not in record)))
        for record in read(given.out):
            if "failed" in record:
                print(f"{record['cell']}: {record['failed']}", file=sys.stderr)
        return 0
    found = _schedules(given.first, given.n)
    print(json.dumps(found))
    return int(bool(found["failed"]))


def _run(given: argparse.Namespace) -> int:
    """Run what is not there yet; 1 when a job has failed."""
    from jobs import run

    done = {record["cell"] for record in read(given.out)}
    wanted = re.compile(given.only)
    cells = [c for c in design(given.seeds, given.healthy, given.first) if wanted.search(c.name) and c.name not in done]
    ends_s, failed = time.monotonic() + 60 * given.minutes, False
    for place, cell in enumerate(cells):
        if time.monotonic() > ends_s:
            print(f"{len(cells) - place} jobs are left: start it again to go on", file=sys.stderr)
            break
        record = run(cell)
        append(given.out, record)
        failed |= "failed" in record
        said = record.get("failed") or f"{record['seconds']:.0f} s, {record.get('forced', '')}"
        print(f"{place + 1}/{len(cells)}  {cell.name}: {said}", file=sys.stderr, flush=True)
    return int(failed)


def _schedules(first: int, count: int) -> dict[str, object]:
    """Play them; a failed one is told by its seed."""
    import random

    from advisor_schedules import play

    failed = []
    for seed in range(first, first + count):
        try:
            play(random.Random(seed))
        except AssertionError as error:
            failed.append([seed, str(error)])
    return {"schedules": count, "first": first, "failed": failed}


if __name__ == "__main__":
    sys.exit(main())
