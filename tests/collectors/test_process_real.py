"""Real processes of this machine: exact CPU time, run delay, exits between two reads."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from host_lab import SECOND_NS, HostRows, fields

from starprof.collectors.base import NodeContext
from starprof.collectors.process import ProcessCollector

BURN = """
import time
end = time.process_time() + {seconds}
while time.process_time() < end: pass
print('done', flush=True)
time.sleep(60)
"""


@contextmanager
def python(code, **options):
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def collecting(**context):
    collector, rows = ProcessCollector(), HostRows()
    collector.open(NodeContext(own_pids={os.getpid()}, **context), rows)
    try:
        yield collector, rows
    finally:
        collector.close()


def test_cpu_time_of_all_threads_is_exact_to_the_millisecond():
    code = (
        "import threading, time, sys\n"
        "def burn():\n"
        "    end = time.thread_time() + 0.1\n"
        "    while time.thread_time() < end: pass\n"
        "threads = [threading.Thread(target=burn) for _ in range(3)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(time.process_time(), flush=True)\n"
        "time.sleep(60)"
    )
    with python(code) as process, collecting(rank_pids={0: process.pid}) as (collector, rows):
        told_us = float(process.stdout.readline()) * 1e6
        collector.sample(time.monotonic_ns(), rows)

    (row,) = rows["process_sample"]
    assert row["cpu_us"] == pytest.approx(told_us, abs=5_000)
    assert row["cpu_us"] > 300_000
    assert row["rss_bytes"] > 1 << 20
    assert row["pss_bytes"] is None or row["pss_bytes"] <= row["rss_bytes"] + (1 << 20)


def test_waiting_for_a_core_shows_as_run_delay():
    core = {min(os.sched_getaffinity(0))}
    code = f"import os\nos.sched_setaffinity(0, {core})\n" + BURN.format(seconds=0.4)
    with python(code) as first, python(code) as second, collecting(rank_pids={0: first.pid, 1: second.pid}) as both:
        collector, rows = both
        assert first.stdout.readline() == second.stdout.readline() == "done\n"
        collector.sample(time.monotonic_ns(), rows)

    for row in rows["process_sample"]:
        assert row["allowed_cpus"] == 1
        assert row["on_cpu_us"] > 350_000
    assert max(row["run_delay_us"] for row in rows["process_sample"]) > 200_000


def test_a_process_that_ends_between_two_ticks_is_no_error():
    with python("import time; time.sleep(60)") as process, collecting(rank_pids={0: process.pid}) as (collector, rows):
        collector.sample(1, rows)
        process.kill()
        process.wait()
        collector.sample(2, rows)
        collector.sample(3, rows)

        assert [fields(row, "pid", "mono_ns") for row in rows["process_sample"]] == [(process.pid, 1)]


def test_children_that_come_and_go_leave_no_descriptor_open():
    parent = "import subprocess, time\nwhile True: subprocess.run(['true']); time.sleep(0.01)"
    with python(parent) as process, collecting(rank_pids={0: process.pid}) as (collector, rows):
        collector.sample(time.monotonic_ns(), rows)
        before = len(os.listdir("/proc/self/fd"))
        for tick in range(1, 13):  # for the collector a second passes each time, so that it looks at the tree
            time.sleep(0.02)
            collector.sample(time.monotonic_ns() + tick * SECOND_NS, rows)
        process.kill()
        process.wait()
        collector.sample(time.monotonic_ns() + 60 * SECOND_NS, rows)
        after = len(os.listdir("/proc/self/fd"))

    assert after <= before


def test_a_foreign_hog_is_found_within_two_scans():
    with (
        python(BURN.format(seconds=30)) as hog,
        python("import time; time.sleep(60)") as rank,
        collecting(rank_pids={0: rank.pid}) as (collector, rows),
    ):
        for _ in range(4):
            collector.sample(time.monotonic_ns(), rows)
            time.sleep(1.05)

    told = [row for row in rows["process_sample"] if row["pid"] == hog.pid]
    assert {row["rank"] for row in told} == {-1}
    assert told[-1]["cpu_us"] > told[0]["cpu_us"]
    assert {row["name"] for row in rows["process"] if row["pid"] == hog.pid} == {os.path.basename(sys.executable)} | {
        row["name"] for row in rows["process"] if row["pid"] == rank.pid
    }


@pytest.mark.root
def test_another_users_process_is_sampled_without_what_needs_permission():
    with subprocess.Popen(["sleep", "60"], user=65534) as process:
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setresgid(65533, 65533, 65533)
                os.setresuid(65533, 65533, 65533)
                with collecting(rank_pids={0: process.pid}) as (collector, rows):
                    collector.sample(1, rows)
                (row,) = rows["process_sample"]
                reasons = {r["source"] for r in rows["unavailable"]}
                good = row["cpu_us"] is not None and row["threads"] == 1 and row["read_bytes"] is None
                os._exit(0 if good and "process.io" in reasons else 1)
            except BaseException:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        process.kill()

    assert os.waitstatus_to_exitcode(status) == 0
