"""Predictions of iteration times: what they read from runs, baselines, the network, the file, and who is used."""

import json
import struct

import numpy as np
import pytest

from starprof.analysis.synthetic import CpuHog, Slow, SyntheticRun
from starprof.cli import main
from starprof.decision.prediction import generated, modelfile, tensors, training
from starprof.decision.prediction.baselines import BASELINES, Ar1, Ewma, LastValue
from starprof.decision.prediction.evaluation import HORIZONS, Counted, contest, counted, fitted_tags, quality
from starprof.decision.prediction.history import CPU, NIC_OUT, ROLLOUT, TIME, Series, filled, relative, series_of
from starprof.decision.prediction.lstm import NETWORK, Lstm, expected_shapes
from starprof.errors import InputError


def weights(hidden=6, seed=0, scale=0.4):
    rng = np.random.default_rng(seed)
    shapes = expected_shapes(hidden)
    return {name: rng.normal(0, scale, shape).astype(np.float32) for name, shape in shapes.items()}


def past_of(times):
    """Histories with times only, shape (N, W, 4)."""
    times = np.asarray(times, float)
    past = np.full((*times.shape, 4), np.nan)
    past[..., TIME] = times
    return past


def periodic(workers=4, steps=150, every=4, seed=0):
    """Each worker is slow in each fourth iteration, one after the other."""
    values = past_of(0.1 * (1 + 0.01 * np.random.default_rng(seed).standard_normal((workers, steps))))
    for worker in range(workers):
        values[worker, (seed + worker) % every :: every, TIME] *= 2.0
    return Series(tuple(range(workers)), values)


def test_a_run_tells_each_iterations_time_cpu_use_and_traffic():
    run = SyntheticRun(ranks=2, steps=80, nodes=2, faults=(CpuHog(1, 0.5, start=40),)).data()
    series = series_of(run)
    own = np.median(series.values[:, 40:, TIME], axis=1)
    assert own[1] > 1.5 * own[0]
    assert np.isfinite(series.values[:, :-1]).mean() > 0.95
    busy = np.nanmedian(series.values[:, 45:70, CPU], axis=1)
    assert 0.1 < busy[0] < 4.0
    assert (np.nanmedian(series.values[:, 5:70, NIC_OUT], axis=1) > 0).all()


def test_a_run_without_counters_has_times_still():
    series = series_of(SyntheticRun(ranks=2, steps=80, counters=False).data())
    assert np.isfinite(series.values[..., TIME]).all()
    assert np.isnan(series.values[..., CPU]).all()
    assert np.isfinite(relative(series.values)).all()


def test_windows_are_followed_by_what_came_next():
    values = past_of(np.arange(1.0, 101.0)[None])
    past, after = Series((0,), values).windows(every=10)
    assert past.shape[:3] == (5, 1, 30)
    assert after[0, 0].tolist() == list(range(31, 61))
    assert past[1, 0, 0, TIME] == 11.0


def test_a_run_that_is_too_short_has_no_windows():
    past, after = Series((0, 1), past_of(np.ones((2, 40)))).windows(every=1)
    assert past.shape == (0, 2, 30, 4)
    assert after.shape == (0, 2, ROLLOUT)


def test_holes_are_filled_with_the_windows_middle():
    past = past_of([[1.0, np.nan, 3.0, 2.0]])
    assert filled(past)[0, 1, TIME] == 2.0
    assert filled(past)[0, 1, CPU] == 1.0
    assert np.isfinite(relative(past)).all()


def test_last_value_and_average():
    past = past_of([[1.0, 1.0, 2.0], [4.0, 4.0, 4.0]])
    assert LastValue().predict(past)[:, [0, -1]].tolist() == [[2.0, 2.0], [4.0, 4.0]]
    # weights 0.5, 0.25, 0.125 from the newest on
    assert Ewma(0.5).predict(past)[0, 0] == pytest.approx((2.0 + 0.5 + 0.25) / 1.75)


