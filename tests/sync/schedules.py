"""Random schedules of the round protocol: which event happens next is drawn, everything else follows."""

import random

from world import Epochs, World

MODES = [
    ("ssgd", lambda n: {}),
    ("m-sync", lambda n: {"m": max(1, n - 1)}),
    ("m-sync-fold", lambda n: {"m": max(1, n - 1)}),
    ("static-x", lambda n: {"x": max(1, n // 2)}),
    ("dynamic-x", lambda n: {}),
    ("ring-x", lambda n: {"x": max(1, n // 2)}),
    ("asgd", lambda n: {}),
    ("ssp", lambda n: {"s": 1}),
    ("deadline", lambda n: {"after_s": 0.3}),
    ("backup", lambda n: {"b": 1}),
    ("lgc", lambda n: {"k": max(1, n - 1)}),
    ("lb-bsp", lambda n: {"batch_size": 8}),
    ("sync-switch", lambda n: {"switch_at": 5}),
    ("eager", lambda n: {}),
    ("drop-compute", lambda n: {"tau_s": 1.0}),
    ("rennala", lambda n: {"batch": n}),
    ("ringmaster", lambda n: {"r": 3}),
]
FAULTS = ("cut", "crash", "coordinator")
HARD = ("cut", "cut", "cut", "coordinator", "coordinator", "crash")
MAX_EVENTS = 5_000


def play(seed, *, max_ranks=5, faults=(), switching=False, meeting=False, predicting=False, watch=None):
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
    updates = rng.randint(3, 14)
    epochs = None
    if meeting:
        epochs = Epochs(rng.randint(1, 4), rng.randint(1, 6), last=rng.random() < 0.8, skip_at_once=rng.random() < 0.5)
    predictions = []
    if predicting:
        predictions = [{r: rng.choice([1.0, 1.02, 3.0]) for r in range(ranks)} for _ in range(rng.randint(1, 4))]
    world = World(
        ranks,
        updates,
        name,
        options(ranks),
        faults=happening,
        switches=switches,
        epochs=epochs,
        predictions=predictions,
        tick_s=rng.choice([0.0, 0.05, 0.2]),
    )
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
    calm = [e for e in events if e[0] not in {"fault", "switch", "predict", "heal"} or rng.random() < 0.1]
    return (calm or events) + 8 * [e for e in events if e[0] == "lease"]
