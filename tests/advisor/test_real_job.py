"""A real job under `record --advise=apply`: the fault comes and goes, and the advisor follows; all by conditions."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

from starprof.control import controlsocket
from starprof.errors import StarprofError
from starprof.model import env
from starprof.spool.audit import Audit, read

TRAINING = Path(__file__).with_name("watched_training.py")
SERVER_TRAINING = Path(__file__).with_name("watched_server_training.py")
PATIENCE_S = 300.0


class Recording:
    """Of four ranks; `folder` holds what tells the job what to do."""

    def __init__(self, folder, *words, usual_s=0.03, slow_s=0.15, training=TRAINING):
        self.folder = folder
        self.spool = folder / "run.starprof.spool"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
        script = [str(training), str(folder), str(slow_s), str(usual_s)]
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "starprof", "record", *words, "-o", "run", "--", *torchrun, *script],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", env.CONTROL_NOISE_EVERY: "10"},
                stdout=out,
                stderr=err,
            )

    def until(self, what, told):
        """Wait for a condition; what is told is the job's own."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (found := what()):
            assert self.process.poll() is None, f"the job ended before {told}:\n{self.text()}"
            assert time.monotonic() < deadline_s, f"never came: {told}\n{self.text()}"
            time.sleep(0.1)
        return found

    def text(self):
        log = self.spool / "helpers.log"
        helpers = log.read_text() if log.exists() else ""
        return (self.folder / "err").read_text() + helpers + (self.folder / "out").read_text()[-500:]

    def advisor(self):
        try:
            return json.loads((self.spool / "advisor.json").read_text())
        except (OSError, ValueError):
            return {}

    def ask(self, **question):
        try:
            return controlsocket.ask(controlsocket.folder_of(self.spool), question)
        except StarprofError:
            return {}

    def mode(self):
        return self.ask(do="status").get("mode")

    def steps(self):
        return (self.folder / "out").read_text().count("\nstep ")

    def until_steps(self, count):
        begun = self.steps()
        self.until(lambda: self.steps() >= begun + count, f"{count} more steps")

    def until_phase(self, *phases):
        self.until(lambda: self.advisor().get("phase") in phases, f"phase {phases}, but {self.advisor()}")

    def end(self):
        (self.folder / "end").touch()
        self.process.wait(PATIENCE_S)
        assert self.process.returncode == 0, self.text()

    def actions(self):
        with duckdb.connect(str(self.folder / "run.starprof"), read_only=True) as run:
            return run.execute(
                "SELECT action, stage, mode, ranks, predicted_gain, measured_gain FROM advisor_action ORDER BY mono_ns"
            ).fetchall()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def recording(tmp_path):
    started = []

    def start(*words, **more):
        started.append(Recording(tmp_path, *words, **more))
        return started[-1]

    yield start
    for each in started:
        (tmp_path / "end").touch()
        try:
            each.process.wait(30)
        except subprocess.TimeoutExpired:
            each.kill()


def test_a_fault_comes_and_goes_and_the_job_follows(recording):
    job = recording("--advise=apply", "--limit", "hold_s=2")
    job.until(lambda: job.advisor().get("phase") == "watching" and job.steps() > 100, "steps of a healthy job")
    (job.folder / "slow").touch()
    job.until_phase("kept")
    assert job.advisor()["ranks"] == [3]
    assert job.mode() != "native"
    (job.folder / "slow").unlink()
    job.until_phase("watching")
    job.until(lambda: job.mode() == "native", "native steps again")
    job.until_steps(20)
    job.end()
    told = job.actions()
    stages = [stage for action, stage, *_ in told if action == 1]
    assert stages[:4] == ["proposed", "canary", "kept", "returned"], told
    kept = next(row for row in told if row[1] == "kept")
    assert kept[3] == "3"
    assert kept[4] > 1.5
    assert kept[5] > 1.1
    ranks = [json.loads((job.folder / f"rank{rank}.json").read_text()) for rank in range(4)]
    assert len({each["right"] for each in ranks}) == 1


def test_a_job_on_a_parameter_server_is_moved_and_comes_back(recording):
    job = recording("--advise=apply", "--limit", "hold_s=2", training=SERVER_TRAINING)
    job.until(lambda: job.advisor().get("phase") == "watching" and job.steps() > 60, "steps of a healthy job")
    (job.folder / "slow").touch()
    job.until_phase("kept")
    assert job.advisor()["ranks"] == [3]
    assert job.mode() != "ssgd"
    (job.folder / "slow").unlink()
    job.until_phase("watching")
    job.until(lambda: job.mode() == "ssgd", "all wait for all again")
    (job.folder / "slow").touch()
    job.ask(do="mode", mode="asgd", by="test")
    assert job.ask(do="status")["operator"] == "test"
    job.until(lambda: job.advisor()["standing_by"], "the operator has his way")
    job.end()
    told = job.actions()
    assert [stage for action, stage, *_ in told if action == 1][:4] == ["proposed", "canary", "kept", "returned"], told
    ranks = [json.loads((job.folder / f"rank{rank}.json").read_text()) for rank in range(4)]
    assert len({each["right"] for each in ranks}) == 1
    log = read(Audit.beside(job.folder / "run.starprof").path)
    written = [(each["action"], each["by"], each["mode"]) for each in log]
    assert written[1:] == [("advise", "advisor", "ssgd"), ("mode", "test", "asgd")]
    assert written[0][:2] == ("advise", "advisor")


def test_divergence_takes_it_back_and_so_does_the_advisors_death(recording):
    job = recording("--advise=apply", "--limit", "hold_s=1", "--limit", "lease_s=3", "--limit", "modes=m-sync,lgc")
    job.until(lambda: job.steps() > 100, "steps of a healthy job")
    (job.folder / "slow").touch()
    job.until_phase("kept")
    first = job.mode()
    (job.folder / "diverge").touch()
    job.until(lambda: job.mode() == "native", "native steps after the divergence")
    (job.folder / "diverge").unlink()
    # The other mode is allowed; the one in which it diverged is not tried again.
    job.until_phase("kept")
    assert job.mode() not in {"native", first}
    os.kill(job.advisor()["pid"], signal.SIGKILL)
    job.until(lambda: job.mode() == "native", "native steps after the lease")
    last = job.ask(do="status")["last_switch"]
    assert last["asked_by"] in {"coordinator", "advisor"}
    assert job.ask(do="freeze", by="user")["ok"]
    job.until(lambda: job.advisor().get("standing_by") == "frozen by user", "an advisor that has started anew")
    job.until_steps(40)
    assert job.mode() == "native", "a frozen job is not touched"
    job.end()
    assert any(stage == "guard" for _, stage, *_ in job.actions())
