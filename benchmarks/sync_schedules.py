"""Random schedules of the round protocol: crashes, cuts, lost coordinators, switches, meetings, ranks that leave early.

Every schedule is deterministic by its seed, runs the production state machines, and is checked after each event: one
history on all ranks, no gradient twice, nobody stands still. Prints how many ran, in how many of them what came about,
and exits 1 at the first that fails.

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

from schedules import EVERYTHING, FAULTS, HARD, play
from world import World

MIXES = [
    {"faults": faults, **modes, **kind, "lagging": lagging}
    for faults in ((), ("cut",), ("cut", "crash"), FAULTS, HARD, EVERYTHING)
    for modes in ({}, {"switching": True, "predicting": True}, {"switching": True, "states": True})
    for kind in ({}, {"meeting": True}, {"early": True})
    for lagging in (False, True)
]
"""What a schedule is drawn from, in turn."""

HAZARDS = (0.1, 0.03, 0.01)
"""Faults and switches come early, or now and then, or late; in turn, too."""

HELD_EVERY = 2
"""In every second turn some ranks' interfaces are slow, and their gradients are held back."""


def mix_of(seed: int) -> dict[str, object]:
    """What the schedule of a seed is drawn from."""
    turn, place = divmod(seed, len(MIXES))
    return {**MIXES[place], "hazard": HAZARDS[turn % len(HAZARDS)], "holding": turn % HELD_EVERY == HELD_EVERY - 1}


def _under(world: World, event: tuple) -> set[str]:
    """What a schedule is in the middle of when something happens."""
    coordinator = world.coordinator
    there = {
        "rounds of states": coordinator._local.period > 0,
        "a rank behind the limit": any(known.behind for known in coordinator.ranks.values()),
        "a meeting": coordinator._meetings.under_way,
        "ranks that stand aside": bool(coordinator._meetings.aside),
        "gradients that are held back": bool(coordinator._held),
    }
    now = {name for name, holds in there.items() if holds}
    if event[0] == "fault":
        kind = world.faults[event[1]][0]
        return {*now, kind, *(f"{kind} + {name}" for name in now)}
    return {*now, "switch + rounds of states"} if event[0] == "switch" and "rounds of states" in now else now


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
    reached = Counter()
    met = 0
    for seed in range(given.first_seed, given.first_seed + given.schedules):
        mix = mix_of(seed)
        under = set()

        def watch(world: World, event: tuple, under: set[str] = under) -> None:
            events.update(event[:1])
            under.update(_under(world, event))

        try:
            world = play(seed, max_ranks=given.max_ranks, watch=watch, **mix)
        except Exception as error:
            print(json.dumps({"seed": seed, **mix, "failed": f"{type(error).__name__}: {error}"[:300]}))
            return 1
        met += max(len(epochs) for epochs in world.met.values())
        reached.update(under)
    seconds = round(time.process_time() - began, 1)
    print(
        json.dumps(
            {
                "schedules": given.schedules,
                "max_ranks": given.max_ranks,
                "events": sum(events.values()),
                "meetings": met,
                "schedules_with": dict(sorted(reached.items())),
                "cpu_s": seconds,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
