"""What goes wrong in a running job: the others go on, and nobody ends up with other parameters than the rest."""

import os
import signal
import time
from itertools import pairwise

import pytest
from test_setups import same

ROUNDS = {"12": ["m-sync", {"m": 3}]}


def moments(job, rank):
    """(time, iteration) of every iteration of a rank."""
    lines = [line.split() for line in job.text(rank).splitlines() if line.startswith("AT ")]
    return [(float(at), int(number)) for _, at, number in lines]


def longest_pause(job, rank, after_s):
    times = [at for at, _ in moments(job, rank) if at >= after_s]
    return max(b - a for a, b in pairwise(times))


def until(job, rank, iteration, within_s=120):
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        done = moments(job, rank)
        if done and done[-1][1] >= iteration:
            return done[-1][0]
        time.sleep(0.01)
    raise AssertionError(job.text(rank))


def coordinators(job):
    """Processes that are coordinators of this job."""
    found = []
    for process in os.listdir("/proc"):
        if process.isdigit():
            try:
                with open(f"/proc/{process}/cmdline") as file:
                    line = file.read()
            except OSError:
                continue
            if "starprof.control.coordinator" in line and str(job.spool) in line:
                found.append(int(process))
    return found


@pytest.mark.parametrize("rings", [False, True], ids=["small sums", "rings"])
def test_the_others_go_on_within_two_seconds_when_a_rank_is_killed(job, rings):
    running = job({"ask": ROUNDS, "user": "survivors", "epochs": 4, "rings": rings})
    until(running, 0, 40)
    killed_s = time.monotonic()
    running.ranks[1].kill()
    told = running.wait([0, 2, 3])
    same(told)
    assert told[0]["executed"] == 160
    for rank in (0, 2):
        assert longest_pause(running, rank, killed_s - 0.1) < 3.0, "loaded machines need a second more than two"


def test_nobody_waits_for_a_rank_that_is_stopped(job):
    running = job({"ask": ROUNDS, "epochs": 14, "usual_s": 0.02, "slow_s": 0.03})
    until(running, 0, 40)
    os.kill(running.ranks[2].pid, signal.SIGSTOP)
    stopped_s = time.monotonic()
    time.sleep(10)
    os.kill(running.ranks[2].pid, signal.SIGCONT)
    told = running.wait()
    same(told)
    for rank in (0, 1, 3):  # at the end of an epoch they wait until it has been silent for five seconds
        pause_s = longest_pause(running, rank, stopped_s)
        assert pause_s < 7.5, f"rank {rank} stood still for {pause_s:.1f} s"


@pytest.mark.parametrize("when", ["in rounds", "in native steps"])
def test_a_coordinator_that_is_killed_is_replaced(job, when):
    plan = ROUNDS if when == "in rounds" else {}
    running = job({"ask": plan, "epochs": 14})
    until(running, 0, 60)
    running.ask(do="status")
    (before,) = coordinators(running)
    os.kill(before, signal.SIGKILL)
    until(running, 0, 100)
    if when == "in native steps":
        answer = running.ask(do="mode", mode="m-sync", options={"m": 3}, reason="")
        assert answer["ok"], answer
    told = running.wait()
    same(told)
    assert told[0]["executed"] > 500
    assert told[-1]["executed"] < 550, "rounds did not go on:\n" + running.text(3)


@pytest.mark.parametrize("fault", ["exception", "interrupt"])
def test_a_rank_that_leaves_with_an_exception_shows_it_and_keeps_nobody(job, fault):
    running = job({"ask": ROUNDS, "user": "survivors", "fault": fault, "fault_rank": 1, "fault_at": 40, "epochs": 3})
    told = running.wait([0, 2, 3])
    same(told)
    assert running.ranks[1].wait(30) != 0
    expected = "of the user's own making" if fault == "exception" else "KeyboardInterrupt"
    assert expected in running.text(1)


def test_without_coordinator_and_store_all_ranks_end_with_a_clear_error(job):
    # Rounds of everybody: other ranks that come first would have to find each other in the store first.
    running = job({"ask": {"12": ["ssgd", {}]}, "epochs": 400}, own_store=True)
    until(running, 0, 40)
    (coordinator,) = coordinators(running)
    running.store.kill()
    moved = until(running, 0, 60)  # rounds need neither as long as nobody is missed
    assert moved
    os.kill(coordinator, signal.SIGKILL)
    for rank in range(4):
        assert running.ranks[rank].wait(30) != 0
        assert "the coordinator is gone, and so is the job's store" in running.text(rank)


def test_the_others_go_on_when_a_rank_leaves_its_loop_early_and_waits_for_them_at_the_end(job):
    running = job({"ask": {"12": ["m-sync", {"m": 2}]}, "user": "early stop", "epochs": 3})
    told = running.wait()
    assert told[1]["executed"] == 30
    assert told[0]["executed"] > 90
    assert len({each["at_last"] for each in told}) == 1
    same([told[0], *told[2:]])


def test_ranks_with_uneven_data_come_together_at_the_end_of_each_epoch(job):
    # Natively the ranks with more batches would wait for ever; rounds begin in the first epoch, before that.
    running = job({"ask": ROUNDS, "uneven": 5, "epochs": 3})
    told = running.wait()
    same(told)


def test_without_control_nothing_of_it_is_loaded(job):
    running = job({"epochs": 1}, control=False)
    running.wait()
    assert not coordinators(running)
    assert not (running.spool / "control.sock").exists()
