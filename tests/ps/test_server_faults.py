"""Whatever dies or moves in the middle of a training, the parameters at its end are the same: nothing got lost."""

import signal

from ps_lab import Job, alone, difference, sgd, until


def same_as_alone(job, workers, steps):
    expected = alone(sgd, workers, steps)
    return all(difference(model, expected) < 1e-9 for model in job.models.values())


def go_on(job, steps=6):
    job.all_reach(max(job.steps.values()) + steps)


def test_shards_and_the_head_are_killed_and_a_shard_is_stopped(lab):
    server = lab(2)
    job = Job(server, sgd, 2)
    go_on(job, 11)
    server.kill(server.shard_process(0))
    go_on(job)
    server.kill(server.server.head.process.pid)
    go_on(job)
    server.kill(server.shard_process(1))
    server.kill(server.server.head.process.pid)
    go_on(job)
    server.kill(server.shard_process(1), signal.SIGSTOP)
    go_on(job)
    assert same_as_alone(job, 2, job.stop())


def test_a_shard_is_handed_over_to_another_process_while_the_training_goes_on(lab, tmp_path):
    server = lab(2)
    job = Job(server, sgd, 2)
    go_on(job, 9)
    before = server.shard_process(1)
    former = next(at for at, child in enumerate(server.server.shards) if child.process.pid == before)
    spare = server.spare(tmp_path / "elsewhere")
    until(lambda: server.status()["spares"], "a spare process is there")
    server.ask("move", shard=1)
    until(lambda: server.shard_process(1) == spare.shards[0].process.pid, "the shard is there")
    go_on(job)
    server.kill(server.shard_process(1))  # what it has got is on its own disk by now
    go_on(job)
    left = server.folder / "state" / f"shard-{former}"
    until(lambda: not left.exists(), "the former one has left nothing behind")
    assert server.shard_process(1) != before
    assert same_as_alone(job, 2, job.stop())
