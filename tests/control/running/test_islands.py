"""Jobs in HSDP: islands of two ranks, moved through modes while they run. All islands end with the same bits."""

import os
import signal
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("islands.py")
PLAN = {"12": ["m-sync", {"m": 1}], "40": ["asgd", {}], "60": ["ssgd", {}], "75": ["native", {}]}
OWN_STEPS = {
    "12": ["local-sgd", {"period": 3}],
    "30": ["hierarchical", {"period": 4, "groups": [[0, 2]]}],
    "50": ["m-sync", {"m": 1}],
    "70": ["local-sgd", {"period": 5}],
    "85": ["native", {}],
}
SETUPS = {
    "momentum, with evaluation by all": {"evaluate": True},
    "adamw with clipping, a schedule, accumulation and workers": {
        "optimizer": "adamw",
        "clip": True,
        "scaler": True,
        "schedule": "cosine",
        "accumulate": 2,
        "batches": 80,
        "workers": 1,
        "ask": OWN_STEPS,
    },
}
LONG_S = 300
"""FSDP alone takes seconds to import, in each of the processes."""


def same(told):
    """Both islands have the same shards; ranks of one island have done the same."""
    for one, other in ((0, 2), (1, 3)):
        for what in ("parameters", "optimizers", "schedules", "rates", "scaler"):
            assert told[one][what] == told[other][what], (what, told)
    for one, other in ((0, 1), (2, 3)):
        assert told[one]["executed"] == told[other]["executed"], told


def epochs(job, rank):
    return [line.split()[1:] for line in job.text(rank).splitlines() if line.startswith("EPOCH ")]


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())
def test_islands_are_identical_and_the_slow_one_is_left_behind(job, setup):
    running = job({"ask": PLAN, **setup}, script=SCRIPT)
    told = running.wait(within_s=LONG_S)
    same(told)
    iterations = 3 * setup.get("batches", 40) // setup.get("accumulate", 1)
    assert told[0]["executed"] > 80
    assert told[3]["executed"] < iterations, "the slow island has skipped nothing: " + running.text(3)
    assert told[0]["accuracy"] > 0.3
    for one, other in ((0, 2), (1, 3)):
        assert len(epochs(running, one)) == 3
        assert epochs(running, one) == epochs(running, other)


def iterations(job, rank):
    return sum(line.startswith("AT ") for line in job.text(rank).splitlines())


def test_an_island_is_lost_with_a_rank_that_is_killed_and_the_other_goes_on(job):
    setup = {"ask": {"12": ["m-sync", {"m": 1}]}, "survivors": True, "workers": 1, "epochs": 2}
    running = job(setup, script=SCRIPT)
    deadline_s = time.monotonic() + LONG_S
    while iterations(running, 0) < 20:
        assert time.monotonic() < deadline_s, running.text(0)
        time.sleep(0.05)
    running.ranks[3].kill()
    told = running.wait([0, 1], within_s=LONG_S)
    assert told[0]["executed"] == told[1]["executed"] > 40
    assert len(epochs(running, 0)) == 2
    assert running.ranks[2].wait(60) != 0, "the rest of the island has to end with an error"


def until(job, condition):
    """Wait until it has come true, or the job is over."""
    deadline_s = time.monotonic() + LONG_S
    while not condition():
        assert all(rank.poll() is None for rank in job.ranks), "the job is over: " + job.text(0)
        assert time.monotonic() < deadline_s, job.text(0)
        time.sleep(0.05)


def island(job, name):
    """What the coordinator says of one."""
    return next(each["state"] for each in job.ask(do="status")["ranks"] if each["rank"] == name)


def test_an_island_that_was_stopped_takes_another_ones_state(job):
    """Where a follower stands still, its leader waits, and falls behind; where the leader does, the island is lost."""
    setup = {"optimizer": "adamw", "clip": True, "scaler": True, "slow_rank": -1, "batches": 40, "epochs": 6}
    wanted = {"mode": "m-sync", "options": {"m": 1}, "max_lag": 8}
    running = job({**setup, "stops": {"3": 0, "2": 1}}, script=SCRIPT, mode=wanted)
    for rank, state in ((3, "behind"), (2, "lost")):
        until(running, lambda rank=rank: "STOPS" in running.text(rank))
        until(running, lambda state=state: island(running, 2) == state)
        os.kill(running.ranks[rank].pid, signal.SIGCONT)
    told = running.wait(within_s=LONG_S)
    same(told)
    assert told[2]["executed"] < 240, "what the others did meanwhile is passed over"


def test_without_replicas_only_resource_actions_are_possible(job):
    wanted = {"mode": "m-sync", "options": {"m": 1}}
    running = job({"mesh": [2], "slow_rank": 1, "epochs": 1, "waits": True}, script=SCRIPT, world=2, mode=wanted)
    until(running, lambda: len(running.ask(do="status")["refusals"]) == 2)
    told = running.ask(do="status")
    (running.folder / "go").touch()
    assert [each["executed"] for each in running.wait(within_s=LONG_S)] == [40, 40]
    reasons = [reason for refusal in told["refusals"] for reason in refusal["reasons"]]
    for rank in (0, 1):
        (line,) = [line for line in running.text(rank).splitlines() if line.startswith("starprof:")]
        assert line.endswith(reasons[rank])
    (reason,) = set(reasons)
    assert "FSDP without replicas" in reason
    assert "only resource actions are possible" in reason
    assert (told["mode"], told["wish"]) == ("native", "m-sync")
