"""kill -9 of anything at any moment: the job is not hurt by ours, and what was recorded is there, once."""

import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

import pytest
from launch_lab import Recording, processes, wait_for

from starprof.store.query import load_run

PYTHON = sys.executable
JOB = str(Path(__file__).with_name("training_job.py"))
HELPERS = ("starprof.agent", "starprof.store.ingest")


def acknowledged(stop, rank=0):
    """Steps that a rank says it has done."""
    return struct.unpack("<Q", Path(f"{stop}.count{rank}").read_bytes())[0]


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, TypeError):
        return False
    return True


def steps_in(run_file, query):
    """(rows, different steps, first, last) of each rank."""
    rows = query(
        run_file,
        "SELECT rank, count(*), count(DISTINCT step), min(step), max(step) FROM step GROUP BY rank ORDER BY rank",
    )
    return {rank: tuple(rest) for rank, *rest in rows}


def started(recording):
    """Wait for the first step of a rank."""
    assert recording.process.stdout.readline() == "ready\n"
    return recording


@pytest.fixture
def stop(tmp_path):
    """File that ends the job."""
    return tmp_path / "stop"


def test_helpers_killed_again_and_again(launch_often_ingesting, tmp_path, stop, query):
    """Ranks of torchrun lose no step and get no step twice while agent and ingester die under them."""
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    recording = started(launch_often_ingesting("-o", "run", "--", *torchrun, JOB, stop, "0.003"))
    chance = random.Random(7)
    killed = dict.fromkeys(HELPERS, 0)
    deadline = time.monotonic() + 25
    while min(killed.values()) < 5 and time.monotonic() < deadline:
        helper = min(HELPERS, key=lambda h: killed[h])
        killed[helper] += kill(wait_for(lambda name=helper: recording.helper(name), what=helper))
        time.sleep(chance.uniform(0, 1.2))
    stop.touch()
    code, out, err = recording.end()
    done = {int(line.split()[1]) for line in out.splitlines() if line.startswith("steps")}
    assert code == 0, err
    (steps,) = done
    expected = (steps, steps, 0, steps - 1)
    assert steps_in(tmp_path / "run.starprof", query) == {0: expected, 1: expected}
    gaps = query(tmp_path / "run.starprof", "SELECT count(*) FROM gap WHERE source = 'agent'")
    restarts = query(tmp_path / "run.starprof", "SELECT count(*) FROM event WHERE kind = 'agent-restart'")
    assert restarts == [(killed["starprof.agent"],)]
    assert 1 <= gaps[0][0] <= killed["starprof.agent"]
    assert not (tmp_path / "run.starprof.spool").exists()


def test_rank_killed(launch, tmp_path, stop, query):
    recording = started(launch("-o", "run", "--", PYTHON, JOB, stop, "0.002"))
    time.sleep(1.3)
    (rank,) = [pid for pid, command in processes(str(stop)).items() if command.startswith(f"{PYTHON} {JOB}")]
    kill(rank)
    assert recording.end()[0] == 128 + signal.SIGKILL
    rows, different, first, last = steps_in(tmp_path / "run.starprof", query)[0]
    assert (rows, first, last) == (different, 0, different - 1)
    assert different >= acknowledged(stop)
    assert "killed" in query(tmp_path / "run.starprof", "SELECT detail FROM event WHERE kind = 'rank-exit'")[0][0]


def test_recorder_killed(launch, tmp_path, stop, query):
    """The job goes on, the agent stays with it, and the next look at the run folds everything in."""
    recording = started(launch("-o", "run", "--", PYTHON, JOB, stop, "0.002"))
    kill(recording.pid)
    before = acknowledged(stop)
    wait_for(lambda: acknowledged(stop) > before + 200, what="the job going on")
    stop.touch()
    _, out, _ = recording.end()
    steps = int(out.split()[-1])
    wait_for(lambda: not processes(str(tmp_path)), what="the agent's end")
    data = load_run(tmp_path / "run.starprof")
    assert data.steps.steps.tolist() == list(range(steps))
    assert steps_in(tmp_path / "run.starprof", query)[0] == (steps, steps, 0, steps - 1)


def test_everything_killed_at_once(launch_often_ingesting, tmp_path, stop, query):
    recording = started(launch_often_ingesting("-o", "run", "--", PYTHON, JOB, stop, "0.001"))
    time.sleep(1.7)
    for pid in [recording.pid, *processes(str(tmp_path))]:
        kill(pid)
    recording.end()
    wait_for(lambda: not processes(str(tmp_path)), what="the end of all")
    load_run(tmp_path / "run.starprof")
    rows, different, first, last = steps_in(tmp_path / "run.starprof", query)[0]
    assert (rows, first, last) == (different, 0, different - 1)
    assert different >= acknowledged(stop)


def test_last_ingester_killed(launch, tmp_path, query):
    recording = launch("-o", "run", "--", "sh", "-c", "exit 3")
    kill(wait_for(lambda: recording.helper("starprof.launch.lastfold"), what="the last ingester"))
    assert recording.end()[0] == 3
    assert query(tmp_path / "run.starprof", "SELECT exit_code FROM run") == [(3,)]
    assert not (tmp_path / "run.starprof.spool").exists()


@pytest.fixture
def launch_often_ingesting(launch):
    """Like `launch`, with an ingester every half second instead of every minute."""
    often = (
        "import dataclasses, sys; from starprof import cli; from starprof.launch import start; decide = start.decide\n"
        "start.decide = lambda *given: dataclasses.replace(decide(*given), ingest_every_s=0.5)\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )

    def begin(*arguments) -> Recording:
        return launch(*arguments, program=(PYTHON, "-c", often))

    return begin
