"""Random schedules of the round protocol: crashes, cuts, lost coordinators, switches of the mode, meetings.

Every schedule is deterministic by its seed, runs the production state machines, and is checked after each event: one
history on all ranks, no gradient twice, nobody stands still. Prints how many ran and exits 1 at the first that fails.

    python benchmarks/sync_schedules.py [--schedules 10000] [--max-ranks 8] [--first-seed 0]
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sync"))

from schedules import FAULTS, HARD, play

MIXES = [
    {"faults": faults, "switching": switching, "meeting": meeting}
    for faults in ((), ("cut",), ("cut", "crash"), FAULTS, HARD)
    for switching in (False, True)
    for meeting in (False, True)
]


def main() -> int:
    """All of them, the mixes of faults in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--max-ranks", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=0)
    given = parser.parse_args()
    os.nice(10)
    began = time.process_time()
    events = Counter()
    met = 0
    for seed in range(given.first_seed, given.first_seed + given.schedules):
        mix = MIXES[seed % len(MIXES)]
        try:
            world = play(seed, max_ranks=given.max_ranks, watch=lambda _, event: events.update(event[:1]), **mix)
        except Exception as error:
            print(json.dumps({"seed": seed, **mix, "failed": f"{type(error).__name__}: {error}"[:300]}))
            return 1
        met += max(len(epochs) for epochs in world.met.values())
    seconds = round(time.process_time() - began, 1)
    print(
        json.dumps(
            {
                "schedules": given.schedules,
                "max_ranks": given.max_ranks,
                "events": sum(events.values()),
                "meetings": met,
                "cpu_s": seconds,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
