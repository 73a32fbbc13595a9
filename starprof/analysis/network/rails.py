"""Which of a node's interfaces serves which rank, from what was recorded; never guessed where it leaves a choice.

Most telling first: the local addresses of the rank's own sockets; what NCCL_IB_HCA, NCCL_SOCKET_IFNAME or
GLOO_SOCKET_IFNAME leave to choose from; the interface nearest to the rank's GPU in the PCI tree, which is what NCCL
takes unless it is told otherwise; and interfaces whose bytes are just those of one rank's sockets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.counters import Counters, numbers
from starprof.analysis.machine import Device, Machine, machines
from starprof.model.rundata import GPU_PCI, RankInfo, RunData

if TYPE_CHECKING:
    import pandas as pd

PHYSICAL = ("ethernet", "bond-member", "infiniband")
"""Interfaces that count each byte once: bonds and virtual ones count again what passes below them."""

USED = 0.01
"""Share of the busiest interface's bytes from which on an interface takes part in the job."""

RDMA = 0.5
ON_ONE = 0.8
SAME_BYTES, OTHER_BYTES = 0.1, 0.3
MEASURED, INFERRED = 1.0, 0.8

Moved = dict[tuple[int, str], tuple[str, float]]
"""Type and bytes of each interface, by node and name."""

Socket = tuple[int, int, str, float]
"""Node, rank, local end and bytes of a socket."""


@dataclass(frozen=True, slots=True)
class Rail:
    """What serves one rank.

    Attributes:
        nics: the interface (a bond counts as one); several when it is one of them; empty when nothing is known.
        how: why, in words.
        certainty: 1 where it was measured or set, less where it follows from the place of the cards.
    """

    nics: tuple[str, ...] = ()
    how: str = ""
    certainty: float = 0.0

    @property
    def known(self) -> bool:
        """One interface is certain enough."""
        return len(self.nics) == 1


@dataclass(frozen=True)
class Rails:
    """The map of a run.

    Attributes:
        of_rank: what serves each rank.
        of_node: interfaces that carry the job's data, per node.
    """

    of_rank: Mapping[int, Rail]
    of_node: Mapping[int, tuple[str, ...]]

    def several(self, node: int) -> bool:
        """The node has more than one interface that carries data."""
        return len(self.of_node.get(node, ())) > 1

    def users(self, infos: Sequence[RankInfo], node: int, nic: str) -> tuple[int, ...]:
        """Ranks of a node that an interface serves; empty when that is not certain for all of its ranks.

        Args:
            infos: the ranks that are looked at.
            node: node of the interface.
            nic: its name.
        """
        here = [info.rank for info in infos if info.node == node]
        rails = {rank: self.of_rank.get(rank, Rail()) for rank in here}
        if not all(rail.known or (rail.nics and nic not in rail.nics) for rail in rails.values()):
            return ()
        return tuple(sorted(rank for rank, rail in rails.items() if rail.nics == (nic,)))


def rails(run: RunData, counters: Counters) -> Rails:
    """Build the map."""
    told = machines(run)
    sockets, moved = _socket_bytes(counters), moved_bytes(counters)
    by_socket = _by_sockets(counters, sockets)
    of_node = _carrying(moved)
    of_rank: dict[int, Rail] = {}
    for node, nics in of_node.items():
        here = [info for info in run.ranks if info.node == node]
        found = {info.rank: _rail(info, nics, told.get(node, Machine()), counters, by_socket) for info in here}
        of_rank |= _by_bytes(sockets, moved, node, nics, found)
    return Rails(of_rank, of_node)


def _rail(
    info: RankInfo,
    nics: tuple[str, ...],
    machine: Machine,
    counters: Counters,
    by_socket: Mapping[int, Mapping[str, float]],
) -> Rail:
    sent = {nic: amount for nic, amount in by_socket.get(info.rank, {}).items() if nic in nics}
    if sent and max(sent.values()) >= ON_ONE * sum(sent.values()) > 0:
        nic = max(sent, key=lambda name: sent[name])
        return Rail((nic,), "its sockets are bound to the address of that interface", MEASURED)
    if len(nics) == 1:
        return Rail(nics, "no other interface carries data", MEASURED)
    name, spec = _choice(info, nics)
    chosen = tuple(nic for nic in nics if selects(spec, nic)) if spec else nics
    if spec and len(chosen) == 1:
        return Rail(chosen, f"{name} is {spec}", MEASURED)
    return _nearest(info, chosen or nics, machine, counters)


