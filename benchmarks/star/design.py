"""Which cells are run, and in which order: a fraction of all combinations, such that any prefix of it is balanced.

A cell is one simulated training. The cells of a block differ in the method only and have the same seed, so the same
workers, batches and troubles. Every place (who is slow, and how gradients travel) comes once with each seed, with the
tasks in turn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from methods import CHOOSERS, FIXED
from scenarios import SYNTHETIC, TRACES
from tasks import TASKS

SEEDS = 6
EXCHANGES = ("ps", "ring")
M_OF = (0.5, 0.625, 0.75, 0.875, 0.9)
"""Shares of the workers that m-sync waits for."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One training.

    Attributes:
        task: a name of `TASKS`.
        scenario: who is slow.
        exchange: `ps` or `ring`.
        method: a name of `FIXED` or `CHOOSERS`, or `m-sync` with its m.
        seed: of all that is drawn.
    """

    task: str
    scenario: str
    exchange: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """By which results are known."""
        return f"{self.task} | {self.scenario} | {self.exchange} | {self.method} | {self.seed}"


def workers_in(scenario: str) -> int:
    """How many there are."""
    return 10 if scenario in TRACES else 8


FIRST = ("ssgd", "star", "star fresh", "asgd", "sync-switch", "lb-bsp", "lgc", "zeno++")
"""What the claims name; the rest follows when these are there for all places."""


def methods_for(scenario: str, exchange: str) -> list[str]:
    """All that is compared there."""
    count = workers_in(scenario)
    sweep = sorted({max(1, min(count - 1, round(share * count))) for share in M_OF})
    fixed = [name for name in FIXED if name != ("ring-x" if exchange == "ps" else "static-x")]
    return [*fixed, *(f"m-sync {m}" for m in sweep), *CHOOSERS]


def design(seeds: int = SEEDS) -> Iterator[Cell]:
    """All cells, in the order in which they are run."""
    tasks = list(TASKS)
    places = [(scenario, exchange) for scenario in (*SYNTHETIC, *TRACES) for exchange in EXCHANGES]
    for seed in range(seeds):
        order = list(enumerate(places))
        random.Random(seed).shuffle(order)
        for first in (True, False):
            for place, (scenario, exchange) in order:
                # Neither who is slow nor the exchange may go with one task.
                task = tasks[(place // 2 + 2 * (place % 2) + seed) % len(tasks)]
                for method in methods_for(scenario, exchange):
                    if (method in FIRST) is first:
                        yield Cell(task, scenario, exchange, method, seed)
