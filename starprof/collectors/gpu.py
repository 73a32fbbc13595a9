"""GPUs through NVML: use, clocks, heat, power, PCIe, errors, links, and who else computes on them.

`starprof.collectors.nvml` names the NVML call and unit of each column. Beside them:
  foreign_processes      nvmlDeviceGetComputeRunningProcesses: those outside the ranks' process trees, without
  foreign_memory_bytes   starprof itself and the MPS server; NULL when other processes are hidden from the agent
                         (a PID namespace of its own) or while no rank is known yet
A field that a device lacks is NULL and is reported once. Changed thermal or power reasons of the clock become
`throttle` events, XIDs `xid` events; a card that falls off the bus becomes a `gpu-lost` event and a gap, and the
others go on. MIG instances have rows of their own, below the card's.

Some calls block for 20 ms in the driver: the collector is `slow` and belongs in a thread of its own.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import TypeVar

from starprof.collectors.base import NodeContext, Rows, Unavailable
from starprof.collectors.gpu_map import Card
from starprof.collectors.notes import Notes, Pace, stable_id
from starprof.collectors.nvml import FIELDS, THERMAL_AND_POWER, Field, Handle, Value, without_blanks
from starprof.collectors.procfile import read_once
from starprof.model.events import GPU_LOST, THROTTLE, XID
from starprof.model.schema import row
from starprof.model.tables.gpu import GPU, GPU_SAMPLE

_LIBRARY = "libnvidia-ml.so.1"
_SECOND_NS = 1_000_000_000
_SHARE = 0.002
_THROTTLE_EVENT_NS = 10 * _SECOND_NS  # a power cap flickers at full healthy load; the samples have every change
_MAX_XIDS_PER_TICK = 64
_INIT_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of linux/proc_ns.h
_MPS = b"nvidia-cuda-mps"
_SYSFS_PCI_CHARS = len("0000:00:00.0")
T = TypeVar("T")


@dataclass(slots=True)
class _Device:
    """A GPU or MIG instance that still answers."""

    id: int
    uuid: str
    handle: Handle
    parent: _Device | None = None
    pci: str = ""
    product: str = ""
    mig_enabled: bool = False
    lacks: set[Field] = field(default_factory=set)
    reasons: int = 0
    reasons_noted_ns: int | None = None
    seen_ns: int | None = None


class GpuCollector:
    """Collects `gpu_sample` and `gpu`.

    Args:
        nvml: the pynvml module or a stand-in with its functions and exceptions; None imports it in `open`.
    """

    name = "gpu"
    dear = True
    slow = True

    def __init__(self, nvml: ModuleType | None = None) -> None:
        self._given = nvml
        self._devices: list[_Device] = []
        self._paces = {f: Pace(0, _SHARE, time.thread_time_ns) for f in FIELDS if f.dear}
        self._xids: object | None = None

    def open(self, context: NodeContext, rows: Rows) -> None:
        """Start NVML and describe each GPU and MIG instance."""
        self._context = context
        self._notes = Notes(self.name, context.node)
        self._devices.clear()
        self._nvml = self._given if self._given is not None else _import_nvml()
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise Unavailable(f"NVML can't be used: {error}") from error
        for index in range(count):
            self._find(index, rows)
        if not self._devices:
            self.close()
            raise Unavailable(f"NVML lists {count} GPUs and none of them can be read")
        self._listen(rows)
        context.gpu_cards = self.cards

    def sample(self, mono_ns: int, rows: Rows) -> None:
        """Append one row per GPU and MIG instance, and the events since the last tick."""
        fields = [f for f in FIELDS if not f.dear or self._paces[f].due(mono_ns)]
        hidden = self._processes_hidden(rows)
        for device in list(self._devices):
            try:
                values = self._read(device, fields, rows)
                if not hidden:
                    values.update(self._foreign(device, rows))
            except self._nvml.NVMLError_GpuIsLost as error:
                self._lose(device, str(error), mono_ns, rows)
                continue
            rows.add(GPU_SAMPLE, row(GPU_SAMPLE, node=self._context.node, mono_ns=mono_ns, gpu=device.id, **values))
            device.seen_ns = mono_ns
            self._note_throttling(device, values.get("clock_event_reasons"), mono_ns, rows)
        for f in fields:
            if f.dear:
                self._paces[f].done(mono_ns)
        self._note_xids(mono_ns, rows)

    def close(self) -> None:
        """Give NVML back."""
        try:
            if self._xids is not None:
                self._nvml.nvmlEventSetFree(self._xids)
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:  # the driver went away with a card: there is nothing left to give back
            self._xids = None

    def cards(self) -> list[Card]:
        """The physical GPUs as `gpu_map.locate` takes them."""
        return [
            Card(d.uuid, d.pci, d.product, tuple(m.uuid for m in self._devices if m.parent is d), d.mig_enabled)
            for d in self._devices
            if d.parent is None
        ]

    # Finding devices

    def _find(self, index: int, rows: Rows) -> None:
        """Add a GPU and its MIG instances."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError as error:
            self._notes.unavailable(rows, f"index {index}", f"this GPU can't be read: {error}")
            return
        device = _Device(stable_id("gpu", uuid), uuid, handle)
        self._devices.append(device)
        self._describe(device, index, rows)
        modes = self._fact(lambda: nvml.nvmlDeviceGetMigMode(handle))
        device.mig_enabled = modes is not None and modes[0] == nvml.NVML_DEVICE_MIG_ENABLE
        if device.mig_enabled:
            for i in range(self._fact(lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
                self._find_instance(device, index, i, rows)

    def _find_instance(self, card: _Device, index: int, i: int, rows: Rows) -> None:
        nvml = self._nvml
        handle = self._fact(lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, i))
        uuid = self._fact(lambda: nvml.nvmlDeviceGetUUID(handle)) if handle is not None else None
        if uuid is not None:
            device = _Device(stable_id("gpu", uuid), uuid, handle, parent=card, pci=card.pci)
            self._devices.append(device)
            self._describe(device, index, rows)

    def _describe(self, device: _Device, index: int, rows: Rows) -> None:
        """Append the dictionary row; what a device does not tell stays NULL."""
        nvml, card = self._nvml, device.parent or device
        device.product = self._fact(lambda: nvml.nvmlDeviceGetName(device.handle)) or ""
        card.pci = card.pci or self._fact(lambda: _text(nvml.nvmlDeviceGetPciInfo(card.handle).busId)) or ""
        facts = {
            "nvml_index": index,
            "name": device.product or None,
            "pci": card.pci or None,
            "numa_node": self._numa_node(card.pci),
            "pcie_gen_max": self._fact(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(card.handle)),
            "pcie_width_max": self._fact(lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(card.handle)),
            "driver": self._fact(nvml.nvmlSystemGetDriverVersion),
            "mig_parent": device.parent.uuid if device.parent is not None else None,
        }
        rows.add(GPU, row(GPU, node=self._context.node, gpu=device.id, uuid=device.uuid, **facts))

    def _fact(self, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except self._nvml.NVMLError:
            return None

    def _numa_node(self, pci: str) -> int | None:
        """NUMA node of a PCI device; the kernel says -1 where it does not know."""
        address = pci[-_SYSFS_PCI_CHARS:].lower()
        try:
            number = int(read_once(self._context.sys / "bus" / "pci" / "devices" / address / "numa_node"))
        except (OSError, ValueError):
            return None
        return number if number >= 0 else None

    # Sampling

    def _read(self, device: _Device, fields: list[Field], rows: Rows) -> dict[str, Value]:
        """Values by column.

        Raises:
            NVMLError_GpuIsLost: the card fell off the bus.
        """
        values: dict[str, Value] = {}
        for f in fields:
            if f in device.lacks:
                continue
            try:
                got = without_blanks(f.read(self._nvml, device.handle))
            except self._nvml.NVMLError as error:
                self._refused(device, f, error, rows)
                continue
            values.update(zip(f.columns, got, strict=True))
            blank = [column for column, value in zip(f.columns, got, strict=True) if value is None]
            if blank:
                self._notes.unavailable(rows, f"{device.uuid}.{blank[0]}", "the device reports no value")
        return values

    def _refused(self, device: _Device, f: Field, error: Exception, rows: Rows) -> None:
        """Note a field that can't be read; one that never will be is not asked for again."""
        nvml = self._nvml
        if isinstance(error, nvml.NVMLError_GpuIsLost):
            raise error
        self._notes.unavailable(rows, f"{device.uuid}.{f.columns[0]}", f"NVML: {error}")
        if isinstance(
            error, nvml.NVMLError_NotSupported | nvml.NVMLError_FunctionNotFound | nvml.NVMLError_NoPermission
        ):
            device.lacks.add(f)

    def _lose(self, device: _Device, reason: str, mono_ns: int, rows: Rows) -> None:
        self._devices.remove(device)
        self._notes.event(rows, mono_ns, GPU_LOST, f"{device.uuid}: {reason}")
        self._notes.gap(rows, device.seen_ns, None, f"GPU {device.uuid}: {reason}")

    # Processes

    def _processes_hidden(self, rows: Rows) -> bool:
        """Whether the agent can't tell foreign processes from the ranks'."""
        if not self._context.tree:
            return True
        try:
            namespace = os.readlink(f"{self._context.proc}/self/ns/pid")  # noqa: PTH115 - compared as text
        except OSError:
            namespace = "unknown"
        if namespace != _INIT_PID_NAMESPACE:
            reason = "the agent runs in a PID namespace of its own: processes of others on the GPUs are hidden from it"
            self._notes.unavailable(rows, "foreign_processes", reason)
            return True
        return False

    def _foreign(self, device: _Device, rows: Rows) -> dict[str, Value]:
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(device.handle)
        except self._nvml.NVMLError_GpuIsLost:
            raise
        except self._nvml.NVMLError as error:
            self._notes.unavailable(rows, f"{device.uuid}.foreign_processes", f"NVML: {error}")
            return {}
        tree, own = self._context.tree, self._context.own_pids
        foreign = [p for p in processes if p.pid not in tree and p.pid not in own and not self._is_mps(p.pid)]
        used = [p.usedGpuMemory for p in foreign]
        total = sum(used) if all(u is not None for u in used) else None
        return {"foreign_processes": len(foreign), "foreign_memory_bytes": total}

    def _is_mps(self, pid: int) -> bool:
        """Whether it is the server through which MPS lets several ranks share a card."""
        try:
            return read_once(self._context.proc / str(pid) / "comm").startswith(_MPS)
        except OSError:
            return False

    # Events

    def _note_throttling(self, device: _Device, reasons: Value, mono_ns: int, rows: Rows) -> None:
        """Append an event when thermal or power reasons changed, per device one in 10 s at most."""
        if reasons is None:
            return
        held = int(reasons) & sum(THERMAL_AND_POWER)
        changed = held ^ device.reasons
        soon = device.reasons_noted_ns is not None and mono_ns - device.reasons_noted_ns < _THROTTLE_EVENT_NS
        if not changed or soon:
            return
        device.reasons, device.reasons_noted_ns = held, mono_ns
        words = [f"{text} {'on' if held & bit else 'off'}" for bit, text in THERMAL_AND_POWER.items() if changed & bit]
        self._notes.event(rows, mono_ns, THROTTLE, f"{device.uuid}: {', '.join(words)}", changed)

    def _listen(self, rows: Rows) -> None:
        """Register for XIDs of every card that reports them."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self._notes.unavailable(rows, "xid", f"NVML: {error}")
            return
        for device in self._devices:
            if device.parent is not None:
                continue
            try:
                nvml.nvmlDeviceRegisterEvents(device.handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError as error:
                self._notes.unavailable(rows, f"{device.uuid}.xid", f"NVML: {error}")
        self._xids = events

    def _note_xids(self, mono_ns: int, rows: Rows) -> None:
        nvml = self._nvml
        for _ in range(_MAX_XIDS_PER_TICK if self._xids is not None else 0):
            try:
                event = nvml.nvmlEventSetWait(self._xids, 0)
            except nvml.NVMLError_Timeout:
                return
            except nvml.NVMLError as error:
                self._notes.unavailable(rows, "xid", f"NVML: {error}")
                return
            uuid = self._fact(lambda e=event: nvml.nvmlDeviceGetUUID(e.device)) or "a GPU"  # type: ignore[misc]
            self._notes.event(rows, mono_ns, XID, f"{uuid}: XID {event.eventData}", event.eventData)


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _import_nvml() -> ModuleType:
    """pynvml, which costs 6 MB: not imported on a node without a driver.

    Raises:
        Unavailable: no driver, or nvidia-ml-py is not installed.
    """
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise Unavailable(f"no NVIDIA driver: {_LIBRARY} not found") from error
    try:
        import pynvml
    except ImportError as error:
        raise Unavailable("the package nvidia-ml-py is not installed") from error
    module: ModuleType = pynvml
    return module