def test_autoregression_dies_out_as_fast_as_the_series_does():
    rng = np.random.default_rng(0)
    noise = np.zeros((200, 4000))
    for step in range(1, 4000):
        noise[:, step] = 0.8 * noise[:, step - 1] + rng.standard_normal(200)
    told = Ar1().predict(past_of(100 + noise))
    now = noise[:, -1]
    assert np.polyfit(now, told[:, 0] - 100, 1)[0] == pytest.approx(0.8, abs=0.03)
    assert np.polyfit(now, told[:, 4] - 100, 1)[0] == pytest.approx(0.8**5, abs=0.03)
    assert Ar1().predict(past_of(np.full((1, 30), 2.0)))[0].tolist() == [2.0] * ROLLOUT


def test_tags_are_counted():
    after = np.full((1, 3, ROLLOUT), 1.0)
    after[0, 2] = 2.0
    told = after.copy()
    told[0, 1] = 1.5
    found = counted(told, after, 10, 0.2)
    assert (found.hits, found.false, found.missed, found.rest) == (1, 1, 0, 1)
    good = quality(10, [found, Counted(0, 0, 1, 2, 0.0, 3)])
    assert (good.precision, good.recall, good.accuracy) == (0.5, 0.5, 4 / 6)
    assert good.error == pytest.approx(0.5 / 6)


def test_the_network_in_numpy_is_the_one_that_torch_trains():
    torch = pytest.importorskip("torch")
    network = training._network(torch, 6)
    arrays = {name: values.detach().numpy().copy() for name, values in network.named_parameters()}
    assert {name: array.shape for name, array in arrays.items()} == expected_shapes(6)
    inputs = np.random.default_rng(1).normal(0, 1, (5, 30, 4)).astype(np.float32)
    with torch.no_grad():
        right = training.forward(network, torch.as_tensor(inputs)).numpy()
    assert Lstm(arrays).forward(inputs) == pytest.approx(right, abs=1e-5)


def test_the_network_learns_what_no_baseline_can_and_is_used_then():
    pytest.importorskip("torch")
    runs = [periodic(seed=seed) for seed in range(10)]
    network = training.train(runs[:6], epochs=70, hidden=16)
    rivals = (*BASELINES, network)
    tags = {rival.name: fitted_tags(runs[:6], rival) for rival in rivals}
    found = contest(runs[6:], tags, network)
    assert found.used[1] == NETWORK
    assert found.margins[1][0] > 0
    assert found.qualities[NETWORK][0].f1 > 0.7
    assert max(found.qualities[one.name][0].f1 for one in BASELINES) < 0.6


def test_a_network_that_knows_nothing_is_not_used():
    runs = [periodic(seed=seed) for seed in range(4)]
    network = Lstm(weights())
    tags = {rival.name: dict.fromkeys(HORIZONS, 0.2) for rival in (*BASELINES, network)}
    found = contest(runs, tags, network)
    assert NETWORK not in found.used.values()
    model = modelfile.model_of(found, tags, network, "periodic runs")
    assert model.network is None


def test_training_is_the_same_for_the_same_seed():
    pytest.importorskip("torch")
    runs = [periodic(steps=70)]
    first, second = (training.train(runs, epochs=1, hidden=4, seed=3) for _ in range(2))
    assert all((first.arrays[name] == second.arrays[name]).all() for name in first.arrays)


def trained(tmp_path, used=None):
    tags = {name: dict.fromkeys(HORIZONS, 0.14) for name in (NETWORK, "ewma", "ar1", "last value")}
    used = used or {1: NETWORK, 10: "ar1", 30: NETWORK}
    model = modelfile.Model(used, tags, Lstm(weights()), {"trained_on": "nothing much"})
    path = tmp_path / "model.safetensors"
    modelfile.save(path, model)
    return model, path


def test_a_model_comes_back_from_its_file(tmp_path):
    model, path = trained(tmp_path)
    back = modelfile.load(path)
    past = past_of(np.random.default_rng(0).uniform(0.1, 0.2, (3, 30)))
    assert back.used == model.used
    assert back.tag(10) == 0.14
    assert back.about == model.about
    assert (back.predict(past) == model.predict(past)).all()


