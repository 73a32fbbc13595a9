"""Workers of recorded runs have the times that their ranks had, and the memory in them."""

import numpy as np
import pytest

from starprof.analysis.own_time import own_time
from starprof.analysis.settings import Settings
from starprof.analysis.synthetic import Slow, synthetic_run
from starprof.errors import NoDataError
from starprof.simulation import Mode, NoiseScale, Until, simulate
from starprof.simulation.recorded import Recorded, block_length, filled, workers_of


def test_ranks_keep_their_own_times():
    run = synthetic_run(ranks=4, steps=300, faults=[Slow("backward", ranks=(2,), factor=1.5)], seed=3)
    times_s = own_time(run, Settings()).cycle / 1e6
    workers = workers_of(run, batch=16)
    typical = {worker.index: worker.source.typical_s for worker in workers}
    assert [typical[rank] for rank in range(4)] == pytest.approx(list(times_s.mean(axis=1)))
    assert max(typical, key=typical.get) == 2
    assert {worker.batch for worker in workers} == {16}
    history = simulate(Mode("ssgd"), workers, NoiseScale(), until=Until(updates=300))
    assert history.end_s / 300 == pytest.approx(times_s.max(axis=0).mean(), rel=0.1)


def test_recorded_steps_in_their_order():
    source = Recorded((1.0, 2.0, 3.0), block=0)
    draw = source.start([0, 0])
    assert [draw(0.0) for _ in range(5)] == [1.0, 2.0, 3.0, 1.0, 2.0]


def test_resampled_times_keep_their_autocorrelation_and_what_ranks_have_in_common():
    random = np.random.default_rng(1)
    common = np.zeros(2_000)
    for step in range(1, 2_000):
        common[step] = 0.9 * common[step - 1] + random.standard_normal()
    times = np.exp(0.1 * np.stack([common + 0.3 * random.standard_normal(2_000) for _ in range(3)]))
    block = block_length(times)
    assert 10 <= block <= 60
    draws = [Recorded(tuple(row), block).start([7, index]) for index, row in enumerate(times)]
    again = np.array([[draw(0.0) for _ in range(5_000)] for draw in draws])
    assert np.corrcoef(again[0][:-1], again[0][1:])[0, 1] == pytest.approx(
        np.corrcoef(times[0][:-1], times[0][1:])[0, 1], abs=0.08
    )
    assert np.corrcoef(again)[0, 1] == pytest.approx(np.corrcoef(times)[0, 1], abs=0.08)
    assert again.mean() == pytest.approx(times.mean(), rel=0.05)


def test_independent_times_need_no_blocks():
    assert block_length(np.random.default_rng(2).uniform(1, 2, (4, 400))) <= 3


def test_gaps_take_the_median():
    assert filled(np.array([1.0, np.nan, 3.0, 2.0])) == (1.0, 2.0, 3.0, 2.0)
    with pytest.raises(NoDataError):
        filled(np.array([np.nan, 0.0]))
