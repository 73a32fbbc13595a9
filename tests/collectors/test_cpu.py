"""CPU times per logical CPU, on an invented tree for exact numbers and on this machine for sense."""

import time

import pytest
from host_lab import SECOND_NS, HostRows, fields

from starprof.collectors import cpu as cpu_module
from starprof.collectors.base import NodeContext, Unavailable
from starprof.collectors.cpu import CpuCollector


def opened(host, rows):
    collector = CpuCollector()
    collector.open(host.context, rows)
    return collector


def test_counts_ticks_as_microseconds_for_the_node_and_each_cpu(host, rows):
    opened(host, rows).sample(5, rows)

    times = {
        row["cpu"]: fields(row, "user_us", "system_us", "idle_us", "iowait_us", "steal_us")
        for row in rows["cpu_sample"]
    }
    assert times == {
        -1: (10_200_000, 3_130_000, 400_500_000, 500_000, 800_000),
        0: (6_100_000, 2_070_000, 190_200_000, 200_000, 500_000),
        1: (4_100_000, 1_060_000, 210_300_000, 300_000, 300_000),
    }
    assert {fields(row, "node", "mono_ns") for row in rows["cpu_sample"]} == {(3, 5)}


def test_frequency_comes_from_cpuinfo_once_a_second_and_is_null_in_between(host, rows):
    collector = opened(host, rows)
    for at_ns in (0, SECOND_NS // 2, SECOND_NS):
        collector.sample(at_ns, rows)

    told = {(row["mono_ns"], row["cpu"]): row["freq_khz"] for row in rows["cpu_sample"]}
    assert [told[0, cpu] for cpu in (0, 1, -1)] == [2_000_500, 1_500_250, 1_750_375]
    assert told[SECOND_NS // 2, 0] is None
    assert told[SECOND_NS, 0] == 2_000_500


def test_cpufreq_is_preferred_and_one_cpu_without_an_answer_stays_null(host, rows):
    host.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "3100000\n")
    host.write("sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "<unknown>\n")
    opened(host, rows).sample(0, rows)

    assert {row["cpu"]: row["freq_khz"] for row in rows["cpu_sample"]} == {-1: 3_100_000, 0: 3_100_000, 1: None}


def test_a_kernel_that_tells_no_frequency_is_recorded_once(host, rows):
    host.write("proc/cpuinfo", "processor\t: 0\n")
    collector = opened(host, rows)
    collector.sample(0, rows)
    collector.sample(2 * SECOND_NS, rows)

    assert [row["source"] for row in rows["unavailable"]] == ["cpu.frequency"]
    assert {row["freq_khz"] for row in rows["cpu_sample"]} == {None}


def test_many_cpus_have_their_own_rows_only_once_a_second(host, rows, monkeypatch):
    monkeypatch.setattr(cpu_module, "MANY_CPUS", 1)
    collector = opened(host, rows)
    for tick in range(10):
        collector.sample(tick * SECOND_NS // 10, rows)

    counts = [sum(row["cpu"] == cpu for row in rows["cpu_sample"]) for cpu in (-1, 0, 1)]
    assert counts == [10, 1, 1]


def test_a_cpu_that_goes_offline_just_leaves(host, rows):
    collector = opened(host, rows)
    host.edit("proc/stat", "cpu0 600 10 200 19000 20 3 4 50 0 0\n", "")
    collector.sample(0, rows)

    assert [row["cpu"] for row in rows["cpu_sample"]] == [-1, 1]


def test_without_proc_stat_the_source_is_unavailable(host, rows):
    (host.proc / "stat").unlink()
    with pytest.raises(Unavailable, match="stat can't be read"):
        opened(host, rows)


def test_on_this_machine_the_times_of_all_cpus_grow_by_the_elapsed_time():
    rows = HostRows()
    collector = CpuCollector()
    collector.open(NodeContext(), rows)
    began_ns = time.monotonic_ns()
    collector.sample(began_ns, rows)
    time.sleep(0.5)
    collector.sample(began_ns + SECOND_NS, rows)
    elapsed_us = (time.monotonic_ns() - began_ns) / 1000
    collector.close()

    spent = ("user_us", "system_us", "idle_us", "steal_us")
    for number in {row["cpu"] for row in rows["cpu_sample"]} - {-1}:
        first, last = (row for row in rows["cpu_sample"] if row["cpu"] == number)
        grown_us = sum(last[name] - first[name] for name in spent)
        assert grown_us == pytest.approx(elapsed_us, abs=100_000)
