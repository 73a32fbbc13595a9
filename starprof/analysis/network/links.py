"""Figures of the TCP sockets between places, and of the nodes' interfaces, over a window of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.causes.base import span_ns
from starprof.analysis.counters import Counters, numbers
from starprof.analysis.network.rails import nic_names, rail_of_address
from starprof.analysis.own_time import OwnTime

if TYPE_CHECKING:
    import pandas as pd

Pair = tuple[int, int]

MIN_BYTES_PER_SAMPLE = 20_000.0


@dataclass(frozen=True, slots=True)
class Link:
    """The slower direction between two places.

    Attributes:
        rtt_us: median smoothed round trip in the window.
        min_rtt_us: least round trip ever seen.
        bytes_per_s: median delivery rate in the window, NaN when the kernel did not tell.
        past_rtt_us: median round trip before the window, NaN without a past.
    """

    rtt_us: float
    min_rtt_us: float
    bytes_per_s: float
    past_rtt_us: float


@dataclass(frozen=True, slots=True)
class Interface:
    """A node's interfaces in the window; usual = before it, NaN without a past."""

    name: str
    rail: str
    overlimits_per_s: float
    usual_overlimits_per_s: float
    backlog_bytes: float
    errors_per_s: float
    usual_errors_per_s: float
    speed_mbit: float
    usual_speed_mbit: float


@dataclass(frozen=True, slots=True)
class Windows:
    """The slow steps and, when there are any, healthy ones, as columns [first, end)."""

    own: OwnTime
    slow: tuple[int, int]
    past: tuple[int, int] | None

    def slow_ns(self, row: int) -> tuple[float, float]:
        """The slow window in the clock of a rank's node."""
        return span_ns(self.own, row, *self.slow)

    def past_ns(self, row: int) -> tuple[float, float] | None:
        """The healthy window in the clock of a rank's node."""
        return None if self.past is None else span_ns(self.own, row, *self.past)


def links(windows: Windows, counters: Counters, by_rank: bool) -> Mapping[Pair, Link]:
    """Link figures per unordered pair of nodes, or of ranks where all are on one node."""
    if not (counters.has("tcp_sample") and counters.has("tcp")):
        return {}
    row_of_node = {info.node: row for row, info in enumerate(windows.own.infos)}
    gathered: dict[Pair, list[Link]] = {}
    for pair, node, rows in sockets(counters, by_rank):
        if node not in row_of_node:
            continue
        link = _figures(rows, counters, windows, row_of_node[node])
        if link is not None:
            gathered.setdefault(pair, []).append(link)
    # Each direction sees only its own queue: the slower one tells about the path.
    return {pair: max(found, key=lambda link: link.rtt_us) for pair, found in gathered.items()}


def rail_links(windows: Windows, counters: Counters, node: int) -> Mapping[Pair, Link]:
    """Link figures of a node's own sockets per interface that owns their address, numbered by `rail_of_links`.

    Sockets within the node do not leave it and tell nothing of its interfaces.
    """
    if not (counters.has("tcp_sample") and counters.has("tcp")):
        return {}
    number = {name: index for index, name in enumerate(rail_names(counters, node))}
    owners = rail_of_address(counters)
    names = counters.table("tcp")
    samples = counters.series("tcp_sample", ("node", "socket"))
    row = next(i for i, info in enumerate(windows.own.infos) if info.node == node)
    found: dict[Pair, Link] = {}
    keys = zip(numbers(names, "node"), numbers(names, "socket"), names["local"], names["remote"], strict=True)
    for of_node, socket, local, remote in keys:
        owner, far = owners.get(_address(str(local))), owners.get(_address(str(remote)))
        rows = samples.get((of_node, socket))
        if of_node != node or owner is None or far is None or far[0] == node or rows is None:
            continue
        link = _figures(rows, counters, windows, row)
        place = (number[owner[1]], number[owner[1]])
        if link is not None and (place not in found or link.rtt_us > found[place].rtt_us):
            found[place] = link
    return found


def rail_names(counters: Counters, node: int) -> list[str]:
    """Interfaces of a node that own an address."""
    return sorted({rail for of_node, rail in rail_of_address(counters).values() if of_node == node})


def sockets(counters: Counters, by_rank: bool) -> Iterator[tuple[Pair, int, pd.DataFrame]]:
    """(places, node of the socket, samples) of every socket whose two places are known and differ."""
    names = counters.table("tcp")
    samples = counters.series("tcp_sample", ("node", "socket"))
    columns = [names[c].tolist() for c in ("node", "socket", "rank", "local", "remote")]
    owner = {str(local): (int(node), int(rank)) for node, _, rank, local, _ in zip(*columns, strict=True)}
    node_of = _node_of_address(counters)
    for node, socket, rank, _, remote in zip(*columns, strict=True):
        far_node, far_rank = owner.get(str(remote), (node_of.get(_address(str(remote)), -1), -1))
        here, there = (int(rank), far_rank) if by_rank else (int(node), far_node)
        rows = samples.get((float(node), float(socket)))
        if rows is not None and here != there and min(here, there) >= 0:
            yield (min(here, there), max(here, there)), int(node), rows