def _choice(info: RankInfo, nics: tuple[str, ...]) -> tuple[str, str]:
    """The variable that chooses among these interfaces and its value, "" where it was not set."""
    names = ["NCCL_IB_HCA"] if "/" in nics[0] else ["NCCL_SOCKET_IFNAME"]
    if info.backend == "gloo":
        names = ["GLOO_SOCKET_IFNAME"]
    for name in names:
        value = info.detail.get(name)
        if isinstance(value, str) and value:
            return name, value
    return "", ""


def selects(spec: str, nic: str) -> bool:
    """Whether a value of NCCL_IB_HCA or NCCL_SOCKET_IFNAME leaves an interface to use.

    A list of beginnings of names, of whole names after "=", all but those after "^"; InfiniBand names may end in
    ":PORT" (NCCL's documentation of these variables).
    """
    excluded = spec.startswith("^")
    rest = spec.removeprefix("^")
    exact = rest.startswith("=")
    device, _, port = nic.partition("/")
    fits = False
    for part in rest.removeprefix("=").split(","):
        name, _, wanted = part.strip().partition(":")
        same = device == name if exact else bool(name) and device.startswith(name)
        fits |= same and (not wanted or not port or wanted == port)
    return fits != excluded


def _nearest(info: RankInfo, nics: tuple[str, ...], machine: Machine, counters: Counters) -> Rail:
    gpu = gpu_device(info, machine, counters)
    cards = {nic: machine.card(nic) for nic in nics}
    if gpu is None or not all(cards.values()):
        return Rail()
    ranked = {nic: _nearness(gpu, card) for nic, card in cards.items() if card is not None}
    best = max(ranked.values())
    if best == (0, False):
        return Rail()
    near = tuple(nic for nic in nics if ranked[nic] == best)
    place = "below the same PCI bridge" if best[0] > 1 else "at the same root" if best[0] else "at the same NUMA node"
    return Rail(near, f"nearest to the GPU, {place}: inferred, not measured", INFERRED)


def gpu_device(info: RankInfo, machine: Machine, counters: Counters) -> Device | None:
    """The card of a rank's GPU, None when its place is not known."""
    return machine.gpu(gpu_pci(info, counters))


def gpu_pci(info: RankInfo, counters: Counters) -> str:
    """PCI address of a rank's GPU, "" when not known."""
    gpu = counters.gpus.get((info.node, info.gpu_uuid or ""))
    told = info.detail.get(GPU_PCI)
    return (gpu.pci if gpu is not None else "") or (told if isinstance(told, str) else "")


def _nearness(gpu: Device, card: Device) -> tuple[int, bool]:
    """Bridges that both hang below, and whether they are at the same NUMA node."""
    shared = 0
    for a, b in zip(gpu.path, card.path, strict=False):
        if a != b:
            break
        shared += 1
    return shared, gpu.numa is not None and gpu.numa == card.numa


def _carrying(moved: Moved) -> dict[int, tuple[str, ...]]:
    """Interfaces of each node that carry the job's data: RDMA ports where these move most of the bytes."""
    kinds: dict[int, dict[str, dict[str, float]]] = {}
    for (node, name), (kind, amount) in moved.items():
        of_kind = kinds.setdefault(node, {}).setdefault("rdma" if kind == "infiniband" else "socket", {})
        of_kind[name] = of_kind.get(name, 0.0) + amount
    result = {}
    for node, by_kind in kinds.items():
        totals = {kind: sum(amounts.values()) for kind, amounts in by_kind.items()}
        rdma = totals.get("rdma", 0.0) > 0 and totals["rdma"] >= RDMA * sum(totals.values())
        amounts = by_kind.get("rdma" if rdma else "socket", {})
        most = max(amounts.values(), default=0.0)
        if most > 0:
            result[node] = tuple(sorted(name for name, amount in amounts.items() if amount >= USED * most))
    return result


def moved_bytes(counters: Counters) -> Moved:
    """Type and bytes of each physical interface over the run, by node and name; members of a bond count for it."""
    if not (counters.has("nic_sample") and counters.has("nic")):
        return {}
    samples = counters.table("nic_sample")
    grown = _grown(samples, ["node", "nic"], ["rx_bytes", "tx_bytes"])
    result: Moved = {}
    for (node, nic), named in nic_names(counters).items():
        amount = grown.get((node, nic))
        if amount is not None and named.type in PHYSICAL:
            known = result.get((node, named.rail), (named.type, 0.0))
            result[node, named.rail] = (named.type, known[1] + amount)
    return result


