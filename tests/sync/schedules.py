"""Random schedules of the round protocol: which event happens next is drawn, everything else follows."""

import random

from world import World
from world_loops import Epochs

from starprof.sync.protocol.lag import LagLimit

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
    ("local-sgd", lambda n: {"period": 3}),
    ("hierarchical", lambda n: {"groups": [list(range(n // 2)), list(range(n // 2, n))], "period": 2}),
]
OF_STATES = [entry for entry in MODES if entry[0] in {"local-sgd", "hierarchical"}]
FAULTS = ("cut", "crash", "coordinator")
HARD = ("cut", "cut", "cut", "coordinator", "coordinator", "crash")
EVERYTHING = (*HARD, "tear", "tear", "refuse")
MAX_EVENTS = 5_000


def play(
    seed,
    *,
    max_ranks=5,
    faults=(),
    switching=False,
    meeting=False,
    predicting=False,
    lagging=False,
    early=False,
    states=False,
    hazard=0.1,
    holding=False,
    watch=None,
):
    """One schedule from its seed, checked after every event and at its end; the world as it ended.

    With `states`, every other mode of those that it switches between is one in which ranks step on their own. Each
    fault and switch that may happen is among the events that are drawn from with the probability `hazard`.
    """
    rng = random.Random(seed)
    ranks = rng.randint(2, max_ranks)
    first = rng.randrange(2) if states else 1
    name, options = rng.choice(OF_STATES if states and not first else MODES)
    switches = []
    if switching:
        for place in range(rng.randint(1, 4)):
            into = states and place % 2 != first
            other, its = rng.choice(OF_STATES if into else [*MODES, (None, lambda n: {}), (None, lambda n: {})])
            switches.append((other, its(ranks)))
    happening = [(kind, rng.randrange(ranks)) for kind in faults]
    updates = rng.randint(3, 14)
    epochs = None
    if meeting:
        epochs = Epochs(rng.randint(1, 4), rng.randint(1, 6), last=rng.random() < 0.8, skip_at_once=rng.random() < 0.5)
    if early:
        epochs = Epochs(rng.randint(1, 4), rng.randint(1, 6), early=((rng.randrange(ranks), rng.randint(2, 12)),))
    predictions = []
    if predicting:
        predictions = [{r: rng.choice([1.0, 1.02, 3.0]) for r in range(ranks)} for _ in range(rng.randint(1, 4))]
    tick_s = rng.choice([0.0, 0.05, 0.2])
    lag = LagLimit(rng.choice([1, 2, 4]), rng.choice([0.0, 1.0])) if lagging else None
    slow = rng.sample(range(ranks), rng.randint(1, max(1, ranks // 2))) if holding else ()
    world = World(
        ranks,
        updates,
        name,
        options(ranks),
        faults=happening,
        switches=switches,
        epochs=epochs,
        predictions=predictions,
        tick_s=tick_s,
        lag=lag,
        slow=slow,
    )
    for _ in range(MAX_EVENTS):
        events = world.enabled()
        if not events:
            break
        event = rng.choice(_likely(events, rng, hazard))
        if watch is not None:
            watch(world, event)
        world.happen(event)
        world.check()
    else:
        raise AssertionError("it goes on for ever")
    world.check_end()
    return world


def _likely(events, rng, hazard):
    """Faults come at any time, not mostly at once; a lease ends now and then before its rank is back."""
    calm = [e for e in events if e[0] not in {"fault", "switch", "predict", "heal"} or rng.random() < hazard]
    return (calm or events) + 8 * [e for e in events if e[0] == "lease"]
