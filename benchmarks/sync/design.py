"""Which jobs are run, and in which order: a fraction of all combinations, such that any prefix of it is balanced.

A cell is one job. Cells that are compared with each other, those of one block, run one after the other and have the
same seed. The first blocks answer whether the goals are reached; they run with all seeds first. Of what follows every
block is run once before any of them is run with another seed, in another order each time. Rarer modes come last, once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

SEEDS = 5
PERIOD = 8
"""Steps of a rank from one averaging of parameters to the next, where these are averaged."""
LIGHTHOUSE = "BENCH_LIGHTHOUSE"
"""Variable with the address at which torchft's ranks meet."""

Options = Callable[[int], dict[str, Any]]
"""Options of a mode for so many ranks."""

MODES: Mapping[str, Options] = MappingProxyType(
    {
        "ssgd": lambda _ranks: {},
        "m-sync": lambda ranks: {"m": ranks - 1},
        "m-sync-fold": lambda ranks: {"m": ranks - 1},
        "static-x": lambda ranks: {"x": ranks - 1},
        "dynamic-x": lambda ranks: {"groups": [list(range(ranks - 1)), [ranks - 1]]},
        "asgd": lambda _ranks: {},
        "deadline": lambda _ranks: {"after_s": 0.01},
        "local-sgd": lambda _ranks: {"period": PERIOD},
        "hierarchical": lambda ranks: {"groups": [list(range(ranks - 1)), [ranks - 1]], "period": PERIOD},
        "ring-x": lambda ranks: {"x": ranks - 1},
        "backup": lambda _ranks: {"b": 1},
        "ssp": lambda _ranks: {"s": 4},
        "lgc": lambda ranks: {"k": ranks - 1},
        "sync-switch": lambda _ranks: {"switch_at": 60},
        "eager": lambda _ranks: {},
        "rennala": lambda ranks: {"batch": ranks - 1},
        "ringmaster": lambda ranks: {"r": 4 * ranks},
    }
)
"""starprof's modes in rounds, with the options that they are judged with."""

PLAIN = "ddp"
"""DDP's native steps, recorded, without control."""
NATIVE = "native"
"""The same with control, which only looks on."""
OTHERS = ("post-local-sgd", "torchft")
"""What users may put in the place of DDP."""
SWITCHES = "switches"
"""A job that is moved from mode to mode while it runs."""


@dataclass(frozen=True)
class Cell:
    """One job.

    Attributes:
        task: what it trains.
        ranks: how many.
        slow: who is slow: a name of `compute.EMULATED` or `disturb.REAL`, or `busy`: nobody, and the compute is on
            the CPU.
        how: `PLAIN`, `NATIVE`, `SWITCHES`, a name of `OTHERS`, or one of starprof's modes.
        seed: of everything that is drawn.
    """

    task: str
    ranks: int
    slow: str
    how: str
    seed: int

    @property
    def name(self) -> str:
        """By which results are known."""
        return f"{self.task}-{self.ranks} {self.slow} {self.how} {self.seed}"


@dataclass(frozen=True)
class Block:
    """Cells that are compared."""

    task: str
    ranks: int
    slow: str
    how: tuple[str, ...]

    def cells(self, seed: int) -> list[Cell]:
        """In an order that the seed draws."""
        cells = [Cell(self.task, self.ranks, self.slow, how, seed) for how in self.how]
        random.Random(f"{self} {seed}").shuffle(cells)
        return cells


FIRST = (
    Block("digits", 4, "persistent", (PLAIN, "m-sync")),
    Block("digits", 4, "none", (PLAIN, NATIVE, "ssgd")),
    Block("digits", 4, "none", (SWITCHES,)),
    Block("digits", 4, "persistent", (SWITCHES,)),
    Block("digits", 2, "busy", (PLAIN, NATIVE, "ssgd")),
)
PASSING = (PLAIN, "m-sync", "m-sync-fold", "asgd")
THEN = (
    Block("digits", 4, "persistent", ("m-sync-fold", "static-x", "dynamic-x", "asgd", "deadline")),
    Block("digits", 4, "persistent", ("ssgd", "local-sgd", *OTHERS)),
    Block("digits", 4, "transient", PASSING),
    Block("digits", 4, "random", (*PASSING, "deadline")),
    Block("digits", 4, "rotating", (*PASSING, "local-sgd")),
    Block("digits", 4, "quota", (PLAIN, "m-sync")),
    Block("digits", 4, "hogs", (PLAIN, "m-sync")),
    Block("digits", 4, "shaped", (PLAIN, "m-sync")),
    Block("digits", 4, "stops", (PLAIN, "m-sync")),
    Block("digits", 8, "persistent", (PLAIN, "m-sync", "asgd")),
    Block("text", 4, "persistent", (PLAIN, "m-sync", "asgd", "local-sgd")),
)
AT_LAST = (
    Block("digits", 4, "persistent", (NATIVE, "hierarchical", "ring-x", "backup")),
    Block("digits", 4, "persistent", ("ssp", "lgc", "sync-switch", "eager")),
    Block("digits", 4, "persistent", ("rennala", "ringmaster")),
    Block("digits", 4, "none", ("m-sync", "asgd", *OTHERS)),
)
"""Once each, with the first seed."""


def design(seeds: int = SEEDS) -> Iterator[Cell]:
    """All cells, in the order in which they are run."""
    for seed in range(seeds):
        for block in FIRST:
            yield from block.cells(seed)
    for blocks, times in ((THEN, seeds), (AT_LAST, 1)):
        for seed in range(times):
            order = list(blocks)
            random.Random(seed).shuffle(order)
            for block in order:
                yield from block.cells(seed)
