"""A recorded job under torchrun with a slow rank: one of its processes dies, and torchrun starts all of them again."""

import json
import os
import subprocess
import sys

import duckdb
import pytest
from jobs import SCRIPT
from test_setups import same

from starprof.analysis.diagnose import diagnose
from starprof.analysis.own_time import own_time
from starprof.analysis.settings import DEFAULT
from starprof.store.query import load_run

SETUP = {
    "optimizer": "adamw",
    "user": "checkpoints",
    "epochs": 4,
    "batches": 60,
    "slow_s": 0.08,
    "fault": "kill once",
    "fault_rank": 1,
    "fault_at": 80,
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder of the recording, and what the job has written."""
    folder = tmp_path_factory.mktemp("recorded")
    setup = {**SETUP, "resume": str(folder / "checkpoint.pt")}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--max-restarts", "1"]
    torchrun += ["--standalone", str(SCRIPT), json.dumps(setup)]
    record = [sys.executable, "-m", "starprof", "record", "-o", "run"]
    record += ["--control", "--mode", "m-sync", "--option", "m=3"]
    # In a store that attempts share, gloo finds addresses of the attempt before: so torch's own restarts fail as well.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        [*record, "--", *torchrun],
        cwd=folder,
        env={**os.environ, **own_store, "CONTROL_FOLDER": str(folder / "run.starprof.spool"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_the_history_of_the_first_attempt_is_there_and_the_second_one_is_controlled_again(recorded):
    folder, out = recorded
    with duckdb.connect(str(folder / "run.starprof"), read_only=True) as run:
        updates = dict(run.execute("SELECT attempt, count(*) FROM sync_update GROUP BY 1").fetchall())
        modes = run.execute("SELECT DISTINCT attempt, to_mode FROM sync_switch ORDER BY 1").fetchall()
        versions = "min(version), max(version), count(DISTINCT version)"
        begun, ended, count = run.execute(f"SELECT {versions} FROM sync_update WHERE attempt = 0").fetchone()
        steps = dict(run.execute("SELECT attempt, count(DISTINCT step) FROM step GROUP BY 1").fetchall())
    assert updates.keys() == steps.keys() == {0, 1}
    assert modes == [(0, "m-sync"), (1, "m-sync")]
    assert count == ended - begun + 1 >= 20, "rounds of the first attempt are missing"
    assert updates[1] > 120
    told = [json.loads(line.partition("TOLD ")[2]) for line in out.splitlines() if "TOLD " in line]
    same(sorted(told, key=lambda each: each["rank"]))
    assert len(told) == 4
    slow = next(each for each in told if each["rank"] == 3)
    assert slow["executed"] < 140, "nothing was passed over"


def test_the_slow_rank_is_named_and_its_cost_is_that_of_native_steps(recorded):
    folder, _ = recorded
    run = load_run(folder / "run.starprof")
    verdict = diagnose(run)
    assert verdict.verdict == "straggler"
    assert [finding.ranks for finding in verdict.findings if finding.ranks] == [(3,)]
    assert "steps were made in rounds, where nobody waits for the slowest" in verdict.reason
    own = own_time(run, DEFAULT)
    assert verdict.cost.seconds < 2 * 0.08 * (~own.rounds).sum()
    assert "more were spared" in verdict.reason
