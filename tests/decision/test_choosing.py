"""Which mode is chosen, when it changes, and what a choice tells."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starprof.decision.choice import paper, stragglers, tail
from starprof.decision.choice.bound import bound
from starprof.decision.choice.choice import Standing
from starprof.decision.choice.heuristic import Settings, choose
from starprof.decision.choice.situation import Limits, NoiseScale, Resources, Situation
from starprof.sync.policies import MODES, create

NOISE = NoiseScale(200, 300)
PLAIN = Limits(momentum=0.0)
LIVE_BARS = {"lb-bsp": "batches keep their size"}


def situation(factors=(2,), noise=NOISE, workers=8, scatter=0.03, seed=0, **options):
    rng = np.random.default_rng(seed)
    values = rng.lognormal(0, scatter, (30, workers)) * 0.5
    for at, factor in enumerate(factors):
        values[:, -1 - at] *= factor
    return Situation(tuple(range(workers)), values, 32, noise, **{"barred": LIVE_BARS, **options})


def test_nobody_late_is_ssgd():
    choice = choose(situation(()), Standing("m-sync", {"m": 7}, frozenset({7})))
    assert (choice.mode, choice.changed) == ("ssgd", True)
    assert "nobody is expected to be late" in choice.reason


def test_one_late_worker_of_eight_is_not_waited_for():
    choice = choose(situation())
    assert choice.mode in {"m-sync", "backup", "lgc", "m-sync-fold"}
    assert choice.gain > 1.5
    assert choice.standing.stragglers == {7}
    assert "workers expected to be late: 7" in choice.reason
    assert "Runner-up" in choice.reason


@pytest.mark.parametrize("factors", [(2,), (10,), (1.5, 1.5, 3), (4,) * 4])
def test_unknown_noise_chooses_what_pays_at_any_noise(factors):
    choice = choose(situation(factors, noise=None))
    score = next(score for score in choice.scores if score.mode == choice.mode)
    assert score.worst_gain >= 1.05 or choice.mode == "ssgd"
    for noise in (NoiseScale(0, 0), NoiseScale(1e3, 1e3)):
        known = choose(situation(factors, noise=noise))
        again = [s for s in known.scores if s.mode == choice.mode]
        assert again[0].gain >= score.worst_gain - 1e-3
    assert choice.inputs["noise_scale"]["measured"] is False


def test_what_is_chosen_can_be_had():
    for factors in ((2,), (10,), (1.5, 1.5, 3), (4,) * 4):
        choice = choose(situation(factors))
        create(choice.mode, range(8), choice.options)


def test_the_same_stragglers_are_no_reason_to_change():
    first = choose(situation((2,)))
    second = choose(situation((6,)), first.standing)
    assert (second.mode, second.options, second.changed) == (first.mode, first.options, False)
    assert "the same workers" in second.reason


def test_the_same_stragglers_are_one_if_twice_as_much_is_gained_as_otherwise():
    before = Standing("lgc", {"k": 7}, frozenset({4, 5, 6, 7}))
    assert choose(situation((4, 4, 4, 4), noise=NoiseScale(30, 60)), before).mode == "m-sync"


def test_what_may_gain_much_comes_before_what_surely_gains_little():
    half = choose(situation((2, 2, 2, 2), noise=NoiseScale(1500, 3000)))
    chosen = next(score for score in half.scores if score.mode == half.mode)
    surest = max((score for score in half.scores if score.eligible), key=lambda score: score.worst_gain)
    assert chosen.worst_gain < surest.worst_gain
    assert chosen.gain > 1.3 * surest.gain
    assert chosen.regret < surest.regret


def test_who_must_not_lose_anything_is_given_what_surely_gains():
    sure = choose(situation((2, 2, 2, 2), noise=NoiseScale(1500, 3000), limits=Limits(worst_gain=1.05)))
    told = next(score for score in sure.scores if score.mode == sure.mode)
    assert told.worst_gain >= 1.05 or sure.mode == "ssgd"


def test_another_set_is_but_only_for_a_gain():
    first = choose(situation((2,)))
    second = choose(situation((2, 2.01)), first.standing)
    assert second.standing.stragglers == {6, 7}
    assert second.changed
    unwilling = choose(situation((2, 2.01)), first.standing, Settings(least_gain=50.0))
    assert not unwilling.changed
    assert "less than 5000%" in unwilling.reason


def test_a_mode_that_is_no_longer_eligible_is_left():
    first = choose(situation((2,), limits=PLAIN, barred={m: "not here" for m in MODES if m not in {"ssgd", "asgd"}}))
    assert first.mode == "asgd"
    second = choose(situation((2,), barred={m: "not here" for m in MODES if m != "ssgd"}), first.standing)
    assert second.mode == "ssgd"


def test_a_worker_stays_tagged_until_clearly_below_the_tag():
    values = np.array([[1.0, 1.17]])
    assert stragglers.expected(values, (0, 1)).none
    assert stragglers.expected(values, (0, 1), before={1}).ranks == {1}


def test_slowness_that_moves_is_seen_though_nobody_is_slow_in_the_mean():
    values = np.ones((32, 8))
    values[np.arange(32), np.arange(32) % 8] = 1.9
    found = stragglers.expected(values, tuple(range(8)))
    assert found.ranks == frozenset()
    assert found.moving
    assert found.churn == 1.0
    choice = choose(Situation(tuple(range(8)), values, 32, NOISE, barred=LIVE_BARS))
    assert choice.mode != "ssgd"
    assert "moves between workers" in choice.reason


def test_limits_bar_modes_and_say_so():
    strict = choose(situation(limits=Limits(accuracy_risk=0.0)))
    barred = {score.mode: score.barred for score in strict.scores if not score.eligible}
    assert "accuracy risk" in barred["asgd"]
    assert strict.mode in {"m-sync", "backup", "rennala", "deadline"}
    fresh = choose(situation(limits=Limits(staleness=1)))
    assert "updates old" in {s.mode: s.barred for s in fresh.scores}["ring-x"] or fresh.mode != "ring-x"
    unshuffled = choose(situation(limits=Limits(accuracy_risk=0.05, shuffled=False)))
    assert unshuffled.mode == "ssgd"


def test_momentum_bars_what_is_stale_and_unknown_momentum_is_taken_for_much():
    def barred(limits):
        return {score.mode: score.barred for score in choose(situation(limits=limits)).scores}

    assert barred(PLAIN)["asgd"] == ""
    assert "accuracy risk" in barred(Limits())["asgd"]
    assert barred(Limits()) == barred(Limits(momentum=0.9))
    assert choose(situation(limits=PLAIN)).gain > 1.5
    assert choose(situation()).gain > 1.5
    with pytest.raises(ValueError, match="momentum"):
        Limits(momentum=1.0)


def test_a_mode_that_does_not_fit_is_not_eligible():
    none = Resources(free_cores=0.0, free_bytes_per_s=1e12, core_s_per_gradient=0.1, bytes_per_gradient=1e6)
    scores = {score.mode: score.barred for score in choose(situation(resources=none, limits=PLAIN)).scores}
    assert "more cores" in scores["asgd"]
    wire = Resources(free_cores=99.0, free_bytes_per_s=1e5, core_s_per_gradient=0.1, bytes_per_gradient=1e6)
    assert "MB/s more" in {s.mode: s.barred for s in choose(situation(resources=wire, limits=PLAIN)).scores}["asgd"]
    plenty = Resources(free_cores=99.0, free_bytes_per_s=1e9, core_s_per_gradient=0.1, bytes_per_gradient=1e6)
    assert choose(situation(resources=plenty)).mode == choose(situation()).mode


def test_a_choice_tells_all_it_was_made_from():
    choice = choose(situation())
    told = json.loads(json.dumps(choice.to_json(), allow_nan=False))
    assert {score["mode"] for score in told["scores"]} == set(MODES)
    assert told["runner_up"]["mode"] != told["mode"]
    assert told["inputs"]["stragglers"] == [7]
    assert told["bound"]["ratio"] >= 1.0
    assert told["corrections"]
    assert told["m_star"] == 7
    assert told["async"]["justified"] is False


def test_it_is_the_same_choice_every_time():
    assert choose(situation()).to_json() == choose(situation()).to_json()


def test_no_torch_is_imported():
    code = "import sys, starprof.decision.choice.heuristic; print('torch' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_papers_scores_as_the_paper_has_them():
    usual = np.array([0.5] * 7 + [1.0])
    assert paper.interpolated_s(usual)[:7] * 1000 == pytest.approx([66.67] * 7, abs=0.01)
    assert paper.interpolated_s(usual)[7] == 1.0
    assert paper.first_local_minimum(np.array([3.0, 2.0, 2.5, 1.0])) == 2
    assert paper.first_local_minimum(np.array([3.0, 2.0, 1.0])) == 3
    # 1 / (1/(2 * 0.5) + 1/(2 * 1.0)) with one sample each and phi = 1
    assert paper.dynamic_score(np.array([0.5, 1.0]), [[0], [1]], 1.0, 1.0) == pytest.approx(1 / 1.5)
    assert paper.m_star(np.array([[1.0, 1.0, 9.0]]), 1.0, 1.0) == 2


@pytest.mark.parametrize("all_reduce", [False, True])
def test_the_paper_exact_chooser_says_that_it_is(all_reduce):
    choice = choose(situation(), settings=Settings(paper_exact=True, all_reduce=all_reduce))
    assert choice.mode == ("ring-x" if all_reduce else "static-x")
    assert choice.chooser == "paper"
    assert choice.corrections == ()
    assert "as the paper has them" in choice.reason
    assert choose(situation(()), settings=Settings(paper_exact=True)).mode == "ssgd"


def test_the_paper_exact_chooser_names_workers_and_not_places():
    values = situation((8, 8, 8, 8)).iteration_s
    there = Situation((3, 5, 7, 9, 11, 13, 15, 17), values, 32, NoiseScale(1e5, 1e5), barred=LIVE_BARS)
    told = choose(there, settings=Settings(paper_exact=True))
    assert told.mode in {"static-x", "dynamic-x"}
    create(told.mode, there.workers, told.options)


def random_times(rng, kind, workers, gradients):
    """Times of very different jobs; `tight` are the worst case of the bound's proof."""
    if kind == "tight":
        return np.minimum(1.0, np.arange(1, workers + 1) / gradients) * (1 + 0.3 * rng.random() * rng.random(workers))
    if kind == "heavy":
        return rng.pareto(rng.uniform(0.2, 3.0), workers) + 1.0
    if kind == "two speeds":
        return np.where(rng.random(workers) < 0.2, rng.uniform(1, 20), 1.0)
    return rng.lognormal(0, rng.uniform(0, 3), workers)


