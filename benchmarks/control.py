"""What control costs a job, and what rounds bring where one rank is slow.

    python benchmarks/control.py [--repeats 3] [--own-ms 20] [--slowdown 4]

Real jobs of four gloo processes with an emulated accelerator (a step's compute is a sleep, so that four ranks on two
cores have the same). Each line is a job of its own; they take turns, `--repeats` times. Told is the median time between
two iterations of rank 0 once everything runs:

- no control, and control in native steps: what watching costs;
- control in rounds of everybody, with no slow rank: what a round costs over a native step;
- one rank slow, in native steps and in m-sync without it: what is won.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "control" / "running"))

from jobs import Job

SETTLED = 40
BATCHES = 120


def median_ms(job: Job) -> float:
    """Median time between two iterations of rank 0, the first ones left out."""
    times = [float(line.split()[1]) for line in job.text(0).splitlines() if line.startswith("AT ")]
    return 1e3 * statistics.median(b - a for a, b in pairwise(times[SETTLED:]))


def measured(name: str, own_s: float, slow_s: float) -> float:
    """One job of its kind."""
    setup = {"usual_s": own_s, "slow_s": slow_s, "epochs": 1, "batches": BATCHES}
    mode = {"rounds": {"mode": "ssgd"}, "m-sync": {"mode": "m-sync", "options": {"m": 3}}}.get(name)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), setup, control=name != "none", mode=mode)
        try:
            job.wait()
            return median_ms(job)
        finally:
            job.kill()


def main() -> None:
    """Run the jobs in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--own-ms", type=float, default=20.0)
    parser.add_argument("--slowdown", type=float, default=4.0)
    args = parser.parse_args()
    own_s, slow_s = args.own_ms / 1e3, args.own_ms * args.slowdown / 1e3
    kinds = {
        "no control": ("none", own_s),
        "control, native": ("native", own_s),
        "rounds of everybody": ("rounds", own_s),
        "one rank slow, native": ("native", slow_s),
        "one rank slow, m-sync": ("m-sync", slow_s),
    }
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(args.repeats):
        for kind, (name, last_s) in kinds.items():
            found[kind].append(measured(name, own_s, last_s))
    base = statistics.median(found["no control"])
    print("| job | ms a step (median of jobs) | least, most | against no control |")
    print("|---|---|---|---|")
    for kind, times in found.items():
        middle = statistics.median(times)
        print(f"| {kind} | {middle:.2f} | {min(times):.2f}, {max(times):.2f} | {middle / base:.3f} x |")


if __name__ == "__main__":
    main()
