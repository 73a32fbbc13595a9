"""Queues of interfaces: token buckets at the root of what a network namespace sends, by pyroute2 (extra `network`).

The queue carries a handle of ours. Only an interface with the kernel's own default queue is taken, so that taking ours
away leaves what was there before.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starprof.control.actuators.change import GoneError, RefusedError

HANDLE = 0x5350_0000
CLASS = HANDLE | 1
_ROOT = 0xFFFF_FFFF
_NEW_NET = 0x4000_0000
NAMES = Path("/run/netns")
LATENCY = "50ms"
MIN_BURST_BYTES = 16_000
"""A bucket smaller than a large segment passes nothing."""
_SPORT_AT = 20
"""Of a TCP segment behind an IPv4 header without options."""


class QueueKnob:
    """Target: `netns` (inode), `interface`, and `ports` for htb. Value: kind and rate, or None."""

    def read(self, target: Mapping[str, Any]) -> Any:
        """See `change.Knob`: None for the kernel's default."""
        return inside(target, lambda ip: _read(ip, _index(ip, target)))

    def write(self, target: Mapping[str, Any], value: Any) -> None:
        """See `change.Knob`."""
        inside(target, lambda ip: _write(ip, _index(ip, target), value, target.get("ports", ())))


def inside(target: Mapping[str, Any], act: Callable[[Any], Any]) -> Any:
    """Do something in a network namespace: in a thread, since a namespace is a thread's own.

    Raises:
        GoneError: nothing holds the namespace any more.
        RefusedError: pyroute2 is not installed, or the kernel refuses.
    """
    found: list[Any] = []

    def work() -> None:
        try:
            found.append((_enter_and(target, act), None))
        except BaseException as error:  # noqa: BLE001 - raised again by who waits for the thread
            found.append((None, error))

    thread = threading.Thread(target=work, name="starprof-queues", daemon=True)
    thread.start()
    thread.join()
    result, error = found[0]
    if error is not None:
        raise error
    return result


def _enter_and(target: Mapping[str, Any], act: Callable[[Any], Any]) -> Any:
    try:
        from pyroute2 import IPRoute
        from pyroute2.netlink.exceptions import NetlinkError
    except ImportError as error:
        raise RefusedError("tc needs pyroute2: pip install 'starprof[network]'") from error
    libc = ctypes.CDLL(None, use_errno=True)
    fd = _namespace(int(target["netns"]))
    try:
        if libc.setns(fd, _NEW_NET):
            number = ctypes.get_errno()
            raise OSError(number, f"can't enter the network namespace: {os.strerror(number)}")
    finally:
        os.close(fd)
    try:
        with IPRoute() as ip:
            return act(ip)
    except NetlinkError as error:
        raise RefusedError(f"the kernel refuses the queue: {error}") from error


def _namespace(inode: int) -> int:
    """A descriptor of the namespace: a queue outlives the process for which it was made, where others are there too.

    Raises:
        GoneError: no process is in it, and no name holds it.
    """
    places = [f"/proc/{name}/ns/net" for name in ["self", *filter(str.isdecimal, os.listdir("/proc"))]]  # noqa: PTH208
    if NAMES.is_dir():
        places += [str(path) for path in NAMES.iterdir()]
    for place in places:
        try:
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        if os.fstat(fd).st_ino == inode:
            return fd
        os.close(fd)
    raise GoneError("the network namespace is gone")


def _index(ip: Any, target: Mapping[str, Any]) -> int:
    found = ip.link_lookup(ifname=target["interface"])
    if not found:
        raise GoneError(f"interface {target['interface']} is gone")
    return int(found[0])


def _read(ip: Any, index: int) -> Any:
    for queue in ip.get_qdiscs(index=index):
        if queue["parent"] != _ROOT or queue["handle"] == 0:
            continue
        kind = queue.get_attr("TCA_KIND")
        if queue["handle"] != HANDLE:
            return {"kind": f"{kind} {queue['handle'] >> 16:x}: of somebody else"}
        return {"kind": kind, "rate_bytes_per_s": _rate(ip, index, queue)}
    return None


def _rate(ip: Any, index: int, queue: Any) -> int | None:
    if queue.get_attr("TCA_KIND") == "tbf":
        return int(queue.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")["rate"])
    for each in ip.get_classes(index=index):
        if each["handle"] == CLASS:
            return int(each.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")["rate"])
    return None


def _write(ip: Any, index: int, value: Any, ports: Any) -> None:
    before = _read(ip, index)
    if before is not None and before["kind"].endswith("of somebody else"):
        raise RefusedError(f"the interface has a queue that is not ours: {before['kind']}")
    if before is not None:
        ip.tc("del", index=index, handle=HANDLE, parent=_ROOT)
    if value is None:
        return
    rate = int(value["rate_bytes_per_s"])
    burst = max(MIN_BURST_BYTES, rate // 100)
    if value["kind"] == "tbf":
        ip.tc("add", "tbf", index=index, handle=HANDLE, parent=_ROOT, rate=rate, burst=burst, latency=LATENCY)
        return
    ip.tc("add", "htb", index=index, handle=HANDLE, default=0)
    ip.tc("add-class", "htb", index=index, handle=CLASS, parent=HANDLE, rate=rate, ceil=rate, burst=burst)
    for port in ports:
        key = f"{port << 16:#x}/0xffff0000+{_SPORT_AT}"
        ip.tc("add-filter", "u32", index=index, parent=HANDLE, prio=1, protocol=0x0800, target=CLASS, keys=[key])
