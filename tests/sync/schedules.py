"""Random schedules of the round protocol: which event happens next is drawn, everything else follows."""

import random

from world import World

MODES = [
    ("ssgd", lambda n: {}),
    ("m-sync", lambda n: {"m": max(1, n - 1)}),
    ("m-sync-fold", lambda n: {"m": max(1, n - 1)}),
    ("static-x", lambda n: {"x": max(1, n // 2)}),
    ("dynamic-x", lambda n: {}),
    ("ring-x", lambda n: {"x": max(1, n // 2)}),
    ("asgd", lambda n: {}),
    ("ssp", lambda n: {"s": 1}),
]
FAULTS = ("cut", "crash", "coordinator")
MAX_EVENTS = 20_000


def play(seed, *, max_ranks=5, faults=(), switching=False, watch=None):
    """One schedule from its seed, checked after every event and at its end; the world as it ended."""
    rng = random.Random(seed)
    ranks = rng.randint(2, max_ranks)
    name, options = rng.choice(MODES)
    switches = []
    if switching:
        for _ in range(rng.randint(1, 4)):
            other, its = rng.choice([*MODES, (None, lambda n: {}), (None, lambda n: {})])
            switches.append((other, its(ranks)))
    happening = [(kind, rng.randrange(ranks)) for kind in faults]
    world = World(ranks, rng.randint(3, 14), name, options(ranks), faults=happening, switches=switches)
    for _ in range(MAX_EVENTS):
        events = world.enabled()
        if not events:
            break
        event = rng.choice(_likely(events, rng))
        if watch is not None:
            watch(world, event)
        world.happen(event)
        world.check()
    else:
        raise AssertionError("it goes on for ever")
    world.check_end()
    return world


def _likely(events, rng):
    """Faults come at any time, not mostly at once; a lease ends now and then before its rank is back."""
    calm = [e for e in events if e[0] not in {"fault", "switch", "heal"} or rng.random() < 0.1]
    return (calm or events) + 8 * [e for e in events if e[0] == "lease"]
