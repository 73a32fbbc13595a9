"""What a rank with a slow network interface costs in rounds: four real ranks, each in a network namespace of its own.

Ranks compute for 10 to 30 ms a step. All interfaces are alike, then that of one is slow in sending, then they are alike
again. Prints, of each of these times, the median and mean step of the other ranks, and the part of the rounds in which
that rank took part. The first seconds of each are left out: it takes some rounds to be sure.

    python benchmarks/slow_interface.py [--mode m-sync --options '{"m": 3}'] [--rate-mbit 50] [--seconds 20]

Needs root.
"""

import argparse
import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "control" / "running"))

from jobs import Job

from starprof.demo.netlab import NetLab

SCRIPT = Path(__file__).resolve().parents[1] / "tests" / "control" / "running" / "until_told.py"
RANKS, SLOW = 4, 2
SETTLE_S = 5.0
WITHIN_S = 60.0


def begin(job, mode, options):
    """Move the job to rounds."""
    job.ask(do="mode", mode=mode, options=options, within_s=2 * WITHIN_S)
    until_s = time.monotonic() + WITHIN_S
    while job.ask(do="status")["mode"] != mode:
        if time.monotonic() > until_s:
            sys.exit(f"there are no rounds: {job.text(0)}")
        time.sleep(0.1)


def watch(job, seconds):
    """When a time was, and how many of its rounds the slow rank had a part in."""
    time.sleep(SETTLE_S)
    began_s, first = time.monotonic(), job.ask(do="status")
    time.sleep(seconds)
    ended_s, last = time.monotonic(), job.ask(do="status")
    rounds = last["updates"] - first["updates"]
    part = last["ranks"][SLOW]["contributions"] - first["ranks"][SLOW]["contributions"]
    return {"from_s": began_s, "to_s": ended_s, "rounds": rounds, "in_rounds": round(part / max(1, rounds), 3)}


def steps_of(told, phase):
    """What the other ranks' steps took then."""
    others = [rank for rank in range(RANKS) if rank != SLOW]
    times = [
        1e3 * (after_s - before_s)
        for rank in others
        for before_s, after_s in pairwise(told[rank]["ends_s"])
        if phase["from_s"] <= before_s and after_s <= phase["to_s"]
    ]
    return {"median_ms": round(median(times), 1), "mean_ms": round(mean(times), 1)}


def main():
    """Run the job, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="m-sync")
    parser.add_argument("--options", type=json.loads, default={"m": 3})
    parser.add_argument("--rate-mbit", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--width", type=int, default=500)
    given = parser.parse_args()
    phases = {}
    with tempfile.TemporaryDirectory() as folder, NetLab(RANKS) as lab:
        setup = {"stop": f"{folder}/stop", "width": given.width, "compute_s": 0.02, "batches": 100}
        job = Job(Path(folder), setup, script=SCRIPT, lab=lab)
        try:
            begin(job, given.mode, given.options)
            phases["alike"] = watch(job, given.seconds)
            lab.shape(SLOW, given.rate_mbit)
            phases["slow"] = watch(job, given.seconds)
            lab.unshape(SLOW)
            phases["alike again"] = watch(job, given.seconds)
            Path(setup["stop"]).touch()
            told = job.wait()
        finally:
            job.kill()
    figures = {
        name: {"rounds": phase["rounds"], "in_rounds": phase["in_rounds"], **steps_of(told, phase)}
        for name, phase in phases.items()
    }
    identical = len({rank["digest"] for rank in told}) == 1
    print(json.dumps({"mode": given.mode, "rate_mbit": given.rate_mbit, "identical": identical, **figures}))
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main())