def test_each_stretch_comes_from_the_predictor_that_is_best_there(tmp_path):
    model, _ = trained(tmp_path)
    past = past_of(np.random.default_rng(0).uniform(0.1, 0.2, (3, 30)))
    told = model.predict(past)
    assert (told[:, :1] == model.network.predict(past)[:, :1]).all()
    assert (told[:, 1:10] == Ar1().predict(past)[:, 1:10]).all()
    assert (told[:, 10:] == model.network.predict(past)[:, 10:]).all()


def test_without_a_model_the_average_is_used():
    past = past_of(np.random.default_rng(0).uniform(0.1, 0.2, (3, 30)))
    assert (modelfile.UNTRAINED.predict(past) == Ewma().predict(past)).all()
    assert modelfile.UNTRAINED.tag(1) == 0.2


def test_the_file_is_laid_out_as_safetensors_are(tmp_path):
    path = tmp_path / "one.safetensors"
    tensors.save(path, {"a": np.arange(3, dtype=np.float32)}, {"kind": "test"})
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert header == {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}, "__metadata__": {"kind": "test"}}
    assert content[8 + length :] == np.arange(3, dtype="<f4").tobytes()


def header_of(told, data=b""):
    told = json.dumps(told).encode()
    return struct.pack("<Q", len(told)) + told + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"{x",
        header_of({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}, b"1234"),
        header_of({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234"),
        header_of({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, b"1234"),
        header_of({"a": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]}}, b"12345678"),
        header_of({"a": 1}),
        header_of({"__metadata__": 3}),
    ],
)
def test_damaged_files_are_refused_in_a_line(tmp_path, content):
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError):
        tensors.load(path)
    with pytest.raises(InputError):
        modelfile.load(path)


def test_every_cut_of_a_model_is_refused(tmp_path):
    _, path = trained(tmp_path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 997):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            modelfile.load(path)


@pytest.mark.parametrize("spoil", ["version", "kind", "used", "numbers", "shapes"])
def test_models_that_are_not_ours_are_refused(tmp_path, spoil):
    _, path = trained(tmp_path)
    arrays, metadata = tensors.load(path)
    arrays = {name: array.copy() for name, array in arrays.items()}
    if spoil in {"version", "kind"}:
        metadata[spoil] = "99"
    elif spoil == "used":
        metadata["model"] = metadata["model"].replace('"ar1"', '"oracle"')
    elif spoil == "numbers":
        arrays["head.0.bias"][0] = np.nan
    else:
        arrays["lstm.weight_ih_l0"] = arrays["lstm.weight_ih_l0"][:, :3]
    tensors.save(path, arrays, metadata)
    with pytest.raises(InputError):
        modelfile.load(path)


def test_generated_runs_are_the_same_for_the_same_number():
    first, second = (generated.runs(2, seed=5) for _ in range(2))
    assert all((a.values == b.values).all() for a, b in zip(first, second, strict=True))
    assert any(isinstance(fault, Slow) for number in range(30) for fault in generated.recipe(number).faults)


def test_the_verb_learns_writes_and_tells(tmp_path, capsys):
    target = tmp_path / "model.safetensors"
    call = ["train-predictor", "--generated", "8", "--baselines-only", "-o", str(target)]
    assert main(call) == 0
    out, err = capsys.readouterr()
    assert "precision" in out
    assert "used" in out
    assert "2 runs held out" in out
    assert f"Wrote {target}" in err
    assert NETWORK not in modelfile.load(target).used.values()
    assert main(call) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*call, "--force", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["used"]) == {"1", "10", "30"}
    assert {one["horizon"] for one in told["held_out"]["ewma"]} == set(HORIZONS)


def test_the_verb_refuses_to_learn_from_nothing(tmp_path, capsys):
    where = str(tmp_path / "m.safetensors")
    assert main(["train-predictor", "--generated", "0", "-o", where]) == 2
    assert main(["train-predictor", "--generated", "2", "--baselines-only", "-o", where]) == 2
    assert "not enough" in capsys.readouterr().err
    assert main(["train-predictor", str(tmp_path / "no.starprof"), "-o", where]) == 1
