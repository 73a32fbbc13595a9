"""Control groups: v2, v1 and hybrids on invented trees, and a real v1 quota."""

import os
import subprocess
import sys
import time

import pytest
from host_lab import SECOND_NS, HostRows, fields
from real_groups import real_group

from starprof.collectors.base import NodeContext, Unavailable
from starprof.collectors.cgroup import CgroupCollector, find_mounts

V1_MOUNTINFO = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V1_MEMBERSHIP = "4:memory:/mem/a\n3:cpu,cpuacct:/batch\n2:devices:/\n0::/\n"


def opened(host, rows):
    collector = CgroupCollector()
    collector.open(host.context, rows)
    return collector


def samples(rows):
    """Newest sample by (version, path) of the group."""
    names = {row["cgroup"]: (row["version"], row["path"]) for row in rows["cgroup"]}
    return {names[row["cgroup"]]: row for row in rows["cgroup_sample"]}


def make_v1(host):
    host.write("proc/self/mountinfo", V1_MOUNTINFO)
    for pid in (111, 112):
        host.write(f"proc/{pid}/cgroup", V1_MEMBERSHIP)
    for group, quota in (("", -1), ("batch/", 30_000)):
        folder = f"sys/fs/cgroup/cpu,cpuacct/{group}"
        host.write(folder + "cpu.cfs_quota_us", f"{quota}\n")
        host.write(folder + "cpu.cfs_period_us", "100000\n")
        host.write(folder + "cpu.stat", "nr_periods 70\nnr_throttled 20\nthrottled_time 900000000\nnr_bursts 0\n")
        host.write(folder + "cpuacct.usage", "5000000000\n")
    for group, limit in (("", 9223372036854771712), ("mem/", 9223372036854771712), ("mem/a/", 1 << 30)):
        folder = f"sys/fs/cgroup/memory/{group}"
        host.write(folder + "memory.usage_in_bytes", "777\n")
        host.write(folder + "memory.limit_in_bytes", f"{limit}\n")
        host.write(folder + "memory.failcnt", "12\n")
        host.write(folder + "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")


def test_every_level_of_a_v2_group_is_named_for_each_rank_in_it(host, rows):
    opened(host, rows).sample(0, rows)

    levels = [("/", 0), ("/jobs", 1), ("/jobs/train", 2)]
    named = {fields(row, "path", "depth", "rank", "version") for row in rows["cgroup"]}
    assert named == {(path, depth, rank, 2) for path, depth in levels for rank in (0, 1)}


def test_v2_limits_and_events_of_nested_groups(host, rows):
    opened(host, rows).sample(4, rows)

    names = ("quota_us", "period_us", "periods", "throttled_periods", "throttled_us", "cpu_us")
    memory = ("memory_bytes", "memory_limit_bytes", "memory_high_events", "oom_kills")
    found = samples(rows)
    assert fields(found[2, "/jobs/train"], *names) == (30_000, 100_000, 90, 30, 1_200_000, 4_000_000)
    assert fields(found[2, "/jobs/train"], *memory) == (123_456_789, None, 9, 1)
    assert fields(found[2, "/jobs"], *names) == (None, 100_000, 10, 1, 500, 5_000_000)
    assert fields(found[2, "/jobs"], *memory) == (123_456_789, 8 << 30, 9, 1)
    assert fields(found[2, "/"], *names) == (None, None, None, None, None, 9_000_000)


