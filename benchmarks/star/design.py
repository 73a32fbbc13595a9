"""Which cells are run, and in which order: a fraction of all combinations, such that any prefix of it is balanced.

A cell is one simulated training. The cells of a block differ in the method only and have the same seed, so the same
workers, batches and troubles. Every place (who is slow, and how gradients travel) comes once with each seed. It keeps
its task for some seeds, so that what a mode takes there can be told from luck, and has the next one afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from methods import CHOOSERS, FIXED
from scenarios import SYNTHETIC, TRACES
from tasks import TASKS

SEEDS = 12
SEEDS_OF_A_TASK = 4
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


STAGES: Sequence[Callable[[str], bool]] = (
    lambda method: method in FIRST or method.startswith("m-sync "),
    lambda method: method in CHOOSERS,
    lambda _method: True,
)
"""What the claims and the regret need comes first, then the ablations, then baselines that no claim names."""
FIRST = (
    *("ssgd", "star", "star fresh", "star learned"),
    *("asgd", "sync-switch", "lb-bsp", "lgc", "zeno++", "m-sync-fold", "static-x", "ring-x", "rennala"),
)


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
    for turn in range(0, seeds, SEEDS_OF_A_TASK):
        for stage in range(len(STAGES)):
            for seed in range(turn, min(seeds, turn + SEEDS_OF_A_TASK)):
                order = list(enumerate(places))
                random.Random(seed).shuffle(order)
                for place, (scenario, exchange) in order:
                    # Neither who is slow nor the exchange may go with one task.
                    task = tasks[(place // 2 + 2 * (place % 2) + turn // SEEDS_OF_A_TASK) % len(tasks)]
                    for method in methods_for(scenario, exchange):
                        if next(at for at, of in enumerate(STAGES) if of(method)) == stage:
                            yield Cell(task, scenario, exchange, method, seed)
