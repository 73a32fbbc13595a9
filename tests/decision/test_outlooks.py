"""What a mode is expected to do is what its policy does when workers take those times."""

import numpy as np
import pytest
from sync_play import Predicted, play

from starprof.decision.choice import closed, fresh, waiting
from starprof.decision.choice.candidates import outlooks, worthwhile_counts
from starprof.decision.choice.progress import accuracy_risk, seconds_per_step
from starprof.decision.choice.situation import Situation, expected_times
from starprof.sync.policies import MODES, create

WORKERS = 8
GROUPS = [[0, 1, 2, 3], [4, 5, 6, 7]]


def times(scatter=0.03, factors=(2.6, 1.5, 1.5), rows=60, workers=WORKERS):
    rng = np.random.default_rng(3)
    values = rng.lognormal(0, scatter, (rows, workers)) * 0.5
    for at, factor in enumerate(factors):
        values[:, -1 - at] *= factor
    return values


def of(mode, told):
    """One of the looked-at options of a mode, from the middle of the list."""
    found = [one for one in told if one.mode == mode]
    return found[len(found) // 2]


@pytest.fixture(scope="module")
def told():
    situation = Situation(tuple(range(WORKERS)), times(), 1, node_groups=GROUPS, micro_batches=4)
    return outlooks(situation, 3)[0]


@pytest.mark.parametrize("mode", sorted(set(MODES) - {"zeno++", "sync-switch", "lb-bsp", "drop-compute"}))
def test_a_mode_does_what_was_expected(mode, told):
    outlook = of(mode, told)
    policy = create(mode, range(WORKERS), outlook.options)
    rng = np.random.default_rng(1)
    usual = dict(enumerate(times().mean(axis=0).tolist()))
    before = [(0.0, Predicted(usual))] if mode in {"ring-x", "dynamic-x"} else []
    played = play(policy, lambda worker, _: times()[rng.integers(60), worker], 200 * WORKERS, before)
    if mode in {"local-sgd", "hierarchical"}:
        steps = len(played.averagings) * outlook.options["period"]
        assert 1 / outlook.updates_per_s == pytest.approx(played.end_s / steps, rel=0.1)
        return
    begin = len(played.updates) // 3
    updates = played.updates[begin:]
    period = (played.update_times_s[-1] - played.update_times_s[begin - 1]) / len(updates)
    step = np.mean([sum(update.weights) for update in updates])
    stale = [age for update in updates for age in update.staleness]
    assert 1 / outlook.updates_per_s == pytest.approx(period, rel=0.1)
    assert sum(s.step / s.period_s for s in outlook.streams) * period == pytest.approx(step, rel=0.1)
    assert outlook.mean_staleness == pytest.approx(np.mean(stale), abs=0.15 * WORKERS / 2)
    assert abs(outlook.max_staleness - max(stale)) <= 0.4 * max(stale) + 1


def test_balanced_batches_take_the_harmonic_mean():
    outlook = closed.lb_bsp(np.array([[1.0, 1.0, 2.0]]), 32)
    assert 1 / outlook.updates_per_s == pytest.approx(3 / 2.5)


def test_stopping_early_keeps_whole_micro_batches():
    outlook = closed.drop_compute(np.array([[1.0, 2.0]]), 1.0, 4)
    (stream,) = outlook.streams
    assert stream.period_s == 1.0
    assert 1 / stream.weights_squared == pytest.approx(1.5)
    assert outlook.skew == pytest.approx(1 / 6)


def test_static_x_by_the_renewal_process():
    usual = np.array([[0.5] * 7 + [1.0]])
    found = waiting.simulate(usual, waiting.first(np.arange(1, 9)), 8, 1000)
    right = [67, 143, 250, 334, 500, 500, 500, 1000]
    assert found.period_s * 1000 == pytest.approx(right, abs=0.5)


def test_one_gradient_an_update_has_the_sum_of_all_rates():
    usual = np.array([[0.3, 0.5, 0.7, 1.1]])
    simulated = waiting.simulate(usual, waiting.first(np.array([1])), 1, 4000)
    exact = closed.asgd(usual)
    assert simulated.period_s[0] == pytest.approx(1 / (1 / usual).sum(), rel=0.01)
    assert simulated.mean_staleness[0] == pytest.approx(exact.mean_staleness, rel=0.02)
    assert abs(simulated.max_staleness[0] - exact.max_staleness) <= 1


def test_waiting_for_all_is_the_mean_of_the_maximum():
    values = times(0.3, ())
    simulated = fresh.simulate(values, fresh.first(np.array([WORKERS])), 1, 4000)
    assert simulated.period_s[0] == pytest.approx(values.max(axis=1).mean(), rel=0.02)


def test_many_rows_are_partitioned_and_few_sorted_with_the_same_result():
    values = np.random.default_rng(0).random((5, 300))
    place = np.array([0, 7, 150, 298, 299])
    assert waiting.nth(values, place) == pytest.approx(np.sort(values, axis=1)[np.arange(5), place])


def test_every_mode_has_an_outlook_or_a_reason():
    situation = Situation(tuple(range(WORKERS)), times(), 32)
    found, without = outlooks(situation, 1)
    assert {one.mode for one in found} | {one.mode for one in without} == set(MODES)
    assert all(one.reason for one in without)


def test_barred_modes_keep_their_reason():
    situation = Situation((0, 1, 2), times(workers=3, factors=(2,)), 32, barred={"asgd": "no server"})
    found, without = outlooks(situation)
    assert "asgd" not in {one.mode for one in found}
    assert [one.reason for one in without if one.mode == "asgd"] == ["no server"]


def test_one_worker_has_nobody_to_wait_for():
    found, _ = outlooks(Situation((0,), np.array([[1.0]]), 32))
    assert [one.mode for one in found] == ["ssgd"]


def test_large_jobs_have_a_grid_that_holds_the_number_of_those_in_time():
    counts = worthwhile_counts(1000, 37)
    assert 963 in counts
    assert 999 in counts
    assert len(counts) < 12


@pytest.mark.parametrize("workers", [2, 8, 100])
@pytest.mark.parametrize("phi", [0.0, 50.0, 5000.0])
@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_asynchrony_of_equal_workers_neither_gains_nor_loses(workers, phi, rate):
    same = np.full((1, workers), 0.5)
    plain = seconds_per_step(closed.ssgd(same), phi, 32, workers, rate=rate)
    assert plain == pytest.approx(0.5)
    assert seconds_per_step(closed.asgd(same), phi, 32, workers, rate=rate) == pytest.approx(plain)
    assert seconds_per_step(closed.asgd(same), phi, 32, workers, rate=rate, momentum=0.9) > plain


def test_noise_costs_less_the_lower_the_learning_rate():
    dropping = closed.rennala(np.full((1, 8), 0.5), 4)
    dear, cheap = (seconds_per_step(dropping, 1e3, 32, 8, rate=rate) for rate in (1.0, 0.2))
    assert cheap < dear


def test_too_few_gradients_for_the_noise_make_no_progress():
    outlook = closed.rennala(np.full((1, 8), 0.5), 1)
    assert np.isinf(seconds_per_step(outlook, 1e6, 32, 8))
    assert seconds_per_step(outlook, 0.0, 32, 8) < 1.0


def test_risk_is_none_for_synchronous_steps_and_counts_who_is_left_out_unless_data_are_shuffled():
    plain, dropping = closed.ssgd(times()), closed.rennala(times(), 6)
    assert accuracy_risk(plain, shuffled=False) == 0
    assert accuracy_risk(dropping, shuffled=True) == 0
    assert accuracy_risk(dropping, shuffled=False) == pytest.approx(dropping.skew)
    stale = closed.asgd(times())
    assert 0.3 < accuracy_risk(stale, shuffled=True, momentum=0.0) <= 0.5
    assert accuracy_risk(stale, shuffled=True, momentum=0.9) == pytest.approx(1 - 1 / (1 + 10 * stale.delay_steps))


def test_expected_times_scatter_as_the_history_does():
    history = np.array([[1.0, 2.0], [3.0, np.nan]])
    found = expected_times(np.array([4.0, 5.0]), history)
    assert found == pytest.approx(np.array([[2.0, 5.0], [6.0, 5.0]]))


@pytest.mark.parametrize(
    ("values", "batch"), [(np.ones((1, 3)), 1), (np.ones(2), 1), (np.zeros((1, 2)), 1), (np.ones((1, 2)), 0)]
)
def test_what_no_choice_can_be_made_from_is_refused(values, batch):
    with pytest.raises(ValueError, match=r"time|samples"):
        Situation((0, 1), values, batch)
