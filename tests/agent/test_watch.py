"""Jumps of the wall clock, and the end of the recorder."""

import os
import subprocess
from pathlib import Path

import pytest

from starprof.agent.watch import ClockWatch, ParentWatch

SECOND_NS = 1_000_000_000


@pytest.mark.parametrize("jump_s", [3600, -2])
def test_a_wall_clock_that_is_set_is_noticed_once(jump_s):
    watch = ClockWatch()
    assert watch.jump_ns(0, 1_000 * SECOND_NS) == 0
    assert watch.jump_ns(SECOND_NS, (1_001 + jump_s) * SECOND_NS) == jump_s * SECOND_NS
    assert watch.jump_ns(2 * SECOND_NS, (1_002 + jump_s) * SECOND_NS) == 0


def test_a_clock_that_is_slewed_is_no_jump():
    watch = ClockWatch()
    jumps = {watch.jump_ns(n * SECOND_NS, n * (SECOND_NS + 500_000)) for n in range(5000)}

    assert jumps == {0}


def test_a_recorder_that_ended_is_gone_also_as_a_zombie():
    recorder = subprocess.Popen(["sleep", "60"])
    watch = ParentWatch(Path("/proc"), recorder.pid)
    assert not watch.gone(1)
    recorder.kill()
    os.waitid(os.P_PID, recorder.pid, os.WEXITED | os.WNOWAIT)
    assert watch.gone(2)
    recorder.wait()
    assert watch.gone(3)
    assert watch.gone_ns == 2


def test_without_a_recorder_there_is_nothing_to_outlive():
    assert not ParentWatch(Path("/proc"), None).gone(1)
