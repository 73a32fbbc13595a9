"""The learned chooser: trees, its file, when it decides and when it does not."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from starprof.decision.choice import heuristic, stragglers
from starprof.decision.choice.choice import Standing
from starprof.decision.choice.learned import chooser, model
from starprof.decision.choice.learned.features import OF_JOB, Surroundings, of_job
from starprof.decision.choice.learned.trees import Trees
from starprof.decision.choice.situation import Limits, NoiseScale, Situation
from starprof.errors import InputError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NOISE = NoiseScale(200, 300)
PLAIN = Limits(momentum=0.0)


def situation(factor=2.0, noise=NOISE, workers=8, limits=PLAIN, **options):
    values = np.random.default_rng(0).lognormal(0, 0.03, (30, workers)) * 0.5
    values[:, -1] *= factor
    return Situation(tuple(range(workers)), values, 32, noise, limits, **options)


def constant(value):
    """Trees that say the same of everything."""
    zeros = np.zeros((1, 1), np.int16), np.zeros((1, 1), np.float32), np.zeros((1, 2), np.float32)
    return Trees(value, *zeros)


def trained(added, learned=0.01, known=0.02):
    """A model that adds so much to the gain of each mode, for jobs like ours."""
    rng = np.random.default_rng(1)
    jobs = []
    for _ in range(300):
        one = situation(1.0 + 3.0 * rng.random(), workers=int(rng.choice([4, 8, 16])))
        late = stragglers.expected(one.iteration_s, one.workers)
        jobs.append(of_job(one, late, Surroundings(bool(rng.random() < 0.5)), rng.uniform(10, 3000)))
    jobs = np.array(jobs) * (1 + 0.3 * rng.standard_normal((300, len(OF_JOB)))) + 0.1 * rng.standard_normal((300, 1))
    about = {"regret": {"learned": learned, "heuristic": known}}
    return model.Model({mode: constant(value) for mode, value in added.items()}, model.range_of(jobs), about)


@pytest.fixture(scope="module")
def favouring_asgd():
    return trained({"asgd": 2.0, "m-sync": 0.0, "static-x": 0.0})


def test_trees_are_walked_as_they_are_laid_out():
    # x0 <= 1: (x1 <= 5: 10, else 20); else (x1 <= 7: 30, else 40), and a second tree that adds 1 to 4
    trees = Trees(
        100.0,
        np.array([[0, 1, 1], [0, 0, 0]], np.int16),
        np.array([[1, 5, 7], [1, 1, 1]], np.float32),
        np.array([[10, 20, 30, 40], [1, 2, 3, 4]], np.float32),
    )
    told = trees.predict(np.array([[0, 0], [1, 6], [2, 7], [2, 8]], float))
    assert told.tolist() == [111.0, 121.0, 134.0, 144.0]


def test_the_exported_trees_say_what_the_trained_ones_do(monkeypatch):
    ensemble = pytest.importorskip("sklearn.ensemble")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import train_chooser

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 5)).astype(np.float32)
    targets = np.sin(rows[:, 0]) + rows[:, 1] * (rows[:, 2] > 0)
    made = []
    real = ensemble.GradientBoostingRegressor.fit

    def fit(self, *given):
        made.append(self)
        return real(self, *given)

    monkeypatch.setattr(ensemble.GradientBoostingRegressor, "fit", fit)
    trees = train_chooser.trained(rows, targets, 0)
    fresh = rng.normal(size=(500, 5)).astype(np.float32)
    assert trees.predict(fresh) == pytest.approx(made[0].predict(fresh), abs=1e-5)


def test_inside_its_range_the_learned_chooser_decides(favouring_asgd):
    choice = chooser.choose(situation(), favouring_asgd)
    assert (choice.mode, choice.chooser) == ("asgd", "learned")
    plain = heuristic.choose(situation())
    gain = next(score.gain for score in plain.scores if score.mode == "asgd")
    assert choice.gain == pytest.approx(gain * np.exp(2.0))
    assert {score.mode for score in choice.scores} == {score.mode for score in plain.scores}


def test_what_it_does_not_know_is_barred_and_what_was_barred_stays_so(favouring_asgd):
    choice = chooser.choose(situation(limits=Limits(accuracy_risk=0.1)), favouring_asgd)
    barred = {score.mode: score.barred for score in choice.scores}
    assert "accuracy risk" in barred["asgd"]
    assert "does not know" in barred["backup"]
    assert choice.mode == "m-sync"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"factor": 500.0}, "trained were"),
        ({"noise": None}, "gradient noise scale is not known"),
        ({"workers": 500}, "trained were"),
    ],
)
def test_outside_of_its_range_the_heuristic_decides_and_says_why(favouring_asgd, given, why):
    choice = chooser.choose(situation(**given), favouring_asgd)
    plain = heuristic.choose(situation(**given))
    assert (choice.mode, choice.options, choice.chooser) == (plain.mode, plain.options, "heuristic")
    assert why in choice.reason


def test_features_far_from_all_that_were_seen_together_are_outside():
    rng = np.random.default_rng(0)
    jobs = rng.normal(size=(500, len(OF_JOB)))
    jobs[:, 1] = jobs[:, 0] + 0.01 * rng.normal(size=500)
    found = model.range_of(jobs)
    inside = np.zeros(len(OF_JOB))
    assert found.outside(inside) == ""
    inside[0], inside[1] = 1.0, -1.0
    assert "lie within" in found.outside(inside)


def test_a_model_that_chose_no_better_than_the_heuristic_does_not_decide():
    choice = chooser.choose(situation(), trained({"asgd": 2.0}, learned=0.03, known=0.02))
    assert choice.chooser == "heuristic"
    assert "in validation it lost 3.0%" in choice.reason


def test_nobody_late_and_the_same_workers_late_hold_for_it_as_well(favouring_asgd):
    assert chooser.choose(situation(1.0), favouring_asgd).mode == "ssgd"
    before = Standing("m-sync", {"m": 7}, frozenset({7}))
    slightly = trained({"asgd": -0.03, "m-sync": 0.0})
    kept = chooser.choose(situation(), slightly, before)
    assert (kept.mode, kept.changed) == ("m-sync", False)
    assert chooser.choose(situation(), favouring_asgd, before).mode == "asgd"


def test_a_model_comes_back_from_its_file(tmp_path, favouring_asgd):
    path = tmp_path / "model.npz"
    model.save(path, favouring_asgd)
    first = path.read_bytes()
    back = model.load(path)
    assert chooser.choose(situation(), back).to_json() == chooser.choose(situation(), favouring_asgd).to_json()
    model.save(path, back)
    assert path.read_bytes() == first


def test_damaged_and_foreign_files_are_refused(tmp_path, favouring_asgd):
    path = tmp_path / "model.npz"
    model.save(path, favouring_asgd)
    whole = path.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 20)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            model.load(path)
    np.savez(path, a=np.zeros(3))
    with pytest.raises(InputError):
        model.load(path)
    with pytest.raises(InputError):
        model.load(tmp_path / "none.npz")


def test_a_file_of_other_features_or_with_trees_that_do_not_fit_is_refused(tmp_path, favouring_asgd):
    path = tmp_path / "model.npz"
    spoilt = replace(favouring_asgd, modes={"asgd": replace(constant(1.0), feature=np.full((1, 1), 999, np.int16))})
    model.save(path, spoilt)
    with pytest.raises(InputError, match="fit together"):
        model.load(path)
    model.save(path, favouring_asgd)
    with np.load(path) as stored:
        arrays = dict(stored)
    header = json.loads(str(arrays["header"][()]))
    header["names"] = header["names"][::-1]
    arrays["header"] = np.array(json.dumps(header))
    np.savez(path, **arrays)
    with pytest.raises(InputError, match="version"):
        model.load(path)


def test_the_model_that_ships_is_small_and_chose_better_than_the_heuristic():
    shipped = model.default()
    assert model.DEFAULT.stat().st_size < 1_000_000
    assert shipped.better
    assert shipped.about["jobs"] >= 300
    choice = chooser.choose(situation(2.0), shipped)
    assert choice.chooser == "learned"
    assert choice.mode != "ssgd"
    assert choice.gain > 1.2


def test_nothing_but_numpy_is_needed():
    code = (
        "import sys, starprof.decision.choice.learned.chooser; "
        "print([name for name in ('torch', 'sklearn', 'pandas', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
