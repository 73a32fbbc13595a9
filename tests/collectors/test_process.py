"""The ranks' process trees on an invented tree: who belongs to whom, and exact numbers."""

import itertools
import os

import pytest
from host_lab import SECOND_NS, fields

from starprof.collectors import process as process_module
from starprof.collectors.process import ProcessCollector


@pytest.fixture
def collector(host, rows):
    collector = ProcessCollector()
    collector.open(host.context, rows)
    yield collector
    collector.close()


def members(rows):
    return {row["pid"]: fields(row, "rank", "is_rank") for row in rows["process_sample"] if row["rank"] >= 0}


def test_a_process_belongs_to_its_nearest_rank_and_the_launcher_above_two_ranks_to_none(host, rows, collector):
    collector.sample(0, rows)

    assert members(rows) == {111: (0, 1), 112: (1, 1), 113: (0, 0), 114: (0, 0), 115: (1, 0)}
    assert host.context.tree == {111: 0, 112: 1, 113: 0, 114: 0, 115: 1}


def test_a_rank_below_another_rank_is_counted_once(host, rows, collector):
    host.context.rank_pids = {0: 111, 2: 113}
    collector.sample(0, rows)

    assert members(rows) == {111: (0, 1), 113: (2, 1), 114: (2, 0)}


def test_first_row_of_a_rank_has_exact_numbers(host, rows, collector):
    collector.sample(9, rows)

    page = os.sysconf("SC_PAGE_SIZE")
    (row,) = (row for row in rows["process_sample"] if row["pid"] == 111)
    assert row == {
        "node": 3,
        "mono_ns": 9,
        "pid": 111,
        "rank": 0,
        "is_rank": 1,
        "cpu_us": 4_500_000,
        "run_delay_us": 120_000,
        "on_cpu_us": 4_500_000,
        "voluntary_switches": 500,
        "involuntary_switches": 60,
        "minor_faults": 7000,
        "major_faults": 3,
        "threads": 12,
        "rss_bytes": 2048 * page,
        "pss_bytes": None,
        "last_cpu": 1,
        "allowed_cpus": 2,
        "read_bytes": 4096,
        "write_bytes": 8192,
        "blkio_delay_us": 40_000,
        "fds": None,
        "fds_limit": None,
    }


