import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest
from device_lab import SECOND_NS, Recorded, write_tree

from starprof.collectors.base import NodeContext, Unavailable
from starprof.collectors.gpu import GpuCollector
from starprof.collectors.gpu_map import locate

SOURCE = Path(__file__).parents[1] / "fakes" / "nvml.c"
UUIDS = [f"GPU-{i}0000000-aaaa-bbbb-cccc-00000000000{i}" for i in range(4)]
MIGS = ["MIG-50000000-aaaa-bbbb-cccc-000000000000", "MIG-60000000-aaaa-bbbb-cccc-000000000001"]
T0 = 100 * SECOND_NS
NOT_SUPPORTED, GPU_IS_LOST = "!3", "!15"
BLANK_64, BLANK_32 = 9223372036854775794, 0xFFFFFFFF

CARD = {
    "name": "Invented GPU",
    "util": 71,
    "memory_util": 42,
    "sm_clock": 1725,
    "memory_clock": 2619,
    "temperature": 64,
    "power": 654321,
    "power_limit": 700000,
    "reasons": 0,
    "memory_used": 12345678848,
    "memory_total": 85899345920,
    "pcie_gen": 5,
    "pcie_width": 16,
    "pcie_gen_max": 5,
    "pcie_width_max": 16,
    "pcie_rx": 1200,
    "pcie_tx": 3400,
    "ecc_corrected": 7,
    "ecc_uncorrected": 1,
    "remapped_corrected": 2,
    "remapped_uncorrected": 1,
    "remap_pending": 1,
    "link0": 1,
    "link1": 1,
    "link2": 0,
    **{f"link{link}_error{kind}": 10 * link + kind for link in range(2) for kind in range(4)},
    "processes": 0,
    "xid_supported": 1,
    "mig": 0,
}
COLUMNS = {
    "util_pct": 71,
    "memory_util_pct": 42,
    "sm_clock_mhz": 1725,
    "memory_clock_mhz": 2619,
    "temperature_c": 64,
    "power_w": 654.321,
    "power_limit_w": 700.0,
    "clock_event_reasons": 0,
    "memory_used_bytes": 12345678848,
    "memory_total_bytes": 85899345920,
    "pcie_gen": 5,
    "pcie_width": 16,
    "pcie_rx_bytes_per_s": 1_200_000,
    "pcie_tx_bytes_per_s": 3_400_000,
    "ecc_corrected": 7,
    "ecc_uncorrected": 1,
    "remapped_rows": 3,
    "remap_pending": 1,
    "nvlink_errors": 0 + 1 + 2 + 3 + 10 + 11 + 12 + 13,
    "nvlink_active": 2,
}


class Driver:
    """The answers of the fake library; a change is seen by the next call."""

    def __init__(self, path):
        self.path = path
        self.answers = {("-", "count"): 4, ("-", "driver"): "600.00", ("-", "events_supported"): 1}
        for i, uuid in enumerate(UUIDS):
            self.set(i, uuid=uuid, pci=f"00000000:{i + 1}0:00.0", **CARD)
        self.set(3, mig=1, mig_max=7)
        for i, uuid in enumerate(MIGS):
            self.set(f"3:{i}", uuid=uuid, name="Invented GPU MIG 1g", memory_used=4096, memory_total=8192)

    def set(self, device, **answers):
        self.answers.update({(str(device), field): value for field, value in answers.items()})
        self.path.write_text("".join(f"{d} {f} {v}\n" for (d, f), v in self.answers.items()))

    def drop(self, device, *fields):
        for field in fields:
            del self.answers[str(device), field]
        self.set(device)


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler to build the fake NVML")
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", target, SOURCE], check=True)
    return target


@pytest.fixture
def driver(library, tmp_path, monkeypatch):
    """A fresh copy of the library in the real pynvml, and its answers."""
    own = shutil.copy(library, tmp_path / "libnvidia-ml.so.1")
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(own)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "answers"))
    return Driver(tmp_path / "answers")


@pytest.fixture
def node(tmp_path):
    """A node whose agent sees all processes: in the initial PID namespace, with rank 0 as process 100."""
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    write_tree(tmp_path / "sys/bus/pci/devices", {"0000:10:00.0/numa_node": "1\n", "0000:20:00.0/numa_node": "-1\n"})
    return NodeContext(proc=tmp_path / "proc", sys=tmp_path / "sys", tree={100: 0, 101: 0}, own_pids={50})


