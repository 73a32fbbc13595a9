"""Who starts the coordinator, and on which cores: real stores, real processes."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from real_groups import real_group
from torch.distributed import HashStore

from starprof.control import controlsocket
from starprof.control.coordinator.place import leave_rank
from starprof.control.engine.home import Home
from starprof.errors import TransportError


class Started:
    """Notes which ranks have started a coordinator; `where` is told for all of them."""

    def __init__(self):
        self.by = []

    def by_rank(self, rank):
        def start(epoch):
            self.by.append((rank, epoch))
            return "127.0.0.1", 1000 * rank + epoch

        return start


def asked_together(store, started, ranks):
    """Addresses that ranks find when all of them ask, in this order."""
    found = {}
    homes = {rank: Home(store, rank, started.by_rank(rank)) for rank in ranks}
    threads = [
        threading.Thread(target=lambda r=rank, h=home: found.update({r: h.address()})) for rank, home in homes.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found, homes


def test_rank_0_starts_the_first_one_though_others_ask_before_it():
    started = Started()
    found, _ = asked_together(HashStore(), started, [3, 2, 1, 0])
    assert started.by == [(0, 1)]
    assert set(found.values()) == {("127.0.0.1", 1)}


def test_where_rank_0_does_not_come_another_one_starts_it():
    started = Started()
    found, _ = asked_together(HashStore(), started, [3, 1])
    ((rank, epoch),) = started.by
    assert rank in {1, 3}
    assert epoch == 1
    assert set(found.values()) == {("127.0.0.1", 1000 * rank + 1)}


def test_the_next_one_is_started_by_who_misses_it_first():
    started = Started()
    store = HashStore()
    now_s = [0.0]
    first = Home(store, 0, started.by_rank(0), now_s=lambda: now_s[0])
    other = Home(store, 2, started.by_rank(2), now_s=lambda: now_s[0])
    assert first.address() == other.address()
    for _ in range(2):
        other.dialled(ConnectionRefusedError())
        now_s[0] += 2.0
    assert other.address() == ("127.0.0.1", 2002)
    assert started.by == [(0, 1), (2, 2)]


def test_a_coordinator_that_cannot_be_started_is_an_error_and_the_next_number_is_tried():
    def fails(epoch):
        raise TransportError(f"no {epoch}")

    home = Home(HashStore(), 0, fails)
    for epoch in (1, 2):
        with pytest.raises(TransportError, match=f"no {epoch}"):
            home.address()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_coordinator_of_a_bound_rank_may_use_the_cores_of_the_job(tmp_path):
    own = os.sched_getaffinity(0)
    told = {"ranks": 2, "state": str(tmp_path)}
    # The rank is a child of the launcher, which is this process, and binds itself.
    code = f"""
import os, json
from pathlib import Path
from starprof.control.engine import home
os.sched_setaffinity(0, {{{min(own)}}})
home.starter({told!r}, {{**os.environ, "STARPROF_CONTROL_TOKEN": "x"}}, "127.0.0.1", Path({str(tmp_path / "log")!r}))(1)
print(home._STARTED[0].pid, *sorted(os.sched_getaffinity(home._STARTED[0].pid)))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    pid, *cores = map(int, told.split())
    os.kill(pid, signal.SIGTERM)
    assert set(cores) == own


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="control groups are root's")
def test_the_coordinator_of_a_rank_with_a_quota_is_in_the_launchers_group(tmp_path):
    told = {"ranks": 2, "state": str(tmp_path)}
    with real_group(f"starprof-test-{os.getpid()}", 200_000) as group:
        code = f"""
import os
from pathlib import Path
from starprof.control.engine import home
Path({str(group / "cgroup.procs")!r}).write_text(str(os.getpid()))
home.starter({told!r}, {{**os.environ, "STARPROF_CONTROL_TOKEN": "x"}}, "127.0.0.1", Path({str(tmp_path / "log")!r}))(1)
print(home._STARTED[0].pid, *Path({str(group / "cgroup.procs")!r}).read_text().split())
print(Path(f"/proc/{{home._STARTED[0].pid}}/cgroup").read_text())
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        first, _, groups = done.stdout.partition("\n")
        pid, *held = first.split()
        status = controlsocket.ask(tmp_path, {"do": "status"})
        os.kill(int(pid), signal.SIGTERM)
    assert held, "the rank is in it"
    assert pid not in held
    assert group.name not in groups
    assert status["held_by"] == []


def test_where_a_group_may_not_be_left_that_is_known(tmp_path):
    """A tree of files: nothing is there that could be written to."""
    for pid, path in (("self", "/job/rank0"), ("7", "/job")):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "cgroup").write_text(f"3:cpu,cpuacct:{path}\n2:memory:/\n0::/\n")
    mounted = "33 32 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    (tmp_path / "proc" / "self" / "mountinfo").write_text(mounted)
    cores = os.sched_getaffinity(0)
    try:
        kept = leave_rank(7, tmp_path / "proc", tmp_path / "sys")
        nobody = leave_rank(8, tmp_path / "proc", tmp_path / "sys")
    finally:
        os.sched_setaffinity(0, cores)
    assert kept == [str(tmp_path / "sys/fs/cgroup/cpu/job/rank0")]
    assert nobody == [], "there is no such process"
