"""Names of Prometheus metrics that the sampled tables have a place for, and whom their labels are about.

DCGM exporter (names of DCGM fields, units as in dcgm_fields.h and the exporter's default list), node exporter (base
units: seconds, bytes), and nvidia_gpu_exporter (base units and ratios). node exporter has already multiplied
InfiniBand's 4-byte data words; link rates are those of all lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from starprof.importers.metrics.readings import XID_COLUMN, Readings, Target

_MIB = 2.0**20
_US = 1e6
_POWER_BIT, _THERMAL_BIT, _BRAKE_BIT = 0x04, 0x20, 0x80
_MBIT_PER_BYTE = 8e-6


class Place(NamedTuple):
    """Where the values of one series go: the host, the device on it, and what they are of it."""

    host: str
    device: str
    targets: tuple[Target, ...]


def _gpu(column: str, *, factor: float = 1.0, part: str = "", rank: int = 0) -> tuple[Target, ...]:
    return (Target("gpu_sample", column, factor, part, rank),)


def _grown(bit: int) -> tuple[Target, ...]:
    return (Target("gpu_sample", "clock_event_reasons", part=str(bit), rank=1, bit=bit, grows=True),)


_DCGM: dict[str, tuple[Target, ...]] = {
    "DEV_GPU_UTIL": _gpu("util_pct"),
    "PROF_GR_ENGINE_ACTIVE": _gpu("util_pct", factor=100.0, rank=1),
    "DEV_MEM_COPY_UTIL": _gpu("memory_util_pct"),
    "DEV_SM_CLOCK": _gpu("sm_clock_mhz"),
    "DEV_MEM_CLOCK": _gpu("memory_clock_mhz"),
    "DEV_GPU_TEMP": _gpu("temperature_c"),
    "DEV_POWER_USAGE": _gpu("power_w"),
    "DEV_POWER_USAGE_INSTANT": _gpu("power_w", rank=1),
    "DEV_ENFORCED_POWER_LIMIT": _gpu("power_limit_w"),
    "DEV_POWER_MGMT_LIMIT": _gpu("power_limit_w", rank=1),
    "DEV_CLOCKS_EVENT_REASONS": _gpu("clock_event_reasons"),
    "DEV_CLOCK_THROTTLE_REASONS": _gpu("clock_event_reasons"),
    "DEV_POWER_VIOLATION": _grown(_POWER_BIT),
    "DEV_THERMAL_VIOLATION": _grown(_THERMAL_BIT),
    "DEV_BOARD_LIMIT_VIOLATION": _grown(_BRAKE_BIT),
    "DEV_FB_USED": _gpu("memory_used_bytes", factor=_MIB),
    "DEV_FB_TOTAL": _gpu("memory_total_bytes", factor=_MIB),
    "DEV_PCIE_LINK_GEN": _gpu("pcie_gen"),
    "DEV_PCIE_LINK_WIDTH": _gpu("pcie_width"),
    "PROF_PCIE_RX_BYTES": _gpu("pcie_rx_bytes_per_s"),
    "PROF_PCIE_TX_BYTES": _gpu("pcie_tx_bytes_per_s"),
    "DEV_PCIE_RX_THROUGHPUT": _gpu("pcie_rx_bytes_per_s", factor=1e3, rank=1),
    "DEV_PCIE_TX_THROUGHPUT": _gpu("pcie_tx_bytes_per_s", factor=1e3, rank=1),
    "DEV_ECC_SBE_VOL_TOTAL": _gpu("ecc_corrected"),
    "DEV_ECC_SBE_AGG_TOTAL": _gpu("ecc_corrected", rank=1),
    "DEV_ECC_DBE_VOL_TOTAL": _gpu("ecc_uncorrected"),
    "DEV_ECC_DBE_AGG_TOTAL": _gpu("ecc_uncorrected", rank=1),
    "DEV_CORRECTABLE_REMAPPED_ROWS": _gpu("remapped_rows", part="correctable"),
    "DEV_UNCORRECTABLE_REMAPPED_ROWS": _gpu("remapped_rows", part="uncorrectable"),
    "DEV_ROW_REMAP_PENDING": _gpu("remap_pending"),
    "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": _gpu("nvlink_errors", part="flit"),
    "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": _gpu("nvlink_errors", part="data"),
    "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": _gpu("nvlink_errors", part="replay"),
    "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": _gpu("nvlink_errors", part="recovery"),
    "DEV_XID_ERRORS": _gpu(XID_COLUMN),
}
_SMI: dict[str, tuple[Target, ...]] = {
    "utilization_gpu_ratio": _gpu("util_pct", factor=100.0),
    "utilization_memory_ratio": _gpu("memory_util_pct", factor=100.0),
    "clocks_current_sm_clock_hz": _gpu("sm_clock_mhz", factor=1e-6),
    "clocks_current_memory_clock_hz": _gpu("memory_clock_mhz", factor=1e-6),
    "temperature_gpu": _gpu("temperature_c"),
    "power_draw_watts": _gpu("power_w"),
    "enforced_power_limit_watts": _gpu("power_limit_w"),
    "power_limit_watts": _gpu("power_limit_w", rank=1),
    "clocks_event_reasons_active": _gpu("clock_event_reasons"),
    "clocks_throttle_reasons_active": _gpu("clock_event_reasons"),
    "memory_used_bytes": _gpu("memory_used_bytes"),
    "memory_total_bytes": _gpu("memory_total_bytes"),
    "pcie_link_gen_current": _gpu("pcie_gen"),
    "pcie_link_width_current": _gpu("pcie_width"),
    "ecc_errors_corrected_volatile_total": _gpu("ecc_corrected"),
    "ecc_errors_uncorrected_volatile_total": _gpu("ecc_uncorrected"),
    "remapped_rows_correctable": _gpu("remapped_rows", part="correctable"),
    "remapped_rows_uncorrectable": _gpu("remapped_rows", part="uncorrectable"),
}
_FACTS = {"DCGM_FI_DEV_PCIE_MAX_LINK_GEN": "pcie_gen_max", "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": "pcie_width_max"}


def _node(column: str, *, factor: float = 1.0, part: str = "") -> tuple[Target, ...]:
    return (Target("node_sample", column, factor, part),)


def _nic(column: str, *, factor: float = 1.0) -> tuple[Target, ...]:
    return (Target("nic_sample", column, factor),)


def _disk(column: str, *, factor: float = 1.0) -> tuple[Target, ...]:
    return (Target("disk_sample", column, factor),)


_NODE: dict[str, tuple[Target, ...]] = {
    "node_pressure_cpu_waiting_seconds_total": _node("psi_cpu_some_us", factor=_US),
    "node_pressure_memory_waiting_seconds_total": _node("psi_memory_some_us", factor=_US),
    "node_pressure_memory_stalled_seconds_total": _node("psi_memory_full_us", factor=_US),
    "node_pressure_io_waiting_seconds_total": _node("psi_io_some_us", factor=_US),
    "node_pressure_io_stalled_seconds_total": _node("psi_io_full_us", factor=_US),
    "node_memory_MemAvailable_bytes": _node("memory_available_bytes"),
    "node_memory_SwapTotal_bytes": _node("swap_used_bytes", part="total"),
    "node_memory_SwapFree_bytes": _node("swap_used_bytes", factor=-1.0, part="free"),
    "node_memory_Dirty_bytes": _node("dirty_bytes"),
    "node_vmstat_pswpin": _node("swap_in_pages"),
    "node_vmstat_pswpout": _node("swap_out_pages"),
    "node_vmstat_pgmajfault": _node("major_faults"),
    "node_context_switches_total": _node("context_switches"),
    "node_procs_running": _node("runnable"),
    "node_procs_blocked": _node("blocked_tasks"),
}
_NIC: dict[str, tuple[Target, ...]] = {
    "node_network_receive_bytes_total": _nic("rx_bytes"),
    "node_network_transmit_bytes_total": _nic("tx_bytes"),
    "node_network_receive_packets_total": _nic("rx_packets"),
    "node_network_transmit_packets_total": _nic("tx_packets"),
    "node_network_receive_drop_total": _nic("rx_dropped"),
    "node_network_transmit_drop_total": _nic("tx_dropped"),
    "node_network_receive_errs_total": _nic("rx_errors"),
    "node_network_transmit_errs_total": _nic("tx_errors"),
    "node_network_speed_bytes": _nic("speed_mbit", factor=_MBIT_PER_BYTE),
    "node_network_up": _nic("up"),
    "node_infiniband_port_data_received_bytes_total": _nic("rx_bytes"),
    "node_infiniband_port_data_transmitted_bytes_total": _nic("tx_bytes"),
    "node_infiniband_port_packets_received_total": _nic("rx_packets"),
    "node_infiniband_port_packets_transmitted_total": _nic("tx_packets"),
    "node_infiniband_port_errors_received_total": _nic("rx_errors"),
    "node_infiniband_port_discards_transmitted_total": _nic("tx_dropped"),
    "node_infiniband_port_transmit_wait_total": _nic("xmit_wait_ticks"),
    "node_infiniband_rate_bytes_per_second": _nic("speed_mbit", factor=_MBIT_PER_BYTE),
}
_DISK: dict[str, tuple[Target, ...]] = {
    "node_disk_read_bytes_total": _disk("read_bytes"),
    "node_disk_written_bytes_total": _disk("write_bytes"),
    "node_disk_reads_completed_total": _disk("reads"),
    "node_disk_writes_completed_total": _disk("writes"),
    "node_disk_read_time_seconds_total": _disk("read_wait_us", factor=_US),
    "node_disk_write_time_seconds_total": _disk("write_wait_us", factor=_US),
    "node_disk_io_time_seconds_total": _disk("busy_us", factor=_US),
}
_CPU_MODES: dict[str, tuple[str, ...]] = {
    "user": ("user_us",),
    "nice": ("user_us",),
    "system": ("system_us",),
    "irq": ("system_us",),
    "softirq": ("system_us",),
    "idle": ("idle_us",),
    "iowait": ("idle_us", "iowait_us"),
    "steal": ("steal_us",),
}
PREFIXES = ("DCGM_FI_", "node_cpu", "node_pressure", "node_memory", "node_network", "node_infiniband", "node_disk",
            "node_vmstat", "node_load", "nvidia_smi_")  # fmt: skip
"""What names of such metrics begin with: how a file of them is recognised."""

_HOSTS = ("Hostname", "hostname", "nodename", "host", "node", "kubernetes_node", "instance")


def host_of(labels: Mapping[str, str], usual: str) -> str:
    """The host that labels name; `usual` when they name none."""
    for label in _HOSTS:
        name = labels.get(label, "")
        if name:
            return name[:200] if label != "instance" else name.rpartition(":")[0][:200] or name[:200]
    return usual


def place(name: str, labels: Mapping[str, str], usual_host: str, readings: Readings) -> Place | None:
    """Where the values of a series go; None when no table has a place. What labels say of a device is noted."""
    host = host_of(labels, usual_host)
    if name.startswith("DCGM_FI_"):
        targets = _DCGM.get(name.removeprefix("DCGM_FI_"))
        return None if targets is None else Place(host, _gpu_of(host, labels, readings), targets)
    if name.startswith("nvidia_smi_"):
        targets = _SMI.get(name.removeprefix("nvidia_smi_"))
        return None if targets is None else Place(host, _gpu_of(host, labels, readings), targets)
    if name in _NODE:
        return Place(host, "", _NODE[name])
    device = labels.get("device", "")[:200]
    if name in _NIC and device:
        infiniband = name.startswith("node_infiniband")
        device = f"{device}/{labels.get('port', '1')[:20]}" if infiniband else device
        readings.describe(host, "nic_sample", device, name=device, type=_nic_type(device, infiniband=infiniband))
        return Place(host, device, _NIC[name])
    if name in _DISK and device:
        readings.describe(host, "disk_sample", device, name=device, type="block")
        return Place(host, device, _DISK[name])
    return _cpu_place(name, labels, host)


def note_fact(name: str, labels: Mapping[str, str], usual_host: str, value: float, readings: Readings) -> bool:
    """Take a metric that says something of a device or host for good; False when it is none of those."""
    if name == "node_uname_info":
        nodename = labels.get("nodename", "")
        if nodename:
            readings.name_host(host_of({**labels, "nodename": ""}, usual_host), nodename[:200])
        return True
    fact = _FACTS.get(name)
    if fact is None:
        return False
    host = host_of(labels, usual_host)
    if 0 < value < 1000:
        readings.describe(host, "gpu_sample", _gpu_of(host, labels, readings), **{fact: int(value)})
    return True


def _gpu_of(host: str, labels: Mapping[str, str], readings: Readings) -> str:
    """The GPU, or MIG instance, that labels name."""
    uuid, index = labels.get("UUID") or labels.get("uuid") or "", labels.get("gpu") or labels.get("minor_number") or ""
    instance = labels.get("GPU_I_ID", "")
    device = (uuid or index or labels.get("device", "0"))[:200] + (f"/{instance[:20]}" if instance else "")
    if index.isdecimal() and len(index) < 6 and not instance:
        readings.describe(host, "gpu_sample", device, nvml_index=int(index))
    readings.describe(
        host,
        "gpu_sample",
        device,
        uuid=f"{uuid}/{instance}" if uuid and instance else uuid,
        mig_parent=uuid if instance else None,
        name=labels.get("modelName", labels.get("name")),
        pci=labels.get("pci_bus_id"),
        driver=labels.get("DCGM_FI_DRIVER_VERSION"),
    )
    return device


def _cpu_place(name: str, labels: Mapping[str, str], host: str) -> Place | None:
    cpu, mode = labels.get("cpu", ""), labels.get("mode", "")
    if not (cpu.isdecimal() and len(cpu) < 6):
        return None
    if name == "node_cpu_scaling_frequency_hertz":
        return Place(host, cpu, (Target("cpu_sample", "freq_khz", 1e-3),))
    if name != "node_cpu_seconds_total" or mode not in _CPU_MODES:
        return None
    return Place(host, cpu, tuple(Target("cpu_sample", column, _US, mode) for column in _CPU_MODES[mode]))


def _nic_type(device: str, *, infiniband: bool) -> str:
    if infiniband:
        return "infiniband"
    if device == "lo":
        return "loopback"
    if device.startswith(("veth", "docker", "br-", "virbr", "cni", "cali", "flannel", "tun", "tap", "vxlan", "dummy")):
        return "virtual"
    return "bond" if device.startswith("bond") else "ethernet"
