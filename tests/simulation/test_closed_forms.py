"""Round times that are known in closed form."""

import numpy as np
import pytest

from starprof.simulation import Exponential, HeavyTailed, Mode, NoiseScale, Steady, Until, Worker, simulate

PLAIN = NoiseScale()


def workers(*sources):
    return [Worker(index, source) for index, source in enumerate(sources)]


def run(mode, staff, updates=2_000, seed=1, **options):
    return simulate(Mode(mode, options), staff, PLAIN, until=Until(updates=updates), seed=seed)


def test_of_unequal_steady_workers_asgd_makes_the_sum_of_their_rates():
    times = [0.5, 0.5, 0.75, 1.0, 2.0]
    history = run("asgd", workers(*map(Steady, times)), updates=5_000)
    assert history.updates_per_s == pytest.approx(sum(1 / t for t in times), rel=0.01)


def test_of_unequal_steady_workers_ssgd_takes_the_slowest():
    history = run("ssgd", workers(Steady(0.5), Steady(0.75), Steady(2.0)), updates=100)
    assert history.end_s == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("x", "round_s"), [(1, 1 / 15), (2, 0.143), (3, 0.25), (4, 0.334), (5, 0.5), (6, 0.5), (7, 0.5), (8, 1.0)]
)
def test_static_x_with_one_slow_worker_of_eight(x, round_s):
    """Seven at 500 ms, one at 1000 ms: what waits for x from anyone is no interpolation between the extremes.

    The expected values are of a renewal process: the x shortest residual times, over and over.
    """
    history = run("static-x", workers(*[Steady(0.5)] * 7, Steady(1.0)), updates=600, x=x)
    assert history.end_s / 600 == pytest.approx(round_s, rel=0.03)


@pytest.mark.parametrize("x", [1, 4, 7, 8])
def test_order_statistics_of_exponential_workers(x):
    """The x-th of N takes H_N - H_(N-x) means, whatever the others have behind them: they have no memory."""
    history = run("static-x", workers(*[Exponential(1.0)] * 8), updates=2_000, x=x)
    expected = sum(1 / k for k in range(8 - x + 1, 9))
    assert history.end_s / 2_000 == pytest.approx(expected, rel=0.06)


def test_the_slowest_of_heavy_tailed_workers():
    """E max of N Pareto variables is least * N * B(N, 1 - 1/a)."""
    from scipy.special import beta

    source = HeavyTailed(1.0, 3.0)
    history = run("ssgd", workers(*[source] * 8), updates=3_000)
    assert history.end_s / 3_000 == pytest.approx(source.least_s * 8 * beta(8, 1 - 1 / 3), rel=0.05)


def test_equal_seeds_give_equal_histories_and_others_do_not():
    staff = workers(*[Steady(1.0, cv=0.3, correlation=0.5)] * 4)
    first, again, other = (run("asgd", staff, updates=50, seed=seed) for seed in (3, 3, 4))
    assert first.steps == again.steps
    assert first.steps != other.steps


def test_own_times_have_the_mean_the_spread_and_the_memory_that_they_should():
    draw = Steady(2.0, cv=0.25, correlation=0.8).start([5, 0])
    times = np.array([draw(0.0) for _ in range(40_000)])
    logs = np.log(times)
    assert times.mean() == pytest.approx(2.0, rel=0.03)
    assert times.std() / times.mean() == pytest.approx(0.25, rel=0.08)
    assert np.corrcoef(logs[:-1], logs[1:])[0, 1] == pytest.approx(0.8, abs=0.02)
