"""GPUs under load that differ from their peers, or from themselves before: facts worth a look, never a verdict.

Slowdown is measured from time. A clock, a reason bit or a counter says what holds a GPU down, not that the job is
slower for it: idle GPUs are not looked at, and what all peers show alike is how this hardware works.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.causes.base import pct
from starprof.analysis.counters import numbers

if TYPE_CHECKING:
    import pandas as pd

BUSY_PCT = 50.0
BUSY_POWER_SHARE = 0.3
MIN_SAMPLES = 5
SEPARATION = 5.0
"""Robust standard deviations of the peers."""

LESS_POWER, LESS_CLOCK, HOTTER_C, LOWER_LIMIT = 0.15, 0.07, 8.0, 0.03
CLOCK_FELL = 0.15
HOT_C = 80.0
NEAR_LIMIT = 0.9
POWER_CAP, THERMAL, SLOWDOWN = 0x04, 0x20 | 0x40, 0x08 | 0x80


@dataclass(frozen=True, slots=True)
class Observation:
    """Something worth a look.

    Attributes:
        weight: how far it is from normal, to put the most telling first.
        text: one sentence with the numbers.
        check: what to compare or try, without naming a part that nobody has looked at.
    """

    weight: float
    text: str
    check: str


@dataclass(frozen=True)
class Gpus:
    """GPUs of a file, each with medians of its samples under load; arrays of shape (G,), NaN = not told.

    Attributes:
        busy: samples under load.
        capped, hot, braked: shares of those in which the power cap, heat, or the hardware held the clock down.
    """

    names: tuple[str, ...]
    products: tuple[str, ...]
    busy: Floats
    power_w: Floats
    limit_w: Floats
    clock_mhz: Floats
    temperature_c: Floats
    pcie_gen: Floats
    pcie_width: Floats
    capped: Floats
    hot: Floats
    braked: Floats
    early_clock_mhz: Floats
    late_clock_mhz: Floats

    @property
    def judged(self) -> Bools:
        """Which were under load long enough, shape (G,)."""
        return self.busy >= MIN_SAMPLES


def gpus(samples: pd.DataFrame, described: pd.DataFrame | None, hosts: dict[int, str]) -> Gpus:
    """Medians under load of every GPU of a `gpu_sample` frame.

    Args:
        samples: table `gpu_sample`.
        described: table `gpu`, if there is one.
        hosts: names of nodes.
    """
    known = _described(described)
    parts: dict[str, list[float]] = {name: [] for name in _NUMBERS}
    names, products = [], []
    for ids, rows in samples.sort_values("mono_ns", kind="stable").groupby(["node", "gpu"]):
        node, gpu = cast("tuple[float, float]", ids)
        key = (int(node), int(gpu))
        label, product = known.get(key, (str(key[1]), ""))
        host = hosts.get(key[0], "")
        names.append(f"GPU {label}" + (f" on {host}" if host else ""))
        products.append(product)
        for name, value in _under_load(rows).items():
            parts[name].append(value)
    return Gpus(tuple(names), tuple(products), **{name: np.array(values, float) for name, values in parts.items()})


_NUMBERS = tuple(name for name in Gpus.__dataclass_fields__ if name not in {"names", "products"})


def _described(described: pd.DataFrame | None) -> dict[tuple[int, int], tuple[str, str]]:
    """Index and product by (node, id)."""
    if described is None or len(described) == 0:
        return {}
    known = {}
    columns = (described[name] for name in ("node", "gpu", "nvml_index", "uuid", "name"))
    for node, gpu, index, uuid, product in zip(*columns, strict=True):
        label = str(int(index)) if index is not None and index == index else str(uuid or int(gpu))
        known[int(node), int(gpu)] = (label, product if isinstance(product, str) else "")
    return known


def _under_load(rows: pd.DataFrame) -> dict[str, float]:
    util, power, limit = (numbers(rows, name) for name in ("util_pct", "power_w", "power_limit_w"))
    load = np.where(np.isnan(util), power >= BUSY_POWER_SHARE * limit, util >= BUSY_PCT)
    values = {name: numbers(rows, name)[load] for name in ("temperature_c", "pcie_gen", "pcie_width", "sm_clock_mhz")}
    reasons = numbers(rows, "clock_event_reasons")[load]
    clock = values["sm_clock_mhz"]
    return {
        "busy": float(load.sum()),
        "power_w": _median(power[load]),
        "limit_w": _median(limit[load]),
        "clock_mhz": _median(clock),
        "temperature_c": _median(values["temperature_c"]),
        "pcie_gen": _median(values["pcie_gen"]),
        "pcie_width": _median(values["pcie_width"]),
        "capped": _share(reasons, POWER_CAP),
        "hot": _share(reasons, THERMAL),
        "braked": _share(reasons, SLOWDOWN),
        "early_clock_mhz": _sustained(clock[: len(clock) // 2]),
        "late_clock_mhz": _median(clock[len(clock) // 2 :]),
    }


def _sustained(values: Floats) -> float:
    """The highest median of `MIN_SAMPLES` samples in a row: what a GPU reached, not what it peaked at."""
    seen = values[~np.isnan(values)]
    if len(seen) < MIN_SAMPLES:
        return float("nan")
    return float(np.median(np.lib.stride_tricks.sliding_window_view(seen, MIN_SAMPLES), axis=1).max())


def _median(values: Floats) -> float:
    seen = values[~np.isnan(values)]
    return float(np.median(seen)) if len(seen) else float("nan")


def _share(reasons: Floats, bits: int) -> float:
    """Share of the samples in which one of the bits was set; NaN when none was told."""
    seen = reasons[~np.isnan(reasons)]
    return float(((seen.astype(np.int64) & bits) != 0).mean()) if len(seen) else float("nan")


def against_peers(found: Gpus) -> list[Observation]:
    """GPUs that draw less power, clock lower, are hotter, or have a narrower link than busy GPUs of their product."""
    result = []
    for product in dict.fromkeys(found.products):
        same = np.array([p == product for p in found.products]) & found.judged
        members = np.flatnonzero(same)
        if len(members) == 2:
            result += _of_two(found, members)
            continue
        for member in members if len(members) > 2 else ():
            observation = _of_one(found, int(member), members[members != member])
            if observation is not None:
                result.append(observation)
    return result


def _of_two(found: Gpus, members: np.ndarray[tuple[int], np.dtype[np.intp]]) -> list[Observation]:
    """With two GPUs neither is the rule."""
    differences = []
    for label, values, least in (("W", found.power_w, 0.3), ("MHz", found.clock_mhz, 0.15)):
        first, second = values[members]
        if abs(first - second) > least * max(first, second):
            differences.append(f"{first:.0f} {label} against {second:.0f} {label}")
    if not differences:
        return []
    names = " and ".join(found.names[m] for m in members)
    text = f"{names} differ under load ({', '.join(differences)}); which of the two is the odd one can't be told."
    return [Observation(1.0, text, f"compare {names} with a third GPU of their kind under the same load")]


def _of_one(found: Gpus, gpu: int, peers: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Observation | None:
    """How a GPU differs from at least two peers, in one sentence."""
    less = {
        "power_w": _differs(found.power_w, gpu, peers, LESS_POWER, below=True),
        "clock_mhz": _differs(found.clock_mhz, gpu, peers, LESS_CLOCK, below=True),
        "limit_w": _differs(found.limit_w, gpu, peers, LOWER_LIMIT, below=True),
        "pcie_gen": _differs(found.pcie_gen, gpu, peers, 0.0, below=True),
        "pcie_width": _differs(found.pcie_width, gpu, peers, 0.0, below=True),
    }
    held = {name: _more_often(getattr(found, name), gpu, peers) for name in ("hot", "braked")}
    capped = _more_often(found.capped, gpu, peers) and less["power_w"]
    hotter = _hotter(found.temperature_c, gpu, peers)
    if not (any(less.values()) or any(held.values())):
        return None
    words = [
        _compared(found.power_w, gpu, peers, "{:.0f} W", less["power_w"]),
        _compared(found.limit_w, gpu, peers, "a power limit of {:.0f} W", less["limit_w"]),
        _compared(found.clock_mhz, gpu, peers, "an SM clock of {:.0f} MHz", less["clock_mhz"]),
        _compared(found.temperature_c, gpu, peers, "{:.0f} C", hotter or held["hot"] or less["power_w"]),
        _compared(found.pcie_gen, gpu, peers, "PCIe generation {:.0f}", less["pcie_gen"]),
        _compared(found.pcie_width, gpu, peers, "{:.0f} PCIe lanes", less["pcie_width"]),
        _often(found.capped, gpu, peers, "the power cap held its clock down", bool(capped)),
        _often(found.hot, gpu, peers, "heat held its clock down", held["hot"]),
        _often(found.braked, gpu, peers, "the hardware slowed it down", held["braked"]),
    ]
    facts = "; ".join(w for w in words if w)
    text = f"{found.names[gpu]} differs from its {len(peers)} busy peers under load: {facts}."
    return Observation(_weight(found, gpu, peers), text, _check(found.names[gpu], less, held, bool(capped)))


def _differs(
    values: Floats, gpu: int, peers: np.ndarray[tuple[int], np.dtype[np.intp]], least_share: float, *, below: bool
) -> bool:
    """Whether a value lies outside what the peers' spread explains, and by more than a share of their median."""
    known = values[peers][~np.isnan(values[peers])]
    if np.isnan(values[gpu]) or len(known) < 2:
        return False
    centre = float(np.median(known))
    spread = 1.4826 * float(np.median(np.abs(known - centre)))
    distance = centre - values[gpu] if below else values[gpu] - centre
    return bool(distance > max(SEPARATION * spread, least_share * abs(centre)))