@dataclass(frozen=True, slots=True)
class Named:
    """One row of table `nic`: `rail` is its bond's name where it belongs to one."""

    name: str
    type: str
    rail: str
    addresses: tuple[str, ...]


def nic_names(counters: Counters) -> dict[tuple[int, int], Named]:
    """The last row of each interface, by node and id."""
    table = counters.table("nic")
    texts = [[v if isinstance(v, str) else "" for v in table[c]] for c in ("name", "type", "master", "addresses")]
    ids = zip(numbers(table, "node"), numbers(table, "nic"), strict=True)
    return {
        (int(node), int(nic)): Named(
            name,
            kind,
            master if kind == "bond-member" and master else name,
            tuple(a.strip().partition("/")[0] for a in addresses.split(",") if a.strip()),
        )
        for (node, nic), name, kind, master, addresses in zip(ids, *texts, strict=True)
        if np.isfinite((node, nic)).all()
    }


def _grown(samples: pd.DataFrame, keys: list[str], columns: list[str]) -> dict[tuple[int, int], float]:
    """Bytes that counters grew by from their least to their largest value, summed over columns."""
    frame = samples[keys + columns].astype("float64")
    groups = frame.groupby(keys, sort=False)
    grown = (groups[columns].max() - groups[columns].min()).sum(axis=1)
    return {(int(key[0]), int(key[1])): float(amount) for key, amount in zip(grown.index, grown.tolist(), strict=True)}


def rail_of_address(counters: Counters) -> dict[str, tuple[int, str]]:
    """Node and interface that own an IP address; addresses that several nodes have are left out."""
    owners: dict[str, set[tuple[int, str]]] = {}
    for (node, _), named in nic_names(counters).items():
        for address in named.addresses:
            owners.setdefault(address, set()).add((node, named.rail))
    return {address: next(iter(places)) for address, places in owners.items() if len(places) == 1}


def _by_sockets(counters: Counters, sockets: Sequence[Socket]) -> dict[int, dict[str, float]]:
    """Bytes of each rank's sockets by the interface that owns their local address."""
    owners = rail_of_address(counters)
    result: dict[int, dict[str, float]] = {}
    for _, rank, local, amount in sockets:
        owner = owners.get(local.rpartition(":")[0].strip("[]"))
        if owner is not None:
            mine = result.setdefault(rank, {})
            mine[owner[1]] = mine.get(owner[1], 0.0) + amount
    return result


def _socket_bytes(counters: Counters) -> list[Socket]:
    """(node, rank, local end, bytes) of the ranks' sockets."""
    if not (counters.has("tcp_sample") and counters.has("tcp")):
        return []
    grown = _grown(counters.table("tcp_sample"), ["node", "socket"], ["acked_bytes", "received_bytes"])
    names = counters.table("tcp")
    keys = zip(*(numbers(names, c) for c in ("node", "socket", "rank")), names["local"], strict=True)
    return [
        (int(node), int(rank), str(local), grown.get((int(node), int(socket)), 0.0))
        for node, socket, rank, local in keys
        if np.isfinite((node, socket, rank)).all() and rank >= 0
    ]


def _by_bytes(
    sockets: Sequence[Socket], bytes_of: Moved, node: int, nics: tuple[str, ...], found: dict[int, Rail]
) -> dict[int, Rail]:
    """Ranks without a known interface whose sockets moved just the bytes of one interface, each another one."""
    if all(rail.known for rail in found.values()) or len(nics) < len(found):
        return found
    mine: dict[int, float] = {}
    for of_node, rank, _, amount in sockets:
        if of_node == node:
            mine[rank] = mine.get(rank, 0.0) + amount
    moved = {nic: amount for (of_node, nic), (_, amount) in bytes_of.items() if of_node == node}
    result = dict(found)
    for rank in found:
        off = sorted((abs(moved[nic] / mine[rank] - 1.0), nic) for nic in nics) if mine.get(rank, 0.0) > 0 else []
        if len(off) > 1 and off[0][0] <= SAME_BYTES and off[1][0] >= OTHER_BYTES and not found[rank].known:
            result[rank] = Rail((off[0][1],), "its sockets moved as many bytes as that interface: inferred", INFERRED)
    taken = [rail.nics for rank, rail in result.items() if rail != found[rank]]
    twice = {nics for nics in taken if taken.count(nics) > 1}
    return {rank: found[rank] if rail.nics in twice and rail != found[rank] else rail for rank, rail in result.items()}