@pytest.fixture
def gpu(driver, node):
    """Open a collector on the fake driver; closes it afterwards."""
    collectors = []

    def open_collector():
        collector, rows = GpuCollector(pynvml), Recorded()
        collector.open(node, rows)
        collectors.append(collector)
        return collector, rows

    yield open_collector
    for collector in collectors:
        collector.close()


def ids(rows):
    return {row["uuid"]: row["gpu"] for row in rows["gpu"]}


def newest(rows, uuid):
    return rows.last_by("gpu_sample", "gpu").get(ids(rows)[uuid])


def reasons(rows):
    return {row["source"]: row["reason"] for row in rows["unavailable"]}


def test_every_column_has_its_unit(gpu):
    collector, rows = gpu()
    collector.sample(T0, rows)
    row = newest(rows, UUIDS[0])
    assert {name: row[name] for name in COLUMNS} == COLUMNS
    assert row["mono_ns"] == T0


def test_each_gpu_is_described_by_uuid_bus_slot_and_numa_node(gpu):
    _, rows = gpu()
    card = rows["gpu"][0]
    assert card["uuid"] == UUIDS[0]
    assert card["nvml_index"] == 0
    assert (card["name"], card["driver"], card["pci"]) == ("Invented GPU", "600.00", "00000000:10:00.0")
    assert (card["pcie_gen_max"], card["pcie_width_max"]) == (5, 16)
    assert card["numa_node"] == 1
    assert rows["gpu"][1]["numa_node"] is None, "-1 means that the kernel does not know"


def test_the_id_of_a_gpu_does_not_depend_on_its_index(gpu, driver):
    _, before = gpu()
    driver.set("-", count=1)
    driver.set(0, uuid=UUIDS[2])
    _, after = gpu()
    assert ids(after)[UUIDS[2]] == ids(before)[UUIDS[2]]


def test_mig_instances_have_rows_of_their_own_below_their_card(gpu):
    collector, rows = gpu()
    collector.sample(T0, rows)
    parents = {row["uuid"]: row["mig_parent"] for row in rows["gpu"]}
    assert parents == {**dict.fromkeys(UUIDS), **dict.fromkeys(MIGS, UUIDS[3])}
    row = newest(rows, MIGS[1])
    assert row["memory_used_bytes"] == 4096
    assert row["util_pct"] is None, "NVML gives no utilisation of an instance"


@pytest.mark.parametrize(
    ("field", "column"), [("util", "util_pct"), ("temperature", "temperature_c"), ("pcie_rx", "pcie_rx_bytes_per_s")]
)
def test_an_unsupported_field_is_null_with_one_reason_and_the_others_are_kept(gpu, driver, field, column):
    driver.set(1, **{field: NOT_SUPPORTED})
    collector, rows = gpu()
    for second in range(5):
        collector.sample(T0 + second * SECOND_NS, rows)
    row = newest(rows, UUIDS[1])
    assert row[column] is None
    assert row["power_w"] == COLUMNS["power_w"]
    assert newest(rows, UUIDS[0])[column] == COLUMNS[column]
    about = [r for r in rows["unavailable"] if UUIDS[1] in r["source"]]
    assert [(r["source"], r["reason"]) for r in about] == [
        (f"gpu.{UUIDS[1]}.{'pcie_rx_bytes_per_s' if field == 'pcie_rx' else column}", "NVML: Not Supported")
    ]


@pytest.mark.parametrize("blank", [BLANK_64, BLANK_32, 2**64 - 1])
def test_a_blank_value_is_null_never_a_number(gpu, driver, blank):
    driver.set(0, memory_used=blank, ecc_corrected=blank, power=BLANK_32)
    collector, rows = gpu()
    collector.sample(T0, rows)
    row = newest(rows, UUIDS[0])
    assert (row["memory_used_bytes"], row["ecc_corrected"], row["power_w"]) == (None, None, None)
    assert row["memory_total_bytes"] == COLUMNS["memory_total_bytes"]
    assert reasons(rows)[f"gpu.{UUIDS[0]}.memory_used_bytes"] == "the device reports no value"


