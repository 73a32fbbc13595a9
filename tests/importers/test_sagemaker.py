"""SageMaker's system metrics: rates become what grows, and gauges stay."""

import json

import pytest
from metric_texts import source

from starprof.analysis import diagnose
from starprof.errors import InputError
from starprof.importers.load import load
from starprof.importers.metrics import sagemaker

__all__ = ["source"]
T0 = 1_591_748_109


def line(kind, name, dimension, value, second=0.0, node="algo-1"):
    about = {"Type": kind, "Name": name, "Dimension": dimension, "Value": value, "NodeId": node}
    return json.dumps(about | {"Timestamp": T0 + second})


def read(source, *lines):
    file = source("\n".join(lines) + "\n", "metrics.json")
    assert sagemaker.recognises(file)
    return sagemaker.read([file])


def test_use_of_a_cpu_is_added_up_over_the_time_between_samples(source):
    uses = ((0, 90.0), (2, 50.0), (3, 100.0))
    run = read(source, *(line("cpu", "cpu7", "CPUUtilization", use, second) for second, use in uses))
    rows = run.samples["cpu_sample"]
    assert rows[rows["cpu"] == 7]["user_us"].tolist() == [0, 1e6, 2e6]
    assert rows[rows["cpu"] == 7]["system_us"].isna().all()


def test_bytes_a_second_are_added_up_likewise(source):
    run = read(source, *(line("network", "algo-1", "ReceiveBytesPerSecond", 100.0, s) for s in (0, 10)))
    assert run.samples["nic_sample"]["rx_bytes"].tolist() == [0, 1000]


def test_use_of_a_gpu_is_a_gauge(source):
    run = read(source, line("gpu", "gpu3", "GPUUtilization", 97.5), line("gpu", "gpu3", "GPUMemoryUtilization", 12.0))
    assert run.samples["gpu_sample"][["gpu", "util_pct", "memory_util_pct"]].values.tolist() == [[3, 97.5, 12.0]]
    assert run.nodes[["host", "unix_ns"]].values.tolist() == [["algo-1", T0 * 10**9]]


def test_times_that_go_back_and_long_holes_add_nothing(source):
    run = read(source, *(line("cpu", "cpu0", "CPUUtilization", 100.0, s) for s in (10, 0, 11, 100_000)))
    rows = run.samples["cpu_sample"]
    assert rows[rows["cpu"] == 0]["user_us"].tolist() == [0, 1e6, 1e6]


def test_damaged_and_unknown_lines_are_counted(source):
    run = read(source, line("gpu", "gpu0", "GPUUtilization", 1), line("iops", "x", "Ops", 1), "{", '{"Type": "gpu"}')
    assert "1 unknown metrics ignored" in run.info["note"]
    assert "2 lines could not be read" in run.info["note"]


def test_file_of_unknown_metrics_is_refused(source):
    with pytest.raises(InputError, match="no system metric"):
        read(source, line("iops", "x", "Ops", 1))


def test_public_sample_is_read_and_blames_nobody(public_data):
    verdict = diagnose(load([str(public_data("profiler_samples") / "sagemaker_system_1591748100.algo-1.json")]))
    assert verdict.verdict == "inconclusive"
    assert "step times" in verdict.reason
    assert verdict.findings == ()