def _node_of_address(counters: Counters) -> dict[str, int]:
    """Node that owns an IP address, by the interfaces' addresses; addresses of several nodes are left out."""
    table = counters.table("nic")
    result: dict[str, int] = {}
    shared: set[str] = set()
    for node, addresses in zip(table["node"].tolist(), table["addresses"].tolist(), strict=True):
        for item in str(addresses or "").split(","):
            address = item.strip().partition("/")[0]
            if result.setdefault(address, int(node)) != int(node):
                shared.add(address)
    return {address: node for address, node in result.items() if address and address not in shared}


def _address(end_point: str) -> str:
    return end_point.rpartition(":")[0].strip("[]")


def _figures(rows: pd.DataFrame, counters: Counters, windows: Windows, row: int) -> Link | None:
    """Figures of one socket; None when it carried nothing or was not seen in the window."""
    start, end = windows.slow_ns(row)
    times = numbers(rows, "mono_ns")
    inside = (times >= start) & (times <= end)
    rtt = numbers(rows, "rtt_us")[inside]
    if not np.isfinite(rtt).any() or _idle(rows, counters, start, end):
        return None
    past_rtt = float("nan")
    past = windows.past_ns(row)
    if past is not None:
        earlier = numbers(rows, "rtt_us")[(times >= past[0]) & (times <= past[1])]
        past_rtt = _median(earlier)
    return Link(
        _median(rtt),
        _least(numbers(rows, "min_rtt_us")),
        _median(numbers(rows, "delivery_bytes_per_s")[inside]),
        past_rtt,
    )


def _idle(rows: pd.DataFrame, counters: Counters, start: float, end: float) -> bool:
    """A socket that moved next to nothing (rendezvous, store) tells nothing about the path."""
    moved = [counters.grew(rows, column, start, end).amount for column in ("acked_bytes", "received_bytes")]
    return 0.0 < max(moved) < MIN_BYTES_PER_SAMPLE * len(rows) or max(moved) == 0.0


def interface(windows: Windows, counters: Counters, node: int) -> Interface | None:
    """The node's interface that held back or moved most; None when the node has no samples."""
    row = next(i for i, info in enumerate(windows.own.infos) if info.node == node)
    found = [
        _interface(windows, counters, row, (node, nic), rows)
        for (of_node, nic), rows in counters.series("nic_sample", ("node", "nic")).items()
        if of_node == node and not _is_loopback(counters, node, nic)
    ]
    return max(found, key=lambda face: (face.overlimits_per_s, face.backlog_bytes, face.errors_per_s), default=None)


def _interface(
    windows: Windows, counters: Counters, row: int, key: tuple[float, float], rows: pd.DataFrame
) -> Interface:
    slow, past = windows.slow_ns(row), windows.past_ns(row)

    def rate(columns: tuple[str, ...], span: tuple[float, float] | None) -> float:
        if span is None:
            return float("nan")
        rates = [counters.grew(rows, column, *span).per_second for column in columns]
        return float(np.nansum(rates))

    errors = ("rx_errors", "tx_errors")  # drops are counted for unknown protocols too: see `wire.loss`
    return Interface(
        name=_nic_name(counters, *key),
        rail=_rail_name(counters, *key),
        overlimits_per_s=rate(("qdisc_overlimits",), slow),
        usual_overlimits_per_s=rate(("qdisc_overlimits",), past),
        backlog_bytes=float(np.nan_to_num(counters.mean(rows, "qdisc_backlog_bytes", *slow))),
        errors_per_s=rate(errors, slow),
        usual_errors_per_s=rate(errors, past),
        speed_mbit=counters.mean(rows, "speed_mbit", *slow),
        usual_speed_mbit=float("nan") if past is None else counters.mean(rows, "speed_mbit", *past),
    )


def _nic_row(counters: Counters, node: float, nic: float) -> pd.DataFrame | None:
    return counters.series("nic", ("node", "nic")).get((float(node), float(nic)))


def _nic_name(counters: Counters, node: float, nic: float) -> str:
    named = _nic_row(counters, node, nic)
    return f"interface {nic:.0f}" if named is None else str(named["name"].iloc[-1])


def _rail_name(counters: Counters, node: float, nic: float) -> str:
    """Name of its bond where it belongs to one, else its own."""
    named = nic_names(counters).get((int(node), int(nic)))
    return f"interface {nic:.0f}" if named is None else named.rail


def _is_loopback(counters: Counters, node: float, nic: float) -> bool:
    named = _nic_row(counters, node, nic)
    return named is not None and str(named["type"].iloc[-1]) == "loopback"


def _median(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    seen = values[np.isfinite(values)]
    return float(np.median(seen)) if len(seen) else float("nan")


def _least(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    seen = values[np.isfinite(values) & (values > 0)]
    return float(seen.min()) if len(seen) else float("nan")
