"""MLPerf logs: where their step times come from, and the public logs with known stalls."""

import json

import numpy as np
import pytest

from starprof.analysis import diagnose
from starprof.errors import InputError
from starprof.importers.load import load


def line(key, value=None, time_ms=0, **metadata):
    record = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return ":::MLLOG " + json.dumps(record | {"metadata": metadata})


@pytest.fixture
def log(tmp_path):
    """Write lines to a file and read it."""

    def write_and_load(*lines, name="result_0.txt"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return load([str(tmp_path / name)])

    return write_and_load


def test_step_times_among_the_statistics_are_taken_as_they_are(log):
    run = log(
        "some other output",
        line("global_batch_size", 16),
        line("run_start"),
        *(line("tracked_stats", {"train_step_time": 2.5 + i}, step=16.0 * (i + 1)) for i in range(3)),
    )
    assert run.info["timing"] == "job"
    assert run.steps.steps.tolist() == [0, 1, 2]
    assert run.steps["dur_us"][0].tolist() == [2.5e6, 3.5e6, 4.5e6]


def test_a_throughput_and_the_batch_size_tell_the_mean_step_time(log):
    run = log(
        line("global_batch_size", 100),
        *(line("tracked_stats", {"throughput": 50.0}, step=100 * k) for k in (10, 20, 30)),
    )
    assert run.steps["dur_us"][0].tolist() == [2e6] * 3
    assert run.ranks[0].detail["steps_per_record"] == 10


def test_time_stamps_of_numbered_lines_tell_the_rest_without_evaluations(log):
    stamps = [line("train_loss", 1.0, time_ms=1000 * t, step=s) for t, s in ((10, 0), (20, 10), (60, 20), (70, 30))]
    evaluation = [line("eval_start", time_ms=25_000), line("eval_stop", time_ms=55_000)]
    run = log(*stamps[:2], *evaluation, *stamps[2:])
    assert run.steps["dur_us"][0].tolist() == [1e6, 1e6, 1e6]
    assert run.events["kind"].tolist() == ["eval"]


def test_the_latest_run_of_a_log_that_was_continued_counts(log):
    def attempt(seconds):
        return [line("run_start"), *(line("tracked_stats", {"train_step_time": seconds}) for _ in range(3))]

    run = log(*attempt(1.0), *attempt(2.0))
    assert run.steps["dur_us"][0].tolist() == [2e6] * 3
    assert "latest of 2 runs" in run.info["note"]


def test_cut_lines_and_numbers_that_are_none_are_passed_over(log):
    run = log(
        line("tracked_stats", {"train_step_time": 1.0}),
        line("tracked_stats", {"train_step_time": 1.0})[:-20],
        line("tracked_stats", {"train_step_time": "fast"}),
        line("tracked_stats", {"train_step_time": float("nan")}),
        line("tracked_stats", {"train_step_time": -1.0}),
        ":::MLLOG " + "[" * 100_000,
        line("tracked_stats", {"train_step_time": 10**400}),
        line("tracked_stats", {"train_step_time": 2.0}),
    )
    assert run.steps["dur_us"][0].tolist() == [1e6, 2e6]


def test_a_log_without_step_times_is_refused_in_one_line(log):
    with pytest.raises(InputError, match="tells no step times"):
        log(line("submission_org", "someone"))


def test_several_runs_are_refused(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("\n".join(line("tracked_stats", {"train_step_time": 1.0}) for _ in range(3)))
    with pytest.raises(InputError, match="several runs"):
        load([str(tmp_path)])


STALLS = {
    "v5.0_NVIDIA_2432xH100_llama405b_r1": {182: 1.46, 189: 2.02, 225: 1.83, 266: 3.37},
    "v5.0_NVIDIA_2560xH100_llama405b_r0": {169: 1.63, 222: 2.37, 243: 1.51, 254: 2.01},
}


@pytest.mark.parametrize(("name", "truth"), STALLS.items())
def test_the_stalls_of_public_runs_are_listed_by_step_and_size(public_data, name, truth):
    verdict = diagnose(load([str(public_data("mlperf_step_times") / f"{name}.mllog")]))
    single = {f.onset_step: f for f in verdict.findings if f.onset_step == f.end_step}
    assert verdict.verdict == "inconclusive"
    assert truth.keys() <= single.keys()
    assert all(f.kind == "one-off" and f.cause == "unknown" and not f.ranks for f in verdict.findings)
    assert {s: single[s].slowdown for s in truth} == pytest.approx(truth, abs=0.05)


def test_the_clean_sibling_run_is_fine(public_data):
    run = load([str(public_data("mlperf_step_times") / "v5.0_NVIDIA_2560xH100_llama405b_r1_clean.mllog")])
    verdict = diagnose(run)
    assert verdict.verdict == "none"
    assert verdict.cost.seconds == 0
    assert np.isfinite(run.steps["dur_us"]).all()