def _hotter(temperature_c: Floats, gpu: int, peers: np.ndarray[tuple[int], np.dtype[np.intp]]) -> bool:
    usual = _median(temperature_c[peers])
    return bool(temperature_c[gpu] > usual + HOTTER_C) and _differs(temperature_c, gpu, peers, 0.0, below=False)


def _more_often(share: Floats, gpu: int, peers: np.ndarray[tuple[int], np.dtype[np.intp]]) -> bool:
    """Whether a reason holds the clock in a fifth of the samples more than at the peers."""
    usual = _median(share[peers])
    return bool(share[gpu] > (0.0 if np.isnan(usual) else usual) + 0.2)


def _compared(
    values: Floats, gpu: int, peers: np.ndarray[tuple[int], np.dtype[np.intp]], words: str, told: bool
) -> str:
    if not told or np.isnan(values[gpu]):
        return ""
    return f"{words.format(values[gpu])} (peers {_median(values[peers]):.0f})"


def _often(share: Floats, gpu: int, peers: np.ndarray[tuple[int], np.dtype[np.intp]], words: str, told: bool) -> str:
    if not told:
        return ""
    usual = _median(share[peers])
    others = f", its peers' in {pct(usual)}" if usual == usual else ""
    return f"{words} in {pct(float(share[gpu]))} of the samples{others}"


