"""What reaches the ranks through launchers and scripts, and what the job's other processes notice of it: nothing."""

import os
import sys
from pathlib import Path

import pytest

from starprof.launch import environment

PYTHON = sys.executable
JOB = str(Path(__file__).with_name("training_job.py"))


def test_ranks_are_found_behind_a_shell_script_that_execs(launch, tmp_path, query):
    """stop exists from the beginning: the job takes one step."""
    (tmp_path / "stop").touch()
    script = tmp_path / "job.sh"
    script.write_text(
        f"#!/bin/sh\ncd /\n{PYTHON} -c 'print(1 + 1)'\nexec env -u NOTHING {PYTHON} {JOB} {tmp_path}/stop 0\n"
    )
    script.chmod(0o755)
    code, out, err = launch("-o", "run", "--", "./job.sh").end()
    assert (code, out) == (0, "2\nready\nsteps 1\n")
    assert "(1 rank, 1 step)" in err
    assert query(tmp_path / "run.starprof", "SELECT rank, node FROM rank") == [(0, 0)]


def test_the_users_pythonpath_is_kept_behind_ours(launch, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own_module.py").write_text("print('mine')")
    env = {"PYTHONPATH": f"{tmp_path}/mine:/elsewhere"}
    _, out, _ = launch(
        "-o", "run", "--", PYTHON, "-c", "import own_module, os; print(os.environ['PYTHONPATH'])", env=env
    ).end()
    assert out == f"mine\n{environment.INJECT}:{tmp_path}/mine:/elsewhere\n"


def test_python_that_trains_nothing_loads_nothing_of_ours(launch, tmp_path):
    code = "import sys, json, subprocess; print([m for m in sys.modules if 'starprof' in m or 'torch' in m])"
    returned, out, err = launch("-o", "run", "--", PYTHON, "-c", code).end()
    assert (returned, out) == (0, "[]\n")
    assert "0 ranks" in err


@pytest.mark.parametrize("module", ["json", "socket", "duckdb", "starprof"])
def test_files_in_the_working_directory_are_not_taken_for_our_modules(launch, tmp_path, module, query):
    (tmp_path / f"{module}.py").write_text("raise SystemExit('imported the wrong one')")
    # Not `python -m`, which puts the working directory first for the command line itself.
    program = (str(Path(PYTHON).with_name("starprof")),)
    code, _, err = launch("-o", "run", "--", "sh", "-c", "exit 3", program=program).end()
    assert (code, "wrong one" in err) == (3, False)
    assert query(tmp_path / "run.starprof", "SELECT exit_code FROM run") == [(3,)]


def test_variables_of_the_recording(launch, tmp_path):
    code = (
        "import os; print(*sorted(f'{k}={v}' for k, v in os.environ.items() if k.startswith('STARPROF_')), sep='\\n')"
    )
    _, out, _ = launch("-o", "run", "--rate", "5", "--node-rank", 2, "--", PYTHON, "-c", code).end()
    assert out.splitlines() == [
        f"STARPROF_HOME={environment.HOME}",
        "STARPROF_NODE=2",
        "STARPROF_RATE_HZ=5",
        f"STARPROF_SPOOL={tmp_path}/run.starprof.spool",
    ]


def test_rate_flag_wins_over_the_variable_and_that_over_the_default(launch):
    def rate(*flags, env=None):
        return (
            launch("-o", "run", "--force", *flags, "--", "sh", "-c", "echo $STARPROF_RATE_HZ", env=env).end()[1].strip()
        )

    assert rate() == "10"
    assert rate(env={"STARPROF_RATE_HZ": "4"}) == "4"
    assert rate("--rate", "2.5", env={"STARPROF_RATE_HZ": "4"}) == "2.5"


def test_helpers_are_never_recorded():
    base = {"PYTHONPATH": "x", "STARPROF_SPOOL": "/s", "PYTHONINSPECT": "1", "HOME": "/root"}
    made = environment.for_helpers(base, pythonpath=f"{environment.INJECT}{os.pathsep}/libs")
    assert made == {"HOME": "/root", "PYTHONPATH": f"/libs{os.pathsep}{environment.HOME}"}


@pytest.mark.parametrize(("environ", "rank"), [({}, None), ({"SLURM_NODEID": "3"}, 3), ({"GROUP_RANK": "x"}, None)])
def test_node_rank_of_the_cluster(environ, rank):
    assert environment.node_rank(environ) == rank
