"""Several jobs behind one path: each is read by itself, and what belongs to none is said."""

import json

import pytest

from starprof.errors import InputError
from starprof.importers.jobs import Failed, names_of, opened


def mllog(seconds):
    lines = [
        ":::MLLOG " + json.dumps({"time_ms": 0, "key": "tracked_stats", "value": {"train_step_time": s}})
        for s in seconds
    ]
    return "\n".join(lines) + "\n"


def workers(count, steps=20):
    rows = [f"{step},{rank},{100 + rank}" for step in range(steps) for rank in range(count)]
    return "\n".join(["step,worker,time_ms", *rows]) + "\n"


def smi(gpus=2):
    rows = [f"{g}, 99 %, 300 W" for _ in range(5) for g in range(gpus)]
    return "\n".join(["index, utilization.gpu [%], power.draw [W]", *rows]) + "\n"


@pytest.fixture
def jobs(tmp_path):
    """Write files, and read what is there: name and run (or why not) of each job, and what is left."""

    def read(files):
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        with opened([str(tmp_path)]) as found:
            each = list(found.each())
            return dict(zip(names_of([job for job, _ in each]), [run for _, run in each], strict=True)), found.left

    return read


def test_each_file_of_a_format_that_holds_a_whole_job_is_one(jobs):
    found, _ = jobs({"a.mllog": mllog([1.0] * 5), "b.mllog": mllog([2.0] * 7)})
    assert {name: len(run.steps.steps) for name, run in found.items()} == {"a": 5, "b": 7}


def test_jobs_of_other_formats_lie_in_folders_of_their_own(jobs):
    found, _ = jobs({"x/log.mllog": mllog([1.0] * 5), "y/times.csv": workers(3)})
    assert {name: run.info["source_format"] for name, run in found.items()} == {"log": "mllog", "times": "worker-times"}


def test_another_format_beside_the_first_is_one_more_account_of_the_same_job(jobs):
    found, left = jobs({"log.mllog": mllog([1.0] * 5), "times.csv": workers(3)})
    assert list(found) == ["log"]
    assert [name.rpartition("/")[2] for name in left] == ["times.csv"]
    assert "times.csv" in found["log"].info["note"]


def test_metrics_go_to_the_job_that_is_nearest(jobs):
    found, _ = jobs({"a/t.csv": workers(2), "a/gpu.csv": smi(), "b/t.csv": workers(2)})
    assert ["gpu_sample" in run.samples for run in found.values()] == [True, False]


def test_a_job_that_cannot_be_read_does_not_keep_the_others_from_it(jobs):
    found, _ = jobs({"a.csv": workers(3), "b.csv": "step,worker,time_ms\n1,0,-5\n1,1,7\n"})
    assert [isinstance(run, Failed) for run in found.values()] == [False, True]


def test_names_have_as_many_folders_as_it_takes(jobs):
    found, _ = jobs({f"{run}/out/t.csv": workers(2) for run in ("r1", "r2")})
    assert list(found) == ["r1/out", "r2/out"]


def test_logs_of_runs_in_two_folders_are_not_taken_for_restarts(jobs):
    log = "\n".join(
        f"iteration {i}/ 100 | elapsed time per iteration (ms): 250.{i % 10} | lm loss: 2.0" for i in range(40)
    )
    found, _ = jobs({f"{run}/rank{rank}.log": log for run in "ab" for rank in range(2)})
    assert {name: len(run.ranks) for name, run in found.items()} == {"a": 2, "b": 2}


def test_attempts_of_one_launch_stay_one_job(jobs):
    log = "\n".join(
        f"iteration {i}/ 100 | elapsed time per iteration (ms): 250.{i % 10} | lm loss: 2.0" for i in range(40)
    )
    found, _ = jobs({f"attempt_{attempt}/{rank}/stdout.log": log for attempt in range(2) for rank in range(2)})
    assert [len(run.ranks) for run in found.values()] == [2]


def test_a_single_job_that_cannot_be_read_is_an_error(jobs):
    with pytest.raises(InputError, match="negative"):
        jobs({"b.csv": "step,worker,time_ms\n" + "".join(f"{s},{w},-5\n" for s in range(9) for w in range(2))})


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ("nccl_flight_recorder/fr_traces.tar.gz", {"lock_gil_1st", "lock_gil_2nd", "gpu_error_1st", "gpu_error_2nd"}),
        ("bytedance_whatif", {"trace-AR", "trace-SE", "trace-ST"}),
        ("kineto_hta", {"control", "nccl_data", "rank-34.cpu_only", "kineto_hta", "test"}),
    ],
)
def test_published_sets_hold_these_jobs(public_data, data, names):
    with opened([str(public_data(data))]) as found:
        each = list(found.each())
        assert set(names_of([job for job, _ in each])) == names
        assert not any(isinstance(run, Failed) for _, run in each)
