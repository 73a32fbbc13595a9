"""What users do around their training loop: it must go on as it does without control."""

import time

from test_setups import PLAN, same

ROUNDS = {"14": ["m-sync", {"m": 3}]}


def epochs(job, rank):
    return [line.split()[1:] for line in job.text(rank).splitlines() if line.startswith("EPOCH ")]


def test_all_ranks_have_the_same_parameters_at_the_end_of_every_epoch(job):
    running = job({"ask": PLAN, "epochs": 4, "optimizer": "adamw"})
    same(running.wait())
    seen = [epochs(running, rank) for rank in range(4)]
    assert len(seen[0]) == 4
    assert all(other == seen[0] for other in seen[1:])


def test_training_goes_on_from_a_checkpoint_that_rank_0_made_in_rounds(job, tmp_path):
    setup = {"ask": ROUNDS, "optimizer": "adamw", "user": "checkpoints", "epochs": 2}
    first = job(setup)
    same(first.wait())
    again = job({**setup, "epochs": 4, "resume": str(first.folder / "checkpoint.pt")})
    told = again.wait()
    same(told)
    assert [line[0] for line in epochs(again, 0)] == ["2", "3"]
    assert told[-1]["executed"] < told[0]["executed"]


def test_a_barrier_in_a_loop_that_counts_with_all_ranks(job):
    running = job({"ask": ROUNDS, "user": "steps with a barrier", "epochs": 3, "batches": 60})
    told = running.wait()
    same(told)
    assert [each["evaluations"] for each in told] == [18] * 4
    assert told[-1]["executed"] < 180, "nothing was skipped:\n" + running.text(3)


def test_a_barrier_in_a_loop_with_a_count_of_its_own_keeps_native_steps(job):
    running = job({"user": "barrier", "epochs": 8, "batches": 60}, mode={"mode": "m-sync", "options": {"m": 3}})
    refusals, deadline_s = [], time.monotonic() + 60
    while not refusals and time.monotonic() < deadline_s:
        refusals = running.ask(do="status")["refusals"]
    assert "by a count of its own" in refusals[0]["reasons"][0]
    told = running.wait()
    same(told)
    assert {each["executed"] for each in told} == {480}
    assert "by a count of its own" in running.text(0)


def test_a_mode_that_is_wanted_from_the_start_begins_when_the_loop_is_known(job):
    running = job({"epochs": 3}, mode={"mode": "m-sync", "options": {"m": 3}})
    told = running.wait()
    same(told)
    assert told[-1]["executed"] < told[0]["executed"]


def test_a_mode_that_so_few_ranks_cannot_have_is_told_and_the_job_stays_native(job):
    running = job({"epochs": 1}, mode={"mode": "backup", "options": {"b": 4}})
    told = running.wait()
    same(told)
    assert {each["executed"] for each in told} == {40}
    assert "less than the 4 workers" in running.text(0)
    assert running.text(0).count("stays with native steps") == 1


def test_a_script_can_take_its_model_under_control_by_itself(job):
    running = job({"ask": ROUNDS, "user": "attach"}, control=False)
    told = running.wait()
    same(told)
    assert told[-1]["executed"] < told[0]["executed"]
