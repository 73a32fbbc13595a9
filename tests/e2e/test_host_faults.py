"""One rank's host takes something away from it: the cost is what the job lost by its own clock."""

import os
from functools import partial
from pathlib import Path

import pytest
from harness import Setting, assert_blames, run

from starprof.demo import job
from starprof.demo.faults import Fault, pin_to_core_of
from starprof.demo.hog import Hog
from starprof.demo.netlab import NetLab

pytestmark = pytest.mark.e2e


def own_cpu_cgroup():
    """Folder of this process' own group of the cgroup v1 cpu controller, None where there is none to write to."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        group = Path("/sys/fs/cgroup/cpu") / path.strip("/")
        if "cpu" in controllers.split(",") and (group / "cpu.shares").exists() and os.access(group, os.W_OK):
            return group
    return None


needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPU cores")
needs_cgroup_v1 = pytest.mark.skipif(own_cpu_cgroup() is None, reason="needs a writable cgroup v1 cpu controller")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@needs_two_cores
def test_a_foreign_process_on_the_rank_s_core_is_named(tmp_path):
    fault = Fault("cpu", rank=1, step=50)
    with Hog(pin_to_core_of(fault.rank, fault.rank)) as hog:
        outcome = run(tmp_path, Setting(fault, steps=120, script=("--host-rank=1",), at_fault=hog.release))
    assert_blames(outcome, rank=1, causes={"cpu-contention"}, cost_seconds=outcome.lost_seconds)


@pytest.fixture
def cpu_cgroup():
    group = own_cpu_cgroup() / f"starprof-test-{os.getpid()}"
    group.mkdir()
    yield group
    group.rmdir()


@pytest.mark.root
@needs_root
@needs_cgroup_v1
def test_a_cgroup_quota_is_named(tmp_path, cpu_cgroup):
    environ = {"TEST_CGROUP": str(cpu_cgroup), "TEST_QUOTA_US": "30000"}
    setting = Setting(Fault("quota", rank=3, step=50), steps=100, script=("--host-rank=3",), environ=environ)
    outcome = run(tmp_path, setting)
    assert_blames(outcome, rank=3, causes={"cgroup-throttling"}, cost_seconds=outcome.lost_seconds)


@needs_two_cores
def test_an_affinity_collapse_is_named(tmp_path):
    setting = Setting(
        Fault("affinity", rank=1, step=50), steps=120, ranks=2, script=("--host-rank=1", "--host-threads=2")
    )
    outcome = run(tmp_path, setting)
    assert_blames(outcome, rank=1, causes={"affinity"}, cost_seconds=outcome.lost_seconds)


@pytest.mark.root
@needs_root
def test_a_shaped_interface_is_named(tmp_path):
    with NetLab(4) as lab:
        setting = Setting(
            Fault("none", rank=2, step=60),
            steps=130,
            start=partial(job.on_hosts, lab),
            at_fault=partial(lab.shape, 2, 80),
        )
        outcome = run(tmp_path, setting)
    finding = assert_blames(
        outcome, rank=2, causes={"nic-bandwidth", "nic-degraded"}, cost_seconds=outcome.lost_seconds
    )
    assert len(finding["nodes"]) == 1


@pytest.mark.root
@needs_root
def test_a_straggler_on_another_host_is_named_with_its_host(tmp_path):
    with NetLab(2) as lab:
        fault = Fault("backward", rank=1, step=40, delay_ms=80)
        outcome = run(tmp_path, Setting(fault, ranks=2, start=partial(job.on_hosts, lab)))
    finding = assert_blames(outcome, rank=1, causes={"backward-compute"}, cost_seconds=outcome.delay_seconds)
    assert len(finding["nodes"]) == 1
