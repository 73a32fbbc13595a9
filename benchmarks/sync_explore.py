"""All schedules of the round protocol within a bound: a small job, one crash and one cut, at any moment.

Every state that can be reached is checked once: one history on all ranks, no gradient twice, and in each state in which
nothing more can happen everybody has finished. The order of events is the first that is possible, but for so many
deviations from it (the faults count as one each); `--deviations all` takes every order. Starts when rounds begin.
Prints states and transitions, whether that was everything within the bound, and exits 1 at the first that fails.

    python benchmarks/sync_explore.py [--ranks 3] [--rounds 3] [--mode m-sync] [--faults cut,crash] [--deviations 3]
"""

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sync"))

from explore import explore, in_rounds
from schedules import MODES


def main() -> int:
    """One exploration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mode", choices=dict(MODES), default="m-sync")
    parser.add_argument("--faults", default="cut,crash")
    parser.add_argument("--meetings", action="store_true", help="all ranks come together after every round")
    parser.add_argument("--deviations", default="3")
    parser.add_argument("--max-states", type=int, default=3_000_000)
    given = parser.parse_args()
    os.nice(10)
    faults = [(kind, None) for kind in given.faults.split(",") if kind]
    deviations = None if given.deviations == "all" else int(given.deviations)
    world = in_rounds(
        given.ranks, given.rounds, given.mode, dict(MODES)[given.mode](given.ranks), faults, given.meetings
    )
    began = time.process_time()
    try:
        found = asdict(explore(world, given.max_states, deviations))
    except AssertionError as error:
        found = {"failed": str(error)[:300]}
    print(json.dumps({**vars(given), **found, "cpu_s": round(time.process_time() - began, 1)}))
    return 1 if "failed" in found else 0


if __name__ == "__main__":
    sys.exit(main())
