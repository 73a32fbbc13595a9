"""A job that is moved from mode to mode at random, while ranks stand still at random."""

import contextlib
import random
import signal
import time

from test_setups import same

from starprof.control import controlsocket
from starprof.errors import StarprofError

SEED = 7
MODES = [
    ("native", {}),
    ("m-sync", {"m": 3}),
    ("m-sync", {"m": 2}),
    ("m-sync-fold", {"m": 2}),
    ("static-x", {"x": 2}),
    ("asgd", {}),
    ("ssgd", {}),
    ("deadline", {"after_s": 0.008}),
    ("ssp", {"s": 3}),
]
SETUP = {
    "model": "large",
    "ddp": {"bucket_cap_mb": 0.2},
    "optimizer": "adamw",
    "clip": True,
    "schedule": "cosine",
    "epochs": 22,
    "usual_s": 0.005,
}


def test_replicas_are_identical_after_any_sequence(job):
    chance = random.Random(SEED)
    running = job(SETUP)
    done, stopped = [], 0
    while running.ranks[0].poll() is None:
        name, options = chance.choice(MODES)
        with contextlib.suppress(StarprofError):  # not begun yet, or over just now
            answer = controlsocket.ask(running.spool, {"do": "mode", "mode": name, "options": options})
            assert answer["ok"], answer
            done.append(name)
        time.sleep(chance.uniform(0.05, 0.8))
        if chance.random() < 0.3:
            rank = running.ranks[chance.randrange(4)]
            rank.send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.1, 1.2))
            rank.send_signal(signal.SIGCONT)
            stopped += 1
    told = running.wait()
    same(told)
    assert len(set(done)) >= 5, (done, running.text(0))
    assert stopped >= 2
