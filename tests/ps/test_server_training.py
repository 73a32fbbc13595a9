"""What workers get from a parameter server is what one process with all the data would compute."""

from ps_lab import Job, adamw, alone, difference, sgd


def test_synchronous_steps_are_those_of_one_process_with_the_mean_gradient(lab):
    job = Job(lab(3), sgd, 3)
    other = Job(lab(2, name="other", shards=1, clip=0.05), adamw, 2)
    job.all_reach(12)
    other.all_reach(12)
    steps, others = job.stop(), other.stop()
    expected, clipped = alone(sgd, 3, steps), alone(adamw, 2, others, clip=0.05)
    for model in job.models.values():
        assert difference(model, expected) < 1e-9
    for model in other.models.values():
        assert difference(model, clipped) < 1e-6
