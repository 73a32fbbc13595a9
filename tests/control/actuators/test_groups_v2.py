"""Version 2 of control groups, on a tree of plain files: this kernel's has no cpu controller."""

import pytest

from starprof.control.actuators import hand
from starprof.control.actuators.base import Request
from starprof.control.actuators.cgroup import plan_on
from starprof.control.actuators.change import RefusedError
from starprof.control.actuators.job import JobHere, Member
from starprof.errors import UsageError
from starprof.spool.layout import Spool

PID, START = 4242, 17


@pytest.fixture
def tree(tmp_path):
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    (proc / "self").mkdir(parents=True)
    (proc / str(PID)).mkdir()
    mount = "30 1 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n"
    (proc / "self" / "mountinfo").write_text(mount)
    (proc / str(PID) / "cgroup").write_text("0::/user/job\n")
    group = sys / "fs/cgroup/user/job"
    group.mkdir(parents=True)
    (sys / "fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    (group / "cgroup.procs").write_text(f"{PID}\n")
    (group / "cpu.weight").write_text("100\n")
    (group / "cpu.max").write_text("max 100000\n")
    return proc, sys, group


@pytest.fixture
def here(tmp_path):
    spool = Spool(tmp_path / "x.starprof.spool")
    spool.create()
    return JobHere(spool)


def plan(here, tree, value):
    return plan_on(Request(here, value), [Member(PID, START, 0)], tree[0], tree[1])


def test_weight_and_quota_of_the_jobs_own_group_and_back(here, tree):
    group = tree[2]
    hand.make(here, "cgroup", plan(here, tree, "weight=20,cores=1.5"), standing=True)
    assert (group / "cpu.weight").read_text() == "20"
    assert (group / "cpu.max").read_text() == "150000 100000"
    (group / "cpu.weight").write_text("77\n")
    left = [undone.left for undone in hand.take_back(here.key) if undone.left]
    assert len(left) == 1
    assert "is 77 by now" in left[0]
    assert (group / "cpu.max").read_text() == "max 100000"


def test_a_group_with_strangers_is_not_touched(here, tree):
    (tree[2] / "cgroup.procs").write_text(f"{PID}\n1\n")
    with pytest.raises(RefusedError, match="start the job in its own group"):
        plan(here, tree, "weight=20")


def test_a_group_that_was_removed_needs_nothing(here, tree):
    hand.make(here, "cgroup", plan(here, tree, "weight=20"), standing=True)
    for file in tree[2].iterdir():
        file.unlink()
    tree[2].rmdir()
    assert [undone.left for undone in hand.take_back(here.key)] == [""]


@pytest.mark.parametrize("text", ["", "weight=0", "cores=0.001", "weight=5,weight=6", "shares=3", "cores=-1"])
def test_what_is_no_weight_and_no_quota(here, tree, text):
    with pytest.raises(UsageError):
        plan(here, tree, text)