def test_between_two_detailed_rows_only_cpu_time_and_the_ranks_run_delay_are_read(rows, collector):
    collector.sample(0, rows)
    rows.take("process_sample")
    collector.sample(SECOND_NS // 10, rows)

    for row in rows["process_sample"]:
        filled = {name for name, cell in row.items() if cell is not None}
        always = {"node", "mono_ns", "pid", "rank", "is_rank", "cpu_us"}
        assert filled == (always | {"run_delay_us", "on_cpu_us"} if row["is_rank"] else always)


def test_ranks_have_a_detailed_row_a_second_their_children_every_two_and_they_are_spread(rows, collector):
    for tick in range(81):
        collector.sample(tick * SECOND_NS // 10, rows)

    detailed = [fields(row, "pid", "mono_ns") for row in rows["process_sample"] if row["threads"] is not None]
    later = [pair for pair in detailed if pair[1] >= 2 * SECOND_NS]
    for pid, seconds in ((111, 1), (112, 1), (113, 2), (114, 2), (115, 2)):
        times = [at for who, at in later if who == pid]
        assert {b - a for a, b in itertools.pairwise(times)} == {seconds * SECOND_NS}
    assert len({at % SECOND_NS for _, at in later}) > 1


def test_names_are_told_without_arguments_and_again_when_they_or_the_affinity_change(host, rows, collector):
    collector.sample(0, rows)
    told = {row["pid"]: fields(row, "rank", "parent_pid", "name", "user", "cpus", "cgroup") for row in rows["process"]}
    assert told[111] == (0, 110, "python", "root", "0-1", "/jobs/train")
    assert told[113] == (0, 111, "pt_data_worker", "root", "0-1", "/jobs/train")

    rows.take("process")
    rows.take("process_sample")
    host.edit("proc/111/status", "Cpus_allowed_list:\t0-1", "Cpus_allowed_list:\t1")
    collector.sample(2 * SECOND_NS, rows)
    assert [fields(row, "pid", "cpus", "mono_ns") for row in rows["process"]] == [(111, "1", 2 * SECOND_NS)]
    assert [row["allowed_cpus"] for row in rows["process_sample"] if row["pid"] == 111] == [1]

    rows.take("process")
    host.edit("proc/113/stat", "(pt_data_worker)", "(starprof-shard)")
    collector.sample(5 * SECOND_NS, rows)
    assert [fields(row, "pid", "rank", "name") for row in rows["process"]] == [(113, 0, "starprof-shard")]


def test_a_child_that_starts_later_joins_and_one_that_ends_leaves(host, rows, collector):
    collector.sample(0, rows)
    host.start(116, like=115)
    host.end(113)
    host.end(114)
    rows.take("process_sample")
    collector.sample(2 * SECOND_NS, rows)

    assert members(rows) == {111: (0, 1), 112: (1, 1), 115: (1, 0), 116: (1, 0)}
    assert host.context.tree == {111: 0, 112: 1, 115: 1, 116: 1}


def test_procfs_is_listed_only_when_the_kernel_counted_a_fork_or_one_of_ours_ended(host, rows, collector, monkeypatch):
    listed = []
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or real(path))
    for second in range(5):
        collector.sample(second * SECOND_NS, rows)
    before = len(listed)
    host.start(116, like=115)
    for second in range(5, 9):
        collector.sample(second * SECOND_NS, rows)

    assert before <= 2
    assert len(listed) == before + 1


def test_an_orphan_stays_with_its_rank(host, rows, collector):
    collector.sample(0, rows)
    host.end(113)
    host.edit("proc/114/stat", ") S 113 ", ") S 1 ")
    host.start(116, like=201)
    rows.take("process_sample")
    collector.sample(2 * SECOND_NS, rows)

    assert members(rows)[114] == (0, 0)


def test_a_rank_that_is_restarted_with_a_new_pid_is_followed(host, rows, collector):
    collector.sample(0, rows)
    host.context.rank_pids = {0: 111, 1: 200}
    rows.take("process_sample")
    collector.sample(SECOND_NS // 10, rows)

    assert members(rows)[200] == (1, 1)


def test_no_more_processes_are_opened_than_descriptors_allow(host, rows, collector, monkeypatch):
    monkeypatch.setattr(process_module, "_MOST", 3)
    collector.sample(0, rows)

    assert {111, 112} < members(rows).keys()
    assert len(members(rows)) == 3
    assert "only 3 processes" in {row["source"]: row["reason"] for row in rows["unavailable"]}["process.children"]


def test_with_many_processes_children_come_once_a_second_and_ranks_at_every_tick(rows, collector, monkeypatch):
    monkeypatch.setattr(process_module, "_MANY", 4)
    for tick in range(11):
        collector.sample(tick * SECOND_NS // 10, rows)

    counts = [sum(row["pid"] == pid for row in rows["process_sample"]) for pid in (111, 112, 113, 115)]
    assert counts[:2] == [11, 11]
    assert max(counts[2:]) <= 3


def test_io_that_may_not_be_read_is_null_and_recorded_once(host, rows, collector, monkeypatch):
    real = os.open

    def refuse(path, flags, *rest, **named):
        if str(path).endswith("/io"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    collector.sample(0, rows)

    assert {row["read_bytes"] for row in rows["process_sample"]} == {None}
    (refusal,) = (row for row in rows["unavailable"] if row["source"] == "process.io")
    assert "CAP_SYS_PTRACE" in refusal["reason"]
    assert {row["threads"] for row in rows["process_sample"] if row["pid"] == 111} == {12}


def test_a_kernel_without_schedstat_gives_null_and_says_why(host, rows, collector):
    for folder in (*host.proc.glob("[0-9]*"), host.proc / "self"):
        (folder / "schedstat").unlink(missing_ok=True)
    collector.sample(0, rows)

    assert {row["run_delay_us"] for row in rows["process_sample"]} == {None}
    assert "CONFIG_SCHED_INFO" in {row["source"]: row["reason"] for row in rows["unavailable"]}["process.schedstat"]


def test_block_delays_that_the_kernel_does_not_account_are_null_not_zero(host, rows, collector):
    host.write("proc/sys/kernel/task_delayacct", "0\n")
    collector.sample(0, rows)

    assert {row["blkio_delay_us"] for row in rows["process_sample"]} == {None}
    reasons = {row["source"]: row["reason"] for row in rows["unavailable"]}
    assert "sysctl kernel.task_delayacct=1" in reasons["process.blkio_delay_us"]


def test_pss_is_read_at_most_once_a_minute_for_a_process(host, rows, collector):
    host.context.rank_pids = {1: 114}
    host.write("proc/114/smaps_rollup", "0-1 ---p 0 0:0 0 [rollup]\nRss:  20 kB\nPss:  11 kB\nPss_Dirty:  3 kB\n")
    for second in range(0, 130, 2):
        collector.sample(second * SECOND_NS, rows)

    read = [row["mono_ns"] for row in rows["process_sample"] if row["pss_bytes"] == 11 * 1024]
    assert read == [0, 60 * SECOND_NS, 120 * SECOND_NS]


def test_pss_of_a_huge_process_is_left_alone(host, rows, collector):
    host.context.rank_pids = {1: 115}
    host.edit("proc/115/stat", " 512 18446744073709551615", f" {3 << 18} 18446744073709551615")
    host.write("proc/115/smaps_rollup", "Pss:  11 kB\n")
    collector.sample(0, rows)

    assert [row["pss_bytes"] for row in rows["process_sample"]] == [None]
    assert "2 GiB" in {row["source"]: row["reason"] for row in rows["unavailable"]}["process.pss_bytes"]


def test_open_files_are_counted_every_ten_seconds_with_their_limit(host, rows, collector):
    for number in range(7):
        host.write(f"proc/111/fd/{number}", "")
    limits = "Limit                     Soft Limit           Hard Limit           Units\n"
    host.write(
        "proc/111/limits", f"{limits}Max open files            256                  4096                 files\n"
    )
    for second in range(21):
        collector.sample(second * SECOND_NS, rows)

    told = [row for row in rows["process_sample"] if row["pid"] == 111 and row["fds"] is not None]
    assert [fields(row, "fds", "fds_limit") for row in told] == [(7, 256)] * len(told)
    assert 2 <= len(told) <= 3


def test_open_files_without_a_limit_have_none(host, rows, collector):
    host.write("proc/111/fd/0", "")
    host.write("proc/111/limits", "Max open files            unlimited            unlimited            files\n")
    collector.sample(0, rows)

    assert [fields(row, "fds", "fds_limit") for row in rows["process_sample"] if row["pid"] == 111] == [(1, None)]