def test_between_full_seconds_only_groups_with_a_quota_are_read(host, rows):
    collector = opened(host, rows)
    collector.sample(0, rows)
    rows.take("cgroup_sample")
    collector.sample(SECOND_NS // 10, rows)

    (row,) = rows["cgroup_sample"]
    assert fields(row, "quota_us", "throttled_us", "memory_bytes") == (30_000, 1_200_000, None)


def test_a_quota_that_appears_later_is_followed_at_every_tick(host, rows):
    collector = opened(host, rows)
    collector.sample(0, rows)
    host.write("sys/fs/cgroup/jobs/cpu.max", "50000 100000\n")
    collector.sample(SECOND_NS, rows)
    rows.take("cgroup_sample")
    collector.sample(SECOND_NS + SECOND_NS // 10, rows)

    assert {row["quota_us"] for row in rows["cgroup_sample"]} == {30_000, 50_000}


def test_v1_controllers_may_sit_in_different_groups(host, rows):
    make_v1(host)
    opened(host, rows).sample(0, rows)

    names = ("quota_us", "period_us", "periods", "throttled_periods", "throttled_us", "cpu_us")
    memory = ("memory_bytes", "memory_limit_bytes", "memory_high_events", "oom_kills")
    found = samples(rows)
    assert found.keys() == {(1, "/"), (1, "/batch"), (1, "/mem"), (1, "/mem/a")}
    assert fields(found[1, "/batch"], *names) == (30_000, 100_000, 70, 20, 900_000, 5_000_000)
    assert fields(found[1, "/batch"], *memory) == (None, None, None, None)
    assert fields(found[1, "/mem/a"], *memory) == (777, 1 << 30, 12, 3)
    assert fields(found[1, "/"], "quota_us", "memory_limit_bytes", "memory_bytes") == (None, None, 777)


def test_a_unified_hierarchy_without_controllers_is_left_out(host):
    make_v1(host)
    mounts = find_mounts(V1_MOUNTINFO.encode(), host.sys)

    assert [(mount.version, sorted(mount.controllers)) for mount in mounts] == [
        (1, ["cpu", "cpuacct"]),
        (1, ["memory"]),
    ]


def test_a_hybrid_takes_each_controller_where_it_is(host, rows):
    make_v1(host)
    host.write("sys/fs/cgroup/unified/cgroup.controllers", "memory\n")
    host.write("sys/fs/cgroup/unified/memory.current", "555\n")
    host.write(
        "proc/self/mountinfo", "".join(line for line in V1_MOUNTINFO.splitlines(True) if " rw,memory" not in line)
    )
    opened(host, rows).sample(0, rows)

    assert samples(rows)[2, "/"]["memory_bytes"] == 555
    assert samples(rows)[1, "/batch"]["quota_us"] == 30_000


def test_a_container_sees_its_own_group_as_the_root(host, rows):
    host.write("proc/self/mountinfo", "31 23 0:28 /kube/pod7 /sys/fs/cgroup ro - cgroup2 cgroup rw\n")
    host.write("proc/111/cgroup", "0::/kube/pod7/jobs/train\n")
    host.write("proc/112/cgroup", "0::/kube/pod77/other\n")
    opened(host, rows).sample(0, rows)

    of_rank = {0: [], 1: []}
    for row in rows["cgroup"]:
        of_rank[row["rank"]].append(row["path"])
    assert of_rank == {0: ["/", "/jobs", "/jobs/train"], 1: ["/"]}


def test_a_rank_that_is_moved_is_followed(host, rows):
    collector = opened(host, rows)
    collector.sample(0, rows)
    for pid in (111, 112):
        host.write(f"proc/{pid}/cgroup", "0::/jobs\n")
    rows.take("cgroup_sample")
    collector.sample(SECOND_NS, rows)

    assert samples(rows).keys() == {(2, "/"), (2, "/jobs")}


def test_ranks_that_are_gone_leave_no_group_open(host, rows):
    collector = opened(host, rows)
    before = len(os.listdir("/proc/self/fd"))
    collector.sample(0, rows)
    assert len(os.listdir("/proc/self/fd")) > before
    host.context.rank_pids = {}
    collector.sample(SECOND_NS, rows)

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_controller_that_is_not_mounted_is_recorded(host, rows):
    host.write("sys/fs/cgroup/cgroup.controllers", "memory pids\n")
    opened(host, rows).sample(0, rows)

    assert [row["source"] for row in rows["unavailable"]] == ["cgroup.cpu"]


def test_without_any_hierarchy_the_source_is_unavailable(host, rows):
    host.write("proc/self/mountinfo", "22 27 0:21 / /proc rw - proc proc rw\n")
    with pytest.raises(Unavailable, match="no control group hierarchy"):
        opened(host, rows)


@pytest.mark.root
def test_a_real_quota_shows_as_throttled_time_and_a_removed_group_is_no_error():
    name = f"starprof-test-{os.getpid()}"
    rows, collector = HostRows(), CgroupCollector()
    with real_group(name, 5_000) as folder:
        process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            (folder / "cgroup.procs").write_text(str(process.pid))
            collector.open(NodeContext(rank_pids={5: process.pid}), rows)
            for second in range(10):
                collector.sample(second * SECOND_NS, rows)
                time.sleep(0.5)
        finally:
            process.kill()
            process.wait()
    collector.sample(11 * SECOND_NS, rows)
    collector.close()

    (number,) = {row["cgroup"] for row in rows["cgroup"] if row["path"] == f"/{name}"}
    first, *_, last = (row for row in rows["cgroup_sample"] if row["cgroup"] == number)
    assert fields(last, "quota_us", "period_us") == (5_000, 100_000)
    assert last["throttled_periods"] - first["throttled_periods"] >= 5
    assert last["throttled_us"] - first["throttled_us"] > 300_000
    assert last["mono_ns"] < 11 * SECOND_NS
