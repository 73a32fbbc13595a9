"""Hosts whose pressure, memory or interfaces differ from the other hosts': facts worth a look, never a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import numpy as np

from starprof.analysis.causes.base import pct
from starprof.analysis.counters import growth, numbers
from starprof.analysis.gpu_peers import Observation

if TYPE_CHECKING:
    import pandas as pd

MIN_HOSTS = 3
PRESSURE_MORE, PRESSURE_FACTOR = 0.1, 2.0
SWAPPED_PAGES_PER_S = 100.0
LOST_SHARE, LOST_FACTOR = 1e-4, 10.0

_PRESSURES = {
    "psi_cpu_some_us": "tasks waited for a CPU",
    "psi_memory_some_us": "tasks stalled on memory",
    "psi_io_some_us": "tasks stalled on I/O",
}


def pressure(nodes: pd.DataFrame, hosts: Mapping[int, str]) -> list[Observation]:
    """Hosts where tasks waited much more than on the others, or that swapped.

    Args:
        nodes: table `node_sample`.
        hosts: names of nodes.
    """
    rates = _rates(nodes, [*_PRESSURES, "swap_in_pages"])
    result = []
    for column, words in _PRESSURES.items():
        shares = {node: rate[column] / 1e6 for node, rate in rates.items()}
        for node, share, usual in _outstanding(shares, PRESSURE_MORE, PRESSURE_FACTOR):
            text = f"On {_host(hosts, node)} {words} {pct(share)} of the time, on the other hosts {pct(usual)}."
            result.append(Observation(1.0 + share, text, f"see what else runs on {_host(hosts, node)}"))
    for node, rate in rates.items():
        if rate["swap_in_pages"] > SWAPPED_PAGES_PER_S:
            text = f"{_host(hosts, node)} read {rate['swap_in_pages']:.0f} pages a second back from swap."
            result.append(Observation(1.5, text, f"see what fills the memory of {_host(hosts, node)}"))
    return result


def interfaces(samples: pd.DataFrame, described: pd.DataFrame | None, hosts: Mapping[int, str]) -> list[Observation]:
    """Interfaces that are slower, or lose more packets, than those of the same name on the other hosts.

    Args:
        samples: table `nic_sample`.
        described: table `nic`.
        hosts: names of nodes.
    """
    if described is None or len(described) == 0:
        return []
    named = samples.merge(described[["node", "nic", "name"]], on=["node", "nic"])
    result = []
    for name, rows in named.groupby("name"):
        speeds = {int(cast("float", n)): float(v) for n, v in rows.groupby("node")["speed_mbit"].median().items()}
        known = np.array([v for v in speeds.values() if v > 0])
        usual = float(np.median(known)) if len(known) >= MIN_HOSTS else float("nan")
        for node, speed in speeds.items():
            if 0 < speed < 0.9 * usual:
                text = f"{name} of {_host(hosts, node)} runs at {speed:.0f} Mbit/s, on the other hosts at {usual:.0f}."
                result.append(Observation(usual / speed, text, f"look at the port of {name} on {_host(hosts, node)}"))
        result += _losses(str(name), rows, hosts)
    return result


def _losses(name: str, rows: pd.DataFrame, hosts: Mapping[int, str]) -> list[Observation]:
    lost = ["rx_dropped", "tx_dropped", "rx_errors", "tx_errors"]
    rates = _rates(rows, [*lost, "rx_packets", "tx_packets"])
    shares = {}
    for node, rate in rates.items():
        packets = np.nansum([rate["rx_packets"], rate["tx_packets"]])
        shares[node] = float(np.nansum([rate[c] for c in lost]) / packets) if packets > 0 else float("nan")
    return [
        Observation(
            1.2,
            f"{name} of {_host(hosts, node)} lost {100 * share:.3g} % of its packets, the other hosts' "
            f"{100 * usual:.3g} %.",
            f"look at the error counters of {name} on {_host(hosts, node)} and its switch port",
        )
        for node, share, usual in _outstanding(shares, LOST_SHARE, LOST_FACTOR)
    ]


def _outstanding(values: Mapping[int, float], more: float, factor: float) -> list[tuple[int, float, float]]:
    """(node, value, median of the others) of values well above the others'; nothing without enough hosts."""
    known = {node: value for node, value in values.items() if value == value}
    if len(known) < MIN_HOSTS:
        return []
    result = []
    for node, value in known.items():
        usual = float(np.median([v for other, v in known.items() if other != node]))
        if value > usual + more and value > factor * usual:
            result.append((node, value, usual))
    return result


def _rates(frame: pd.DataFrame, columns: list[str]) -> dict[int, dict[str, float]]:
    """Growth per second of counters by node; NaN where not told."""
    rates = {}
    for node, rows in frame.sort_values("mono_ns", kind="stable").groupby("node"):
        times = numbers(rows, "mono_ns")
        rates[int(cast("float", node))] = {
            column: growth(times, numbers(rows, column), times[0], times[-1]).per_second for column in columns
        }
    return rates


def _host(hosts: Mapping[int, str], node: int) -> str:
    return hosts.get(node) or f"node {node}"
