"""Collectives that the loop calls by a count of its own, and that nobody has seen coming."""

import time

from test_faults import until
from test_setups import same

IN_ROUNDS = {
    "ask": {"12": ["m-sync", {"m": 3}]},
    "user": "hidden barrier",
    "epochs": 1,
    "batches": 500,
    "hidden_every": 300,
    "usual_s": 0.004,
}
"""The barrier comes long after rounds have begun, also where all is slow."""


def until_refused(job):
    """The coordinator's answer when it has heard that rounds can't be."""
    until(job, 0, 30)
    deadline_s = time.monotonic() + 30
    while not (status := job.ask(do="status"))["refused"]:
        assert time.monotonic() < deadline_s, job.text(0)
        time.sleep(0.02)
    return status


def test_one_that_is_first_called_after_the_loop_was_judged_keeps_native_steps(job):
    running = job({"user": "hidden barrier", "epochs": 8, "batches": 60})
    until_refused(running)
    answer = running.ask(do="mode", mode="m-sync", options={"m": 3})
    assert not answer["ok"]
    assert "the loop itself calls barrier by a count of its own" in answer["error"]
    told = running.wait()
    same(told)
    assert {(each["executed"], each["evaluations"]) for each in told} == {(480, 16)}
    assert all("by a count of its own" in running.text(rank) for rank in range(4))


def test_one_that_is_first_called_in_rounds_makes_all_ranks_even_and_native_again(job):
    running = job({**IN_ROUNDS, "slow_s": 0.006})
    status = until_refused(running)
    told = running.wait()
    same(told)
    assert status["wish"] == "native"
    assert "by a count of its own" in status["refused"]
    assert len({(each["executed"], each["evaluations"]) for each in told}) == 1, "all were made even"
    assert 300 < told[0]["executed"] <= 500, "where all are as slow, nobody's batches are passed over"


def test_one_that_not_all_ranks_will_come_to_ends_the_job_with_a_clear_error(job):
    # The slow rank is at the end of its data long before its own count is that far.
    running = job({**IN_ROUNDS, "slow_s": 0.2, "batches": 310})
    for rank in range(4):
        assert running.ranks[rank].wait(120) != 0
        assert "take the count from starprof.steps" in running.text(rank)
        assert "stands before barrier" in running.text(rank)
