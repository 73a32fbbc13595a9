"""Which network interfaces there are, of which type, below which bond, and what changed about them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from starprof.collectors.base import NodeContext, Rows
from starprof.collectors.notes import Notes, stable_id
from starprof.collectors.procfile import ProcFile, optional, read_once
from starprof.collectors.rtnetlink import Link, Qdisc
from starprof.model.events import NIC_CHANGE
from starprof.model.tables.network import NIC

MAX_NICS = 32
"""Interfaces sampled at most; a container host may have hundreds of virtual ones, which come last."""

_BOND_KINDS = ("bond", "team")
_ORDER = {"ethernet": 0, "bond": 1, "bond-member": 2, "virtual": 3, "loopback": 4}
_SPEED_UNKNOWN = 0xFFFFFFFF  # -1 as some kernels print it
T = TypeVar("T")


class Route(Protocol):
    """What is asked of `rtnetlink.RouteSocket`."""

    def changed(self) -> bool:
        """Whether any link changed since the last call."""
        ...

    def links(self) -> list[Link]:
        """All interfaces."""
        ...

    def addresses(self) -> dict[int, list[str]]:
        """IP addresses per interface index."""
        ...

    def qdiscs(self) -> dict[int, Qdisc]:
        """Root queue discipline per interface index."""
        ...

    def close(self) -> None:
        """Close."""
        ...


@dataclass(slots=True)
class Nic:
    """One interface that is sampled."""

    id: int
    link: Link
    type: str
    master: str | None
    addresses: str
    speed_file: ProcFile | None
    speed_mbit: int | None = None
    qdisc: str | None = None

    def read_speed(self) -> int | None:
        """Link speed in Mbit/s, None when the driver does not know it."""
        if self.speed_file is None:
            return None
        try:
            mbit = int(self.speed_file.read())
        except (OSError, ValueError):
            return None
        return mbit if 0 < mbit < _SPEED_UNKNOWN else None

    def close(self) -> None:
        """Close its descriptor."""
        if self.speed_file is not None:
            self.speed_file.close()


class NicList:
    """The interfaces that are sampled, by name; says in the tables what comes, goes and changes.

    Args:
        context: whose /sys tells the speeds.
        route: routing netlink, None where it is refused: then /sys alone is asked.
        notes: where changes are noted.
    """

    def __init__(self, context: NodeContext, route: Route | None, notes: Notes) -> None:
        self._context = context
        self._route = route
        self._notes = notes
        self._left_out: set[str] = set()
        self.nics: dict[str, Nic] = {}

    def stale(self, names: Collection[str]) -> bool:
        """Whether interfaces came, went, or changed since the last refresh."""
        return set(names) != self.nics.keys() | self._left_out or (self._route is not None and self._route.changed())

    def refresh(self, names: Collection[str], mono_ns: int | None, rows: Rows) -> None:
        """Bring the list up to date with the `names` that have counters; `mono_ns` None: at the very start."""
        links = self._links(names, rows)
        by_index = {link.index: link for link in links.values()}
        kept = sorted(links.values(), key=lambda link: (_ORDER[_type(link, by_index)], link.index))
        if len(kept) > MAX_NICS:
            self._notes.unavailable(rows, "virtual", f"{len(kept)} interfaces, only {MAX_NICS} are sampled")
        wanted = {link.name: link for link in kept[:MAX_NICS]}
        self._left_out = set(names) - wanted.keys()
        for name, nic in list(self.nics.items()):
            if name not in wanted or wanted[name].index != nic.link.index:
                self._drop(name, mono_ns, rows)
        addresses = self._ask(lambda route: route.addresses(), rows) or {}
        qdiscs = self._ask(lambda route: route.qdiscs(), rows) or {}
        for name, link in wanted.items():
            fresh = self._describe(link, by_index, addresses, qdiscs)
            known = self.nics.get(name)
            if known is None:
                fresh.speed_file = self._speed_file(link)
                fresh.speed_mbit = fresh.read_speed()
                self._add(fresh, mono_ns, rows)
            else:
                self._update(known, fresh, mono_ns, rows)

    def qdiscs(self, mono_ns: int, rows: Rows) -> Mapping[int, Qdisc]:
        """Root queue disciplines by interface index now; notes kinds and speeds that changed."""
        found = self._ask(lambda route: route.qdiscs(), rows) or {}
        for nic in self.nics.values():
            speed_mbit = nic.read_speed()
            if speed_mbit != nic.speed_mbit:
                self._change(nic, f"speed {nic.speed_mbit or '?'} -> {speed_mbit or '?'} Mbit/s", mono_ns, rows)
                nic.speed_mbit = speed_mbit
            qdisc = found.get(nic.link.index)
            if qdisc is not None and qdisc.kind != nic.qdisc:
                self._note_qdisc(nic, qdisc.kind, mono_ns, rows)
        return found

    def close(self) -> None:
        """Close all descriptors."""
        for nic in self.nics.values():
            nic.close()

    def _links(self, names: Collection[str], rows: Rows) -> dict[str, Link]:
        found = self._ask(lambda route: route.links(), rows)
        if found is not None:
            return {link.name: link for link in found if link.name in names}
        base = self._context.sys / "class" / "net"
        return {
            name: Link(
                index=int(_text(base / name / "ifindex") or 0),
                name=name,
                up=_text(base / name / "operstate") == "up",
                loopback=name == "lo",
                kind=None if (base / name / "device").exists() else "virtual",
            )
            for name in names
        }

    def _ask(self, question: Callable[[Route], T], rows: Rows) -> T | None:
        """Answer of the routing socket, None with a reason when it refuses."""
        if self._route is None:
            return None
        try:
            return question(self._route)
        except OSError as error:
            self._notes.unavailable(rows, "link", f"routing netlink: {error.strerror or error}")
            return None

    def _describe(
        self,
        link: Link,
        by_index: Mapping[int, Link],
        addresses: Mapping[int, list[str]],
        qdiscs: Mapping[int, Qdisc],
    ) -> Nic:
        master = by_index.get(link.master) if link.master is not None else None
        qdisc = qdiscs.get(link.index)
        return Nic(
            id=stable_id("nic", link.name, link.index),
            link=link,
            type=_type(link, by_index),
            master=master.name if master is not None else None,
            addresses=",".join(addresses.get(link.index, [])),
            speed_file=None,
            qdisc=qdisc.kind if qdisc is not None else None,
        )

    def _speed_file(self, link: Link) -> ProcFile | None:
        """The speed attribute, unless /sys belongs to another namespace, where the name is another interface's."""
        base = self._context.sys / "class" / "net" / link.name
        return optional(base / "speed") if _text(base / "ifindex") == str(link.index) else None

    def _add(self, nic: Nic, mono_ns: int | None, rows: Rows) -> None:
        self.nics[nic.link.name] = nic
        self._write(nic, rows)
        if mono_ns is not None:
            self._change(nic, "appeared", mono_ns, rows)

    def _drop(self, name: str, mono_ns: int | None, rows: Rows) -> None:
        nic = self.nics.pop(name)
        nic.close()
        if mono_ns is not None:
            self._change(nic, "vanished", mono_ns, rows)
            self._notes.gap(rows, mono_ns, None, f"interface {name} vanished")

    def _update(self, nic: Nic, fresh: Nic, mono_ns: int | None, rows: Rows) -> None:
        if fresh.link.up != nic.link.up and mono_ns is not None:
            self._change(nic, f"link {'up' if fresh.link.up else 'down'}", mono_ns, rows)
        before = (nic.type, nic.master, nic.addresses)
        nic.link, nic.type, nic.master, nic.addresses = fresh.link, fresh.type, fresh.master, fresh.addresses
        if before != (nic.type, nic.master, nic.addresses):
            self._write(nic, rows)

    def _note_qdisc(self, nic: Nic, kind: str, mono_ns: int, rows: Rows) -> None:
        self._change(nic, f"root qdisc {nic.qdisc} -> {kind}", mono_ns, rows)
        nic.qdisc = kind
        self._write(nic, rows)

    def _change(self, nic: Nic, what: str, mono_ns: int, rows: Rows) -> None:
        self._notes.event(rows, mono_ns, NIC_CHANGE, f"{nic.link.name}: {what}")

    def _write(self, nic: Nic, rows: Rows) -> None:
        """Write the dictionary row, again after a change: the last row of an id is the valid one."""
        rows.add(NIC, [self._context.node, nic.id, nic.link.name, nic.type, nic.master, nic.qdisc, nic.addresses])


def _type(link: Link, by_index: Mapping[int, Link]) -> str:
    """Type as in table `nic`."""
    if link.loopback:
        return "loopback"
    if link.kind in _BOND_KINDS:
        return "bond"
    master = by_index.get(link.master) if link.master is not None else None
    if master is not None and master.kind in _BOND_KINDS:
        return "bond-member"
    return "virtual" if link.kind is not None or link.ipoib else "ethernet"


def _text(path: Path) -> str | None:
    """Content of a small attribute, None when it is not there."""
    try:
        return read_once(path).decode(errors="replace").strip()
    except OSError:
        return None
