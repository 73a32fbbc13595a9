"""Tables of GPU counters."""

from starprof.model.columns import AT, NODE_KEY, Table, counter, fact, gauge, key, real, text

GPU_SAMPLE = Table(
    25,
    "gpu_sample",
    "GPUs through NVML; NULL where the device does not support a field.",
    (
        NODE_KEY,
        AT,
        key("gpu", "id, see table gpu"),
        real("util_pct", "SM activity as NVML reports it; says nothing about progress"),
        real("memory_util_pct", "memory controller activity"),
        gauge("sm_clock_mhz", "SM clock"),
        gauge("memory_clock_mhz", "memory clock"),
        real("temperature_c", "core temperature"),
        real("power_w", "power draw"),
        real("power_limit_w", "enforced power limit"),
        gauge("clock_event_reasons", "bit mask of reasons the clock is held down"),
        gauge("memory_used_bytes", "memory in use"),
        gauge("memory_total_bytes", "memory"),
        gauge("pcie_gen", "current PCIe generation (low at idle by design)"),
        gauge("pcie_width", "current lanes"),
        gauge("pcie_rx_bytes_per_s", "PCIe receive rate"),
        gauge("pcie_tx_bytes_per_s", "PCIe send rate"),
        counter("ecc_corrected", "corrected ECC errors"),
        counter("ecc_uncorrected", "uncorrected ECC errors"),
        counter("remapped_rows", "row remaps, correctable + uncorrectable"),
        gauge("remap_pending", "1 when a row remap waits for a reset"),
        counter("nvlink_errors", "NVLink replay + recovery + CRC errors, all links"),
        gauge("nvlink_active", "active NVLinks"),
        gauge("foreign_processes", "compute processes on the GPU that belong to no rank; NULL when hidden"),
        gauge("foreign_memory_bytes", "memory those hold"),
    ),
    packed=True,
    sampled=True,
)

GPU = Table(
    26,
    "gpu",
    "The GPUs of gpu_sample.",
    (
        NODE_KEY,
        key("gpu", "id"),
        text("uuid", "UUID of the GPU or MIG instance"),
        fact("nvml_index", "index in NVML's order"),
        text("name", "product"),
        text("pci", "PCI bus id"),
        fact("numa_node", "NUMA node of the PCI device"),
        fact("pcie_gen_max", "best PCIe generation of GPU and slot"),
        fact("pcie_width_max", "lanes"),
        text("driver", "driver version"),
        text("mig_parent", "UUID of the card, for MIG"),
    ),
)
