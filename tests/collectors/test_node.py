"""Pressure, memory and scheduler of the node."""

import errno

from host_lab import SECOND_NS, HostRows

from starprof.collectors.base import NodeContext
from starprof.collectors.cpu import CpuCollector
from starprof.collectors.node import NodeCollector


def sampled(host, rows, *at_ns):
    collector = NodeCollector()
    collector.open(host.context, rows)
    for now_ns in at_ns:
        collector.sample(now_ns, rows)
    return collector


def test_one_row_holds_pressure_memory_and_scheduler(host, rows):
    sampled(host, rows, 7)

    assert rows["node_sample"] == [
        {
            "node": 3,
            "mono_ns": 7,
            "psi_cpu_some_us": 1111,
            "psi_memory_some_us": 2222,
            "psi_memory_full_us": 222,
            "psi_io_some_us": 3333,
            "psi_io_full_us": 333,
            "memory_available_bytes": 9_000_000 * 1024,
            "swap_used_bytes": 500_000 * 1024,
            "dirty_bytes": 120 * 1024,
            "swap_in_pages": 41,
            "swap_out_pages": 42,
            "major_faults": 43,
            "context_switches": 987_654,
            "runnable": 3,
            "blocked_tasks": 1,
        }
    ]


def test_swap_and_fault_counters_come_once_a_second(host, rows):
    sampled(host, rows, 0, SECOND_NS // 2, SECOND_NS)

    assert [row["major_faults"] for row in rows["node_sample"]] == [43, None, 43]
    assert [row["runnable"] for row in rows["node_sample"]] == [3, 3, 3]


def test_a_kernel_without_psi_gives_null_and_says_why(host, rows):
    for name in ("cpu", "memory", "io"):
        (host.proc / "pressure" / name).unlink()
    sampled(host, rows, 0)

    reasons = {row["source"]: row["reason"] for row in rows["unavailable"]}
    assert reasons.keys() == {"node.psi-cpu", "node.psi-memory", "node.psi-io"}
    assert "CONFIG_PSI" in reasons["node.psi-cpu"]
    assert rows["node_sample"][0]["psi_cpu_some_us"] is None
    assert rows["node_sample"][0]["memory_available_bytes"] == 9_000_000 * 1024


def test_psi_that_is_built_in_but_off_is_told_apart(host, rows, monkeypatch):
    from starprof.collectors.procfile import ProcFile

    real = ProcFile.read

    def refuse_pressure(file):
        if file in opened:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(file)

    opened = []
    init = ProcFile.__init__

    def note(file, path, size=4096):
        init(file, path, size)
        if "pressure" in str(path):
            opened.append(file)

    monkeypatch.setattr(ProcFile, "__init__", note)
    monkeypatch.setattr(ProcFile, "read", refuse_pressure)
    sampled(host, rows, 0)

    assert "boot with psi=1" in rows["unavailable"][0]["reason"]


def test_an_old_kernel_without_cpu_full_pressure_and_mem_available(host, rows):
    host.write("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=55\n")
    host.edit("proc/meminfo", "MemAvailable:    9000000 kB\n", "")
    sampled(host, rows, 0)

    assert rows["node_sample"][0]["psi_cpu_some_us"] == 55
    assert rows["node_sample"][0]["memory_available_bytes"] is None
    assert rows["node_sample"][0]["dirty_bytes"] == 120 * 1024


def test_cpu_and_node_read_proc_stat_once_per_tick(host, rows):
    cpu = CpuCollector()
    cpu.open(host.context, rows)
    node = sampled(host, rows)
    cpu.sample(1, rows)
    host.edit("proc/stat", "procs_running 3", "procs_running 9")
    node.sample(1, rows)
    node.sample(2, rows)

    assert [row["runnable"] for row in rows["node_sample"]] == [3, 9]


def test_on_this_machine_every_column_that_the_kernel_offers_is_filled():
    rows = HostRows()
    collector = NodeCollector()
    collector.open(NodeContext(), rows)
    collector.sample(1, rows)
    collector.close()

    (row,) = rows["node_sample"]
    missing = {name for name, cell in row.items() if cell is None}
    assert missing <= {name for name in row if name.startswith("psi_")}
    assert not missing or rows["unavailable"]
    assert row["memory_available_bytes"] > 1 << 20
    assert row["runnable"] >= 1


def test_a_collector_that_closes_does_not_take_the_shared_file_from_the_other(host, rows):
    cpu = CpuCollector()
    cpu.open(host.context, rows)
    node = sampled(host, rows, 0)
    node.close()
    cpu.sample(1, rows)
    cpu.close()

    assert {row["mono_ns"] for row in rows["cpu_sample"]} == {1}
    assert all(file.fd == -1 for file in host.context.shared.values())
