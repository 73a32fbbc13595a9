"""File names and sizes as the user writes them."""

import socket

import pytest

from starprof.errors import UsageError
from starprof.launch.address import split_address
from starprof.launch.plan import Plan
from starprof.launch.prepare import default_name, run_path, size_bytes

HOST = socket.gethostname().partition(".")[0]


@pytest.mark.parametrize(
    ("command", "stem"),
    [
        (["torchrun", "--nproc-per-node", "4", "src/train.py", "--x", "y.py"], "train"),
        (["python", "-m", "pkg.pretrain", "-m", "z"], "pretrain"),
        (["/usr/bin/mpirun", "-n", "2", "./a.out"], "mpirun"),
        (["./my job.sh"], "my-job"),
        (["python", "-m"], "python"),
    ],
)
def test_default_name_is_what_a_person_would_call_it(command, stem):
    assert default_name(command, 0.0).startswith(f"{stem}-19")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("run", "run.starprof"),
        ("run.starprof", "run.starprof"),
        ("v1.5", "v1.5.starprof"),
        ("{host}", f"{HOST}.starprof"),
        ("{rank}of{job}", "3of9.starprof"),
        ("{other}", "{other}.starprof"),
    ],
)
def test_run_path(given, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_path(given, node=3, environ={"SLURM_JOB_ID": "9"}) == tmp_path / name


def test_rank_that_is_not_known_is_an_error():
    with pytest.raises(UsageError, match="--node-rank"):
        run_path("{rank}", node=None, environ={})


@pytest.mark.parametrize(
    ("text", "size"),
    [("500", 500), ("1k", 1024), ("1.5M", 3 << 19), ("2G", 2 << 30), ("2GiB", 2 << 30), ("1 MB", 1 << 20)],
)
def test_sizes(text, size):
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "-1", "M", "1X", "1e3", "one"])
def test_what_is_no_size(text):
    with pytest.raises(UsageError, match="not a size"):
        size_bytes(text)


@pytest.mark.parametrize(
    ("text", "parts"), [("h:1", ("h", 1)), ("10.0.0.1:0", ("10.0.0.1", 0)), ("[::1]:99", ("::1", 99))]
)
def test_addresses(text, parts):
    assert split_address(text, "--join") == parts


@pytest.mark.parametrize("text", ["", ":1", "h:", "h", "h:x", "h:70000"])
def test_what_is_no_address(text):
    with pytest.raises(UsageError, match="HOST:PORT"):
        split_address(text, "--join")


def test_plan_survives_the_command_line():
    plan = Plan(
        run_file="/r.starprof",
        run_id="i",
        command=("a", "--", "ü b", ""),
        lock_fd=3,
        node=None,
        max_size_bytes=7,
        signal_mask=(2, 15),
        pythonpath="",
    )
    assert Plan.from_argv(plan.to_argv()) == plan
