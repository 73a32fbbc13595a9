"""How much risk a chooser may take: the same trainings with its limits from loose to tight, and without momentum.

Every block has a seed of its own, for accuracy at the end differs by the seed more than by the place: with synchronous
steps one seed is one training, whoever is slow. Seeds are others than those of `design`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from blocks import PARITY, Block, Record, blocks_of, final, mean_over, ratio_to
from design import EXCHANGES, Cell
from methods import LIMITED
from scenarios import SYNTHETIC, TRACES

FIRST_SEED = 100
METHODS = {
    "perceptron plain": ("ssgd", "asgd", "star"),
    "perceptron": ("ssgd", "asgd", "star", "star fresh", *LIMITED),
    "cnn": ("ssgd", "asgd", "star", "star fresh", *LIMITED),
    "cnn plain": ("ssgd", "asgd", "star"),
}


def design(seeds: int) -> Iterator[Cell]:
    """All cells, block by block: places where anybody is slow in turn, with each task."""
    places = [(scenario, exchange) for scenario in (*SYNTHETIC, *TRACES) for exchange in EXCHANGES]
    places = [place for place in places if place[0] != "none"]
    random.Random(0).shuffle(places)
    for number in range(seeds):
        scenario, exchange = places[number % len(places)]
        for task, methods in METHODS.items():
            for method in methods:
                yield Cell(task, scenario, exchange, method, FIRST_SEED + number)


def tell(records: Sequence[Record]) -> Iterator[str]:
    """What each limit costs and saves, as a table; seeds are resampled for the intervals."""
    yield "| task | method | points | 95 % | blocks below -0.2 | time saved | 95 % | blocks | modes chosen |"
    yield "|" + "---|" * 9
    blocks = blocks_of(records)
    for task, methods in METHODS.items():
        those = [b for b in blocks if b.task == task]
        for method in methods[1:]:
            yield from _row(task, method, [b for b in those if method in b.by_method])


def _row(task: str, method: str, blocks: Sequence[Block]) -> Iterator[str]:
    points = mean_over(blocks, lambda b: _points(b, method), unit=lambda b: b.seed)
    ratio = mean_over(blocks, ratio_to(method, "ssgd"), log=True, unit=lambda b: b.seed)
    if points is None or ratio is None:
        return
    saved = ratio.map(lambda value: 100.0 * (1.0 - value))
    below = sum(_points(b, method) < -100.0 * PARITY - 1e-9 for b in blocks)
    modes = Counter(mode.partition(" ")[0] for b in blocks for mode in _modes(b, method))
    told = ", ".join(f"{mode} {count}" for mode, count in modes.most_common())
    yield (
        f"| {task} | {method} | {points.value:.2f} | {points.low:.2f} to {points.high:.2f} "
        f"| {below} | {saved.value:.0f} % | {saved.low:.0f} to {saved.high:.0f} % | {points.blocks} | {told} |"
    )


def _points(block: Block, method: str) -> float:
    return 100.0 * (final(block.by_method[method]) - final(block.by_method["ssgd"]))


def _modes(block: Block, method: str) -> set[str]:
    """All that it was in; with fixed modes that mode."""
    switches = block.by_method[method]["switches"]
    return {str(mode) for _, mode in switches} or {"ssgd" if method.startswith("star") else method}