def test_a_field_that_failed_for_a_moment_comes_back(gpu, driver):
    driver.set(0, temperature="!999")
    collector, rows = gpu()
    collector.sample(T0, rows)
    assert newest(rows, UUIDS[0])["temperature_c"] is None
    driver.set(0, temperature=65)
    collector.sample(T0 + SECOND_NS, rows)
    assert newest(rows, UUIDS[0])["temperature_c"] == 65


def test_an_old_driver_knows_clock_reasons_by_their_old_name(gpu, driver, monkeypatch):
    def missing(handle):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", missing)
    driver.set(0, old_reasons=0x4)
    collector, rows = gpu()
    collector.sample(T0, rows)
    assert newest(rows, UUIDS[0])["clock_event_reasons"] == 0x4


def test_a_gpu_that_is_lost_leaves_an_event_and_a_gap_and_the_others_go_on(gpu, driver):
    collector, rows = gpu()
    collector.sample(T0, rows)
    driver.set(1, **dict.fromkeys(CARD, GPU_IS_LOST))
    collector.sample(T0 + SECOND_NS, rows)
    collector.sample(T0 + 2 * SECOND_NS, rows)
    assert newest(rows, UUIDS[1])["mono_ns"] == T0
    assert newest(rows, UUIDS[2])["mono_ns"] == T0 + 2 * SECOND_NS
    assert [(e["kind"], e["detail"]) for e in rows["event"]] == [("gpu-lost", f"{UUIDS[1]}: GPU is lost")]
    assert [(g["source"], g["from_mono_ns"]) for g in rows["gap"]] == [("gpu", T0)]


def test_a_gpu_that_can_not_be_read_at_the_start_does_not_hide_the_others(gpu, driver):
    driver.set(1, handle=GPU_IS_LOST)
    _, rows = gpu()
    assert set(ids(rows)) == {UUIDS[0], UUIDS[2], UUIDS[3], *MIGS}
    assert "GPU is lost" in reasons(rows)["gpu.index 1"]


def test_changed_thermal_and_power_reasons_are_events(gpu, driver):
    collector, rows = gpu()
    collector.sample(T0, rows)
    driver.set(2, reasons=0x40 | 0x1)
    collector.sample(T0 + SECOND_NS, rows)
    event = rows["event"][-1]
    assert (event["kind"], event["value"]) == ("throttle", 0x40)
    assert event["detail"] == f"{UUIDS[2]}: hardware thermal slowdown on"


def test_an_idle_gpu_throttles_nothing(gpu, driver):
    driver.set(0, reasons=0x1, pcie_gen=1)
    collector, rows = gpu()
    collector.sample(T0, rows)
    assert rows["event"] == []
    assert newest(rows, UUIDS[0])["clock_event_reasons"] == 0x1


def test_a_flickering_power_cap_is_one_event_in_ten_seconds_and_never_forgotten(gpu, driver):
    collector, rows = gpu()
    for second in range(21):
        driver.set(0, reasons=0x4 if second % 2 == 0 else 0)
        collector.sample(T0 + second * SECOND_NS, rows)
    assert len(rows["event"]) <= 3
    driver.set(0, reasons=0)
    collector.sample(T0 + 60 * SECOND_NS, rows)
    assert rows["event"][-1]["detail"].endswith("software power cap off")


def test_xids_are_events_of_their_card(gpu, driver):
    collector, rows = gpu()
    driver.set("-", events=2, event0_device=1, event0_xid=63, event1_device=2, event1_xid=79)
    collector.sample(T0, rows)
    collector.sample(T0 + SECOND_NS, rows)
    xids = [(e["kind"], e["value"], e["detail"]) for e in rows["event"]]
    assert xids == [("xid", 63, f"{UUIDS[1]}: XID 63"), ("xid", 79, f"{UUIDS[2]}: XID 79")]


def test_a_driver_without_events_says_so(gpu, driver):
    driver.drop("-", "events_supported")
    collector, rows = gpu()
    collector.sample(T0, rows)
    assert reasons(rows)["gpu.xid"] == "NVML: Not Supported"


