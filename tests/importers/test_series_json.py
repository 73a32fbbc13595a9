"""Step times of several runs in one JSON file: each run is a job of its own."""

import json

import numpy as np
import pytest

from starprof.errors import InputError
from starprof.importers.jobs import Failed, names_of, opened
from starprof.importers.load import load


def series(seconds, count=20):
    return {"step": [10 * i for i in range(count)], "value": [seconds] * count}


def test_each_run_of_a_file_is_a_job(tmp_path):
    (tmp_path / "step_time.json").write_text(json.dumps({"a": series(0.5), "b": series(0.25)}))
    with opened([str(tmp_path)]) as found:
        each = list(found.each())
    assert names_of([job for job, _ in each]) == ["a", "b"]
    assert [float(run.steps["dur_us"][0, 0]) for _, run in each] == [500_000.0, 250_000.0]


def test_steps_that_go_back_and_times_that_are_none_are_left_out(tmp_path):
    told = {"step": [1, 2, 2, 1, 3, 4, 5, 6], "step_time_ms": [5, 6, 7, 8, None, 9, -1, 10]}
    (tmp_path / "times.json").write_text(json.dumps(told))
    run = load([str(tmp_path / "times.json")])
    assert run.steps.steps.tolist() == [1, 2, 4, 6]
    assert np.allclose(run.steps["dur_us"], [[5000, 6000, 9000, 10000]])


@pytest.mark.parametrize("text", ['{"step": [1, 2', '{"step": [], "step_time": []}', '{"step": [1], "step_time": 5}'])
def test_what_is_no_series_is_one_clear_error(tmp_path, text):
    (tmp_path / "step_time.json").write_text(text)
    with pytest.raises(InputError):
        load([str(tmp_path / "step_time.json")])


def test_published_comparison_of_loaders_is_four_jobs(public_data):
    with opened([str(public_data("spdl_dataloading/parallelism_step_time.json"))]) as found:
        each = list(found.each())
    assert len(each) == 4
    assert not any(isinstance(run, Failed) for _, run in each)
