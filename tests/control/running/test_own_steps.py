"""Real jobs whose ranks step on their own for a while: at the end all of them have the same state, bit for bit."""

import time

import pytest
from test_faults import longest_pause, until
from test_setups import same

LOCAL = ["local-sgd", {"period": 8}]
GROUPS = ["hierarchical", {"groups": [[0, 1], [2, 3]], "period": 4}]
PLAN = {"12": LOCAL, "45": ["m-sync", {"m": 3}], "65": GROUPS, "95": ["native", {}]}
SETUPS = {
    "sgd": {},
    "adamw with clipping and a schedule": {"optimizer": "adamw", "clip": True, "schedule": "cosine"},
}


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())
def test_replicas_are_identical(job, setup):
    running = job({**setup, "ask": PLAN})
    told = running.wait()
    same(told)
    assert told[0]["accuracy"] > 0.3


def test_the_others_go_on_when_a_rank_is_killed_inside_a_period(job):
    running = job({"ask": {"12": GROUPS}, "user": "survivors", "epochs": 4})
    until(running, 0, 42, within_s=110)
    killed_s = time.monotonic()
    running.ranks[1].kill()
    told = running.wait([0, 2, 3])
    same(told)
    assert [each["executed"] for each in told] == [160] * 3, "everybody makes all of its own iterations"
    assert longest_pause(running, 0, killed_s - 0.1) < 10.0, "a lease of two seconds, on loaded machines longer"
