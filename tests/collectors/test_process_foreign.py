"""Processes of no rank that use much CPU."""

import pytest
from host_lab import SECOND_NS, fields

from starprof.collectors.process import ProcessCollector


@pytest.fixture
def collector(host, rows):
    collector = ProcessCollector()
    collector.open(host.context, rows)
    yield collector
    collector.close()


def foreign(rows):
    return [fields(row, "pid", "mono_ns", "cpu_us") for row in rows["process_sample"] if row["rank"] == -1]


def seconds(collector, rows, first, last, each=lambda second: None):
    """One tick a second; the first also finds the ranks, which takes a tick of its own."""
    for second in range(first, last):
        each(second)
        collector.sample(second * SECOND_NS, rows)


def test_a_busy_process_is_told_with_where_it_stood_before(host, rows, collector):
    seconds(collector, rows, 0, 3)
    host.burn(200, 90)
    seconds(collector, rows, 3, 4)

    assert foreign(rows) == [(200, 2 * SECOND_NS, 10_000_000), (200, 3 * SECOND_NS, 10_900_000)]
    (latest,) = (row for row in rows["process_sample"] if row["pid"] == 200 and row["threads"] is not None)
    assert fields(latest, "is_rank", "last_cpu", "allowed_cpus", "threads") == (0, 1, 1, 2)
    (name,) = (row for row in rows["process"] if row["rank"] == -1)
    assert fields(name, "pid", "name", "cpus") == (200, "stress (x) y", "1")


def test_an_idle_process_is_not_told(rows, collector):
    seconds(collector, rows, 0, 6)

    assert foreign(rows) == []


def test_a_process_below_two_percent_of_a_core_is_not_told(host, rows, collector):
    seconds(collector, rows, 0, 6, lambda second: host.burn(201, 1))

    assert foreign(rows) == []


def test_the_end_of_a_burst_is_visible(host, rows, collector):
    seconds(collector, rows, 0, 3)
    seconds(collector, rows, 3, 5, lambda second: host.burn(200, 100))
    seconds(collector, rows, 5, 10)

    told = [cpu_us for _, _, cpu_us in foreign(rows)]
    assert told == [10_000_000, 11_000_000, 12_000_000, 12_000_000, 12_000_000]


def test_only_the_heaviest_are_told(host, rows, collector):
    for pid in range(300, 320):
        host.start(pid, like=201)
    seconds(collector, rows, 0, 3)
    for pid in range(300, 320):
        host.burn(pid, pid - 250)
    seconds(collector, rows, 3, 4)

    assert {pid for pid, _, _ in foreign(rows)} == set(range(312, 320))


def test_starprofs_own_processes_and_the_ranks_are_never_foreign(host, rows, collector):
    seconds(collector, rows, 0, 3)
    for pid in (100, 111, 113, 120, 121):
        host.burn(pid, 100)
    seconds(collector, rows, 3, 4)

    assert foreign(rows) == []


def test_other_processes_of_the_job_count_once_the_ranks_are_settled(host, rows, collector):
    seconds(collector, rows, 0, 20, lambda second: host.burn(110, 100))

    first = min(at for _, at, _ in foreign(rows))
    assert 9 * SECOND_NS <= first <= 11 * SECOND_NS


def test_before_the_first_rank_nothing_is_foreign(host, rows, collector):
    host.context.rank_pids = {}
    seconds(collector, rows, 0, 5, lambda second: host.burn(200, 100))

    assert rows["process_sample"] == []


def test_kernel_threads_are_told_too(host, rows, collector):
    seconds(collector, rows, 0, 12, lambda second: host.burn(30, 50))

    assert {pid for pid, _, _ in foreign(rows)} == {30}


def test_a_pid_that_is_used_again_starts_anew(host, rows, collector):
    seconds(collector, rows, 0, 3)
    host.burn(200, -900)
    seconds(collector, rows, 3, 4)
    assert foreign(rows) == []

    host.burn(200, 50)
    seconds(collector, rows, 4, 6)
    assert foreign(rows)[-1][0] == 200


def test_a_container_that_hides_other_processes_is_said(host, rows):
    host.write("proc/2/comm", "python\n")
    ProcessCollector().open(host.context, rows)

    assert "PID namespace" in {row["source"]: row["reason"] for row in rows["unavailable"]}["process.foreign"]


def test_hidepid_is_said(host, rows):
    for pid in (1, 2):
        host.end(pid)
    ProcessCollector().open(host.context, rows)

    assert "hidepid" in {row["source"]: row["reason"] for row in rows["unavailable"]}["process.foreign"]