def _weight(found: Gpus, gpu: int, peers: np.ndarray[tuple[int], np.dtype[np.intp]]) -> float:
    ratios = [_median(v[peers]) / float(v[gpu]) for v in (found.clock_mhz, found.power_w) if v[gpu] > 0]
    return max(1.0, *(r for r in ratios if r == r), 1.0)


def _check(name: str, less: dict[str, bool], held: dict[str, bool], capped: bool) -> str:
    if held["hot"]:
        return f"compare inlet temperature and fans of {name} with a peer's under the same load"
    if capped or less["limit_w"]:
        return (
            f"compare enforced, default and maximum power limit and the clock event reasons of {name} with a peer's "
            "(nvidia-smi -q -d POWER,PERFORMANCE), then exchange the two and see whether the cap moves with the GPU"
        )
    if less["pcie_gen"] or less["pcie_width"]:
        return f"compare the PCIe link of {name} with a peer's under load, and its slot's maximum"
    return f"run the same load on {name} and a peer, exchange them, and see whether the difference moves"


def over_time(found: Gpus) -> list[Observation]:
    """GPUs whose clock fell under load from the first half of their samples to the second, at less than full power."""
    result = []
    fell = 1.0 - found.late_clock_mhz / np.where(found.early_clock_mhz > 0, found.early_clock_mhz, np.nan)
    for gpu in np.flatnonzero(found.judged & (fell > CLOCK_FELL)):
        share = found.power_w[gpu] / found.limit_w[gpu]
        heat = found.hot[gpu] > 0.2 or (np.isnan(found.hot[gpu]) and found.temperature_c[gpu] >= HOT_C)
        if share >= NEAR_LIMIT and not heat:
            continue
        words = [f"from {found.early_clock_mhz[gpu]:.0f} to {found.late_clock_mhz[gpu]:.0f} MHz under load"]
        if found.temperature_c[gpu] == found.temperature_c[gpu]:
            words.append(f"at {found.temperature_c[gpu]:.0f} C")
        if found.hot[gpu] > 0:
            words.append(f"heat held it down in {pct(float(found.hot[gpu]))} of the samples")
        if share == share:
            cap = ", so the power cap is not what holds it" if share < 0.8 else ""
            words.append(f"it drew {pct(float(share))} of its power limit{cap}")
        name = found.names[gpu]
        check = f"look at cooling of {name}'s host" if heat else f"look at the clock event reasons of {name} under load"
        result.append(Observation(1.0 / (1.0 - fell[gpu]), f"The SM clock of {name} fell {'; '.join(words)}.", check))
    return result