def test_processes_of_no_rank_are_foreign(gpu, driver):
    driver.set(0, processes=4, pid0=100, pid1=50, pid2=7001, pid2_memory=1000, pid3=7002, pid3_memory=234)
    collector, rows = gpu()
    collector.sample(T0, rows)
    row = newest(rows, UUIDS[0])
    assert (row["foreign_processes"], row["foreign_memory_bytes"]) == (2, 1234)
    assert newest(rows, UUIDS[1])["foreign_processes"] == 0


def test_memory_of_a_foreign_process_that_nvml_does_not_tell_is_null(gpu, driver):
    driver.set(0, processes=1, pid0=7001)
    collector, rows = gpu()
    collector.sample(T0, rows)
    row = newest(rows, UUIDS[0])
    assert (row["foreign_processes"], row["foreign_memory_bytes"]) == (1, None)


def test_the_mps_server_is_not_foreign(gpu, driver, node):
    write_tree(node.proc, {"7001/comm": "nvidia-cuda-mps\n"})
    driver.set(0, processes=1, pid0=7001, pid0_memory=5)
    collector, rows = gpu()
    collector.sample(T0, rows)
    assert newest(rows, UUIDS[0])["foreign_processes"] == 0


def test_foreign_processes_are_null_in_a_pid_namespace_of_its_own(gpu, driver, node):
    link = node.proc / "self/ns/pid"
    link.unlink()
    link.symlink_to("pid:[4026532999]")
    driver.set(0, processes=1, pid0=7001, pid0_memory=5)
    collector, rows = gpu()
    collector.sample(T0, rows)
    assert newest(rows, UUIDS[0])["foreign_processes"] is None
    assert "PID namespace" in reasons(rows)["gpu.foreign_processes"]


def test_nobody_is_foreign_before_a_rank_is_known(gpu, driver, node):
    node.tree = {}
    driver.set(0, processes=1, pid0=100, pid0_memory=5)
    collector, rows = gpu()
    collector.sample(T0, rows)
    assert newest(rows, UUIDS[0])["foreign_processes"] is None


def test_the_cards_tell_a_ranks_place(gpu):
    collector, _ = gpu()
    assert locate(collector.cards(), 1, {"CUDA_VISIBLE_DEVICES": "2,1"}).uuid == UUIDS[1]
    assert locate(collector.cards(), 0, {"CUDA_VISIBLE_DEVICES": MIGS[0]}).uuid == MIGS[0]


def test_a_collector_that_is_opened_again_describes_each_gpu_once_more_and_samples_it_once(gpu, node):
    collector, _ = gpu()
    collector.close()
    rows = Recorded()
    collector.open(node, rows)
    collector.sample(T0, rows)
    assert len(rows["gpu"]) == len(rows["gpu_sample"]) == len(UUIDS) + len(MIGS)


def test_a_driver_that_is_not_loaded_is_unavailable_with_the_reason(driver, node):
    driver.set("-", init="!9")
    with pytest.raises(Unavailable, match="Driver Not Loaded"):
        GpuCollector(pynvml).open(node, Recorded())


def in_a_process(code, **environ):
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environ}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


OPEN = """
import json, sys
from starprof.collectors.base import NodeContext, Unavailable
from starprof.collectors.gpu import GpuCollector
class Rows(list):
    def add(self, table, row):
        self.append((table.name, list(row)))
rows, reason = Rows(), None
try:
    GpuCollector().open(NodeContext(), rows)
except Unavailable as error:
    reason = str(error)
print(json.dumps({"reason": reason, "gpus": [r[2] for t, r in rows if t == "gpu"], "pynvml": "pynvml" in sys.modules}))
"""


def test_the_library_is_found_the_way_pynvml_looks_for_it(driver, library):
    found = in_a_process(OPEN, LD_LIBRARY_PATH=str(library.parent), FAKE_NVML=str(driver.path))
    assert found["reason"] is None
    assert found["gpus"] == [*UUIDS, *MIGS]


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has a driver")
def test_without_a_driver_nvml_is_unavailable_and_not_even_imported():
    found = in_a_process(OPEN, LD_LIBRARY_PATH="")
    assert "libnvidia-ml.so.1 not found" in found["reason"]
    assert found["pynvml"] is False
