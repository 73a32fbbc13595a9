"""Results, block by block: time to SSGD's accuracy, and ratios of it with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

Record = dict[str, Any]

WITHIN = 0.005
"""Of SSGD's accuracy at the end: what is reached when the time to accuracy is over."""
PARITY = 0.002
"""Of accuracy at the end may be given up for time; on 500 pictures one picture."""
LAST, STEADY = 5, 3
"""Evaluations that the accuracy at the end is the median of, and those whose median must reach a target."""
RESAMPLES = 4000
HEALTHY = ("none", "pai-2")
"""Where nobody is slow, or only a little, and all the time."""


@dataclass(frozen=True)
class Block:
    """Trainings that differ in the method only.

    Attributes:
        task, scenario, exchange: see `design.Cell`.
        seed: likewise; of a pooled one how many seeds.
        by_method: their records.
    """

    task: str
    scenario: str
    exchange: str
    seed: int
    by_method: dict[str, Record]

    @property
    def target(self) -> float:
        """Accuracy to be reached."""
        return final(self.by_method["ssgd"]) - WITHIN

    def time_s(self, method: str) -> float:
        """To the target; infinite: it was not reached, or the method is not there."""
        record = self.by_method.get(method)
        return math.inf if record is None else time_to(record, self.target)

    def least_s(self, method: str) -> float:
        """The same, but where the target was not reached, the time that was spent on it."""
        reached_s = self.time_s(method)
        return reached_s if math.isfinite(reached_s) else float(self.by_method[method]["end_s"])


def final(record: Record) -> float:
    """Accuracy at the end."""
    return float(median(accuracy for _, accuracy in record["curve"][-LAST:]))


def time_to(record: Record, target: float) -> float:
    """Until evaluations are at the target, one that happens to be not counting."""
    curve = record["curve"]
    for place in range(len(curve) - STEADY + 1):
        if median(accuracy for _, accuracy in curve[place : place + STEADY]) >= target:
            return float(curve[place][0])
    return math.inf


def blocks_of(records: Iterable[Record]) -> list[Block]:
    """All blocks in which synchronous steps were run."""
    found: dict[tuple[str, str, str, int], dict[str, Record]] = {}
    for record in records:
        if record.get("curve"):
            key = (record["task"], record["scenario"], record["exchange"], record["seed"])
            found.setdefault(key, {})[record["method"]] = record
    return [Block(*key, methods) for key, methods in found.items() if "ssgd" in methods]


def straggling(blocks: Iterable[Block], exchange: str | None = None) -> list[Block]:
    """Those in which somebody is slow."""
    return [b for b in blocks if b.scenario not in HEALTHY and exchange in {None, b.exchange}]


def pooled(blocks: Iterable[Block]) -> list[Block]:
    """A block for each task and place, its curves the means over the seeds: one seed's time to accuracy is mostly luck.

    A method counts where it was run with every seed that `star` was run with; where that is none, with every one.
    """
    by_place: dict[tuple[str, str, str], list[Block]] = {}
    for block in blocks:
        by_place.setdefault((block.task, block.scenario, block.exchange), []).append(block)
    found = []
    for (task, scenario, exchange), those in by_place.items():
        chosen = [block for block in those if "star" in block.by_method] or those
        methods = set.intersection(*(set(block.by_method) for block in chosen))
        by_method = {name: mean_record([block.by_method[name] for block in chosen]) for name in sorted(methods)}
        found.append(Block(task, scenario, exchange, len(chosen), by_method))
    return found


def mean_record(records: Sequence[Record]) -> Record:
    """Evaluation by evaluation, and figure by figure."""
    length = min(len(record["curve"]) for record in records)
    curves = np.array([record["curve"][:length] for record in records], float)
    told = {
        name: float(np.mean([record[name] or 0.0 for record in records]))
        for name in ("end_s", "straggling", "stale_mean", "choice_ms")
    }
    return {**records[0], **told, "curve": curves.mean(axis=0).tolist()}


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval of 95 %, over so many blocks."""

    value: float
    low: float
    high: float
    blocks: int

    def map(self, change: Callable[[float], float]) -> Estimate:
        """The same of another quantity, which may run the other way."""
        ends = sorted([change(self.low), change(self.high)])
        return Estimate(change(self.value), ends[0], ends[1], self.blocks)


def place_of(block: Block) -> Hashable:
    """Who is slow, and how gradients travel."""
    return block.scenario, block.exchange


def mean_over(
    blocks: Sequence[Block],
    value: Callable[[Block], float | None],
    *,
    log: bool = False,
    unit: Callable[[Block], Hashable] = place_of,
) -> Estimate | None:
    """Mean over places, then blocks; with `log` the geometric one. None: there is nothing.

    Places are resampled as a whole, or what else `unit` tells: seeds of one place are no independent cases.
    """
    by_unit: dict[Hashable, list[float]] = {}
    for block in blocks:
        found = value(block)
        if found is not None and math.isfinite(found):
            by_unit.setdefault(unit(block), []).append(math.log(found) if log else found)
    if not by_unit:
        return None
    means = np.array([np.mean(values) for values in by_unit.values()])
    draws = np.random.default_rng(0).integers(len(means), size=(RESAMPLES, len(means)))
    low, high = np.percentile(means[draws].mean(axis=1), [2.5, 97.5])
    ends = Estimate(float(means.mean()), float(low), float(high), sum(map(len, by_unit.values())))
    return ends.map(math.exp) if log else ends


def ratio_to(method: str, other: str) -> Callable[[Block], float | None]:
    """Time of a method over that of another one.

    Where one of them did not reach the target, the time that it spent stands for it, which favours it; where neither
    did, there is nothing to be compared.
    """

    def ratio(block: Block) -> float | None:
        if not {method, other} <= block.by_method.keys():
            return None
        if not any(math.isfinite(block.time_s(name)) for name in (method, other)):
            return None
        return block.least_s(method) / block.least_s(other)

    return ratio


def reached(blocks: Sequence[Block], method: str) -> float:
    """Share of the blocks in which a method reached the target."""
    there = [block for block in blocks if method in block.by_method]
    return sum(math.isfinite(block.time_s(method)) for block in there) / len(there) if there else math.nan


def keeps_accuracy(block: Block, method: str) -> bool:
    """Whether it has SSGD's accuracy at the end, too."""
    return final(block.by_method[method]) >= final(block.by_method["ssgd"]) - PARITY - 1e-9


def fixed_in(block: Block) -> Iterator[str]:
    """Methods of the block that stay in one mode and can be had in running jobs."""
    for method in block.by_method:
        if not method.startswith("star") and method not in {"zeno++", "lb-bsp", "drop-compute"}:
            yield method
