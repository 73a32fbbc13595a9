"""`starprof calibrate` on a real job: measured, kept with the run, and nothing of it left."""

import json
import os
import signal
import subprocess
import sys

import pytest
from actuators_lab import Running, until

from starprof.control.actuators import hand, journal, orders
from starprof.control.actuators.repair import repair
from starprof.control.controlsocket import ask, folder_of
from starprof.model.tables.calibration import CALIBRATION
from starprof.spool.segment import list_segments, readable_frames


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A job whose loop can be moved to rounds."""
    started = Running(tmp_path_factory.mktemp("epochs"), allow="all", arguments=("epochs",)).ready()
    until(lambda: started.told(0).get("epochs") == 2, "two epochs")
    until(lambda: (folder_of(started.spool.root) / "control.sock").exists(), "the coordinator")
    yield started
    started.kill()


def calibrate(job, *arguments):
    return [
        sys.executable,
        "-m",
        "starprof",
        "calibrate",
        str(job.folder / "job.starprof"),
        "--seconds",
        "0.5",
        *arguments,
    ]


def mode_of(job):
    return ask(folder_of(job.spool.root), {"do": "status"})["wish"]


def unchanged(job):
    entries = [entry for each in journal.journals() for entry in each.entries()]
    ordered = [s for s in orders.read_orders(orders.path_in(job.spool.root)).ranks.values() if s]
    return not entries and not ordered and mode_of(job) == "native"


def test_what_a_plan_needs_is_measured_and_kept_with_the_run(job):
    done = subprocess.run(calibrate(job, "--json"), capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    kinds = {row["kind"] for row in told["rows"]}
    assert {"base", "delay", "mode"} <= kinds, told["skipped"]
    assert {"cores", "pace"} <= kinds or told["skipped"], "what was not measured is told"
    assert {row["rank"] for row in told["rows"]} == {0, 1}
    measured = told["measured"]
    assert measured["workers"] == 2
    assert measured["sensitivity"] > 0
    assert set(measured["modes"]) == {"asgd"}
    long = [row for row in told["rows"] if row["kind"] == "delay" and row["level"] == 1.0]
    assert min(row["iteration_us"] or 1_000_000 for row in long) >= 1_000_000
    assert unchanged(job)
    assert "\r" not in done.stderr, "a bar is for terminals"
    written = [segment.path.read_bytes() for segment in list_segments(job.spool.segments)]
    assert CALIBRATION.name in {frame.table.name for data in written for frame, _, _ in readable_frames(data)}


def test_killed_in_another_mode_all_is_put_back(job):
    process = subprocess.Popen(calibrate(job), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: process.poll() is not None or mode_of(job) == "asgd", "the other mode")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: unchanged(job), "everything as before")  # its watchdog is there


def test_where_its_watchdog_is_killed_too_the_next_start_puts_it_back(job):
    process = subprocess.Popen(calibrate(job), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: process.poll() is not None or mode_of(job) == "asgd", "the other mode")
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    with open(children) as file:
        watchdogs = [int(word) for word in file.read().split()]
    for pid in [*watchdogs, process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    assert mode_of(job) == "asgd"
    assert repair()
    assert unchanged(job)
    assert hand.take_back(job.here.key) == []
