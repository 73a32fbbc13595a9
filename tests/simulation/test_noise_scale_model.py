"""The formula for large sweeps says about the same as training for real."""

import numpy as np
import pytest

from starprof.demo.digits import digits, model
from starprof.simulation import Mode, NoiseScale, RealTraining, Until, simulate
from starprof.simulation.scenarios import Traits, scenario
from starprof.simulation.training.real import noise_scale

DATA = digits()


def seconds(history, loss):
    """Until the mean loss of nine iterations is so low."""
    progress = np.array([e.progress for e in history.evaluations])
    losses = np.array([e.loss for e in history.evaluations])
    smooth = np.array([losses[(progress > p - 9) & (progress <= p)].mean() for p in progress])
    return history.evaluations[int(np.flatnonzero(smooth <= loss)[0])].at_s


@pytest.mark.parametrize("kind", ["persistent", "heavy-tailed"])
def test_times_to_a_loss_in_units_of_synchronous_training(kind):
    """At a small learning rate: there the formula has nothing to be fitted."""
    training = RealTraining(model("logistic"), DATA, 0.3, evaluate_every=1.0)
    formula = NoiseScale(noise_scale(training, 128, after=20, draws=50), rate=0.01)
    job = scenario(kind, 8, traits=Traits(batch=16, tail_index=1.8))
    modes = [Mode("ssgd"), Mode("asgd"), Mode("static-x", {"x": 4}), Mode("m-sync", {"m": 6}), Mode("lgc", {"k": 6})]
    real, told = {}, {}
    for mode in modes:
        real[mode.name] = seconds(simulate(mode, job.workers, training, until=Until(progress=90)), 0.95)
        told[mode.name] = simulate(mode, job.workers, formula, until=Until(learned=50)).end_s
    for name in real:
        assert told[name] / told["ssgd"] == pytest.approx(real[name] / real["ssgd"], rel=0.12), name


def test_noise_makes_small_rounds_worth_less():
    job = scenario("persistent", 8, traits=Traits(batch=16))

    def learned(phi, m):
        history = simulate(Mode("m-sync", {"m": m}), job.workers, NoiseScale(phi), until=Until(updates=100))
        return history.steps[-1].learned

    assert learned(0.0, 4) == pytest.approx(100)
    assert learned(50.0, 7) > learned(50.0, 5) > learned(50.0, 3)


def test_staleness_costs_what_it_is_said_to():
    job = scenario("even", 8, traits=Traits(batch=16, cv=0.0))
    free, dear = (
        simulate(Mode("asgd"), job.workers, NoiseScale(0.0, cost, rate=0.01), until=Until(updates=4_000))
        for cost in (0.0, 0.2)
    )
    # Seven eighths of an iteration lie between a gradient's parameters and its update.
    assert dear.steps[-1].learned / free.steps[-1].learned == pytest.approx(1 / (1 + 0.2 * 7 / 8), rel=0.01)


def test_the_noise_scale_may_grow_with_training():
    job = scenario("even", 8, traits=Traits(batch=16))
    growing = NoiseScale(((0.0, 0.0), (40.0, 0.0), (41.0, 100.0)))
    steps = simulate(Mode("m-sync", {"m": 6}), job.workers, growing, until=Until(updates=100)).steps
    gains = np.diff([step.learned for step in steps])
    assert gains[20] == pytest.approx(1.0)
    assert gains[80] < 0.9
