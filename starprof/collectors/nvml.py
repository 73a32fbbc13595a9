"""What NVML can tell about one GPU, field by field, each of which a device may lack.

`FIELDS` names the columns of `gpu_sample` that one NVML call fills, and is the reference of sources and units:
  util_pct, memory_util_pct    nvmlDeviceGetUtilizationRates, percent of the last sample period
  sm_clock_mhz, memory_clock_mhz   nvmlDeviceGetClockInfo, MHz
  temperature_c                nvmlDeviceGetTemperature of the core, degrees Celsius
  power_w                      nvmlDeviceGetPowerUsage, mW divided by 1000
  power_limit_w                nvmlDeviceGetEnforcedPowerLimit, mW divided by 1000
  clock_event_reasons          nvmlDeviceGetCurrentClocksEventReasons (old drivers: ...ThrottleReasons), bit mask
  memory_used_bytes, memory_total_bytes   nvmlDeviceGetMemoryInfo, bytes; used includes what the driver reserves
  pcie_gen, pcie_width         nvmlDeviceGetCurrPcieLinkGeneration, ...Width; low at idle by design
  pcie_rx_bytes_per_s, pcie_tx_bytes_per_s   nvmlDeviceGetPcieThroughput, KB/s times 1000, measured over 20 ms
  ecc_corrected, ecc_uncorrected   nvmlDeviceGetTotalEccErrors, volatile: since the driver was loaded
  remapped_rows, remap_pending     nvmlDeviceGetRemappedRows
  nvlink_active                nvmlDeviceGetNvLinkState, links that are up
  nvlink_errors                nvmlDeviceGetNvLinkErrorCounter: replay, recovery, flit and data CRC, all links
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_MW_PER_W = 1000.0
_BYTES_PER_KB = 1000
_BLANK_32 = 0xFFFFFFFF
_BLANK_64 = 0x7FFFFFFFFFFFFFF0  # DCGM's and NVML's "no value" codes lie at and above it; 2**64 - 1 does as well
_NVLINK_ERROR_COUNTERS = range(4)  # replay, recovery, flit CRC, data CRC

Handle = Any
"""A device handle of pynvml."""

Value = int | float | None


@dataclass(frozen=True, slots=True)
class Field:
    """One NVML question.

    Attributes:
        columns: columns of `gpu_sample` that it fills.
        read: asks it; raises pynvml's NVMLError.
        dear: takes so long that it is asked at its own pace.
    """

    columns: tuple[str, ...]
    read: Callable[[ModuleType, Handle], Sequence[Value]]
    dear: bool = False


def without_blanks(values: Sequence[Value]) -> list[Value]:
    """Values with the library's codes for "no value" turned into None."""
    return [None if v is not None and (v < 0 or v == _BLANK_32 or v >= _BLANK_64) else v for v in values]


def _utilization(nvml: ModuleType, handle: Handle) -> Sequence[Value]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu, rates.memory


def _power(nvml: ModuleType, handle: Handle) -> Sequence[Value]:
    milliwatts = without_blanks([nvml.nvmlDeviceGetPowerUsage(handle)])[0]
    return (None if milliwatts is None else milliwatts / _MW_PER_W,)


def _power_limit(nvml: ModuleType, handle: Handle) -> Sequence[Value]:
    milliwatts = without_blanks([nvml.nvmlDeviceGetEnforcedPowerLimit(handle)])[0]
    return (None if milliwatts is None else milliwatts / _MW_PER_W,)


def _clock_event_reasons(nvml: ModuleType, handle: Handle) -> Sequence[Value]:
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    if ask is not None:
        with contextlib.suppress(nvml.NVMLError_FunctionNotFound):
            return (ask(handle),)
    # drivers before 535, and pynvml of their time, have it under its old name only
    return (nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),)


def _memory(nvml: ModuleType, handle: Handle) -> Sequence[Value]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return memory.used, memory.total


def _pcie_throughput(nvml: ModuleType, handle: Handle) -> Sequence[Value]:
    directions = (nvml.NVML_PCIE_UTIL_RX_BYTES, nvml.NVML_PCIE_UTIL_TX_BYTES)
    rates = without_blanks([nvml.nvmlDeviceGetPcieThroughput(handle, direction) for direction in directions])
    return [None if rate is None else rate * _BYTES_PER_KB for rate in rates]


def _ecc(nvml: ModuleType, handle: Handle) -> Sequence[Value]:
    kinds = (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    return [nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC) for kind in kinds]


def _remapped_rows(nvml: ModuleType, handle: Handle) -> Sequence[Value]:
    corrected, uncorrected, pending, _ = nvml.nvmlDeviceGetRemappedRows(handle)
    return corrected + uncorrected, pending


def nvlinks(nvml: ModuleType, handle: Handle) -> list[int]:
    """Numbers of the NVLinks that the device has.

    Raises:
        NVMLError: it has none, or does not tell.
    """
    found: list[int] = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            nvml.nvmlDeviceGetNvLinkState(handle, link)
        except nvml.NVMLError:
            if not found:
                raise
            break
        found.append(link)
    return found


def _nvlink_active(nvml: ModuleType, handle: Handle) -> Sequence[Value]:
    return (sum(nvml.nvmlDeviceGetNvLinkState(handle, link) for link in nvlinks(nvml, handle)),)


def _nvlink_errors(nvml: ModuleType, handle: Handle) -> Sequence[Value]:
    counts = without_blanks(
        [
            nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter)
            for link in nvlinks(nvml, handle)
            if nvml.nvmlDeviceGetNvLinkState(handle, link)
            for counter in _NVLINK_ERROR_COUNTERS
        ]
    )
    known = [count for count in counts if count is not None]
    return (sum(known) if len(known) == len(counts) else None,)


FIELDS: tuple[Field, ...] = (
    Field(("util_pct", "memory_util_pct"), _utilization),
    Field(("sm_clock_mhz",), lambda nvml, h: (nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM),)),
    Field(("memory_clock_mhz",), lambda nvml, h: (nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM),)),
    Field(("temperature_c",), lambda nvml, h: (nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU),)),
    Field(("power_w",), _power),
    Field(("power_limit_w",), _power_limit),
    Field(("clock_event_reasons",), _clock_event_reasons),
    Field(("memory_used_bytes", "memory_total_bytes"), _memory),
    Field(("pcie_gen",), lambda nvml, h: (nvml.nvmlDeviceGetCurrPcieLinkGeneration(h),)),
    Field(("pcie_width",), lambda nvml, h: (nvml.nvmlDeviceGetCurrPcieLinkWidth(h),)),
    Field(("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"), _pcie_throughput, dear=True),
    Field(("ecc_corrected", "ecc_uncorrected"), _ecc),
    Field(("remapped_rows", "remap_pending"), _remapped_rows),
    Field(("nvlink_active",), _nvlink_active, dear=True),
    Field(("nvlink_errors",), _nvlink_errors, dear=True),
)

THERMAL_AND_POWER = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of `clock_event_reasons` whose changes are events (nvml.h, nvmlClocksEventReason*)."""