@pytest.mark.parametrize("kind", ["tight", "heavy", "two speeds", "lognormal"])
def test_synchronous_schedules_are_within_the_bound_of_any_method(kind):
    """5,000 random jobs of each kind: the constant of the bound is 1."""
    rng = np.random.default_rng(2)
    worst = 0.0
    for _ in range(5000):
        workers, gradients = int(rng.integers(1, 65)), float(np.exp(rng.uniform(0, np.log(200))))
        found = bound(random_times(rng, kind, workers, gradients), gradients)
        worst = max(worst, found.synchronous_s / found.any_method_s / found.factor)
    assert worst <= 1.0 + 1e-9


@settings(deadline=None, max_examples=200)
@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=40), st.floats(0.0, 500.0))
def test_the_bound_holds_for_any_job(usual, gradients):
    found = bound(np.array(usual), gradients)
    done = np.floor(found.any_method_s * (1 + 1e-9) / np.array(usual)).sum()
    assert done >= found.gradients
    assert found.ratio <= found.factor * (1 + 1e-9)


@pytest.mark.parametrize("index", [0.8, 1.5, 3.0])
def test_the_tail_index_of_a_pareto_tail(index):
    values = np.random.default_rng(4).pareto(index, (400, 20)) + 1.0
    found = tail.tail_of(values)
    assert found.low < index < found.high
    assert found.high - found.low < index * 0.3


def test_too_few_times_have_no_tail():
    assert tail.tail_of(np.ones((1, 8))).index is None


def test_async_is_justified_only_by_hopeless_waiting_or_moving_slowness_that_pays():
    still = stragglers.Stragglers(frozenset({1}), 0.0, 0.0)
    moving = stragglers.Stragglers(frozenset(), 0.9, 0.95)
    light, heavy = tail.Tail(5.0, 4.0, 6.0, 50), tail.Tail(0.7, 0.6, 0.8, 50)
    assert not tail.async_test(light, still, 8, 1.2, 2.0).justified
    assert tail.async_test(heavy, still, 8, 1.2, 2.0).justified
    assert tail.async_test(light, moving, 8, 1.2, 2.0).justified
    assert not tail.async_test(heavy, still, 8, 2.0, 1.2).justified
    assert "too few" in tail.async_test(tail.Tail(None), still, 8, 1.0, 1.0).reason
