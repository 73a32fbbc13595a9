"""Scalars exported from TensorBoard: step times from stamps, one run a folder or a stretch of time."""

import numpy as np
import pytest

from starprof.errors import InputError
from starprof.importers.load import load
from starprof.importers.parts import SeveralJobsError


def export(seconds, every=10, start=1.6e9, columns="Wall time,Step,Value"):
    """A file with a record every so many steps of so many seconds each."""
    rows = [f"{start + i * every * seconds:.3f},{i * every},{1 / (i + 1):.4f}" for i in range(30)]
    return "\n".join([columns, *rows]) + "\n"


@pytest.fixture
def read(tmp_path):
    def read(files):
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        return load([str(tmp_path)])

    return read


def test_step_times_are_the_time_between_records_by_their_steps(read):
    run = read({"loss.csv": export(0.25)})
    assert np.allclose(run.steps["dur_us"], 250_000, rtol=1e-3)
    assert run.info["timing"] == "job"
    assert run.ranks[0].detail["steps_per_record"] == 10


def test_the_file_with_most_records_is_taken_and_evaluations_last(read):
    run = read({"acc.csv": export(0.25, every=2), "loss.csv": export(0.25), "lr.csv": export(0.25, every=100)})
    assert "loss.csv" in run.info["note"]


def test_files_of_two_folders_are_two_runs(read):
    with pytest.raises(SeveralJobsError) as told:
        read({"a/loss.csv": export(0.25), "b/loss.csv": export(0.5)})
    assert [len(part) for part in told.value.parts] == [1, 1]


def test_files_of_one_folder_that_cover_other_times_are_two_runs(read):
    with pytest.raises(SeveralJobsError, match="2 runs"):
        read({"base.csv": export(0.25), "again.csv": export(0.25, start=1.7e9)})


def test_runs_in_the_names_of_the_export_are_told_apart(read):
    with pytest.raises(SeveralJobsError, match="2 runs"):
        read({"run_a-tag-loss.csv": export(0.25), "run_b-tag-loss.csv": export(0.25)})


def test_records_that_go_back_are_left_out(read):
    text = export(0.25).splitlines()
    run = read({"loss.csv": "\n".join([*text[:10], text[3], "x,y,z", "", *text[10:]])})
    assert len(run.steps.steps) == 29


def test_too_few_records_are_one_clear_error(read):
    with pytest.raises(InputError, match="fewer than"):
        read({"loss.csv": "Wall time,Step,Value\n1,1,1\n2,2,1\n"})
