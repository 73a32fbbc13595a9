"""How `starprof analyze` bears damaged inputs: 200,000 of all formats, cut, spliced, blown up, nested and renamed.

Each goes through recognition, its importer, the merge with other formats beside it and, every fourth one that is read,
the diagnosis. Right are one line of `InputError`, or a run that holds together, within 10 s and bounded memory. Work is
shared by one process a CPU. Figures go to stdout as JSON; the exit code says whether there was any fault.

    python benchmarks/fuzz_importers.py [--inputs 200000] [--seed 1] [--keep FOLDER] [--jobs N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

FUZZ = Path(__file__).parents[1] / "tests" / "importers" / "fuzz.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, default=None)
    given = parser.parse_args()
    began = time.perf_counter()
    each = -(-given.inputs // given.jobs)
    jobs = [
        subprocess.Popen(_command(given, job, each), stdout=subprocess.PIPE, text=True) for job in range(given.jobs)
    ]
    parts = [json.loads(job.communicate()[0]) for job in jobs]
    outcomes, formats = Counter(), Counter()
    faults = {}
    for part in parts:
        outcomes.update(part["outcomes"])
        formats.update(part["read_by_format"])
        faults |= part["faults"]
    figures = {
        "inputs": sum(part["inputs"] for part in parts),
        "seconds": round(time.perf_counter() - began, 1),
        "outcomes": dict(outcomes),
        "read_by_format": dict(sorted(formats.items())),
        "slowest_s": max(part["slowest_s"] for part in parts),
        "peak_rss_mib": max(part["peak_rss_mib"] for part in parts),
        "faults": faults,
    }
    print(json.dumps(figures, indent=2))
    return 1 if faults else 0


def _command(given: argparse.Namespace, job: int, each: int) -> list[str]:
    seed = str(given.seed * 1000 + job)
    kept = [] if given.keep is None else ["--keep", str(given.keep / str(job))]
    return [sys.executable, str(FUZZ), "--inputs", str(each), "--seed", seed, *kept]


if __name__ == "__main__":
    sys.exit(main())
