"""The live advisor against never switching and against plain DDP, on real jobs of four ranks on this machine.

    python benchmarks/live_advisor jobs --seeds 5       # step rates, time from onset to action, accuracy, wrong actions
    python benchmarks/live_advisor schedules -n 10000   # random schedules of faults, in virtual time

A rank sleeps four times as long from a moment on (`--fault sleep`) or is stopped by SIGSTOP three quarters of the time
(`--fault stop`). Ranks sleep where an accelerator would compute, so that four of them fit on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "advisor"))


def main() -> None:
    """Run what is asked for, print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    jobs = what.add_parser("jobs")
    jobs.add_argument("--seeds", type=int, default=5)
    jobs.add_argument("--fault", choices=("sleep", "stop"), default="sleep")
    jobs.add_argument("--steps", type=int, default=1200, help="of rank 0, after which a job has ended")
    jobs.add_argument("--variants", nargs="*", default=["advisor", "never", "plain", "healthy", "healthy-plain"])
    schedules = what.add_parser("schedules")
    schedules.add_argument("-n", type=int, default=10_000)
    schedules.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    if given.what == "schedules":
        print(json.dumps(_schedules(given.first, given.n)))
        return
    import jobs as measured

    print(json.dumps(measured.all_of(given), indent=1))


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
    main()
