"""Which node makes runs slow: generated fleets with known bad nodes, and how often the wrong one is blamed.

A fleet has nodes with small constant differences; a run takes a job's time, the factor of its slowest node and noise of
its own (normal, or with heavy tails), and some runs are slow for reasons of theirs. Runs are placed at random, or in
fixed racks of which some always run together.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from starprof.analysis.placement import Placement, RunOn, judge


@dataclass(frozen=True)
class Fleet:
    """A fleet's runs and the truth."""

    runs: tuple[RunOn, ...]
    bad: frozenset[str]
    confounded: bool


def fleet(seed: int, bad: int, *, runs: int | None = None, paired: bool = False) -> Fleet:
    """Draw a fleet.

    Args:
        seed: of everything.
        bad: how many of its nodes are slow.
        runs: how many runs; drawn when None.
        paired: nodes run in fixed pairs.
    """
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(8, 64))
    size = int(rng.integers(2, max(3, nodes // 3)))
    count = int(rng.integers(20, 200)) if runs is None else runs
    noise, heavy = rng.uniform(0.005, 0.05), rng.random() < 0.5
    names = [f"n{i:03d}" for i in range(nodes)]
    factor = np.exp(rng.normal(0, 0.003, nodes))
    culprits = rng.choice(nodes, bad, replace=False)
    factor[culprits] *= rng.uniform(1.1, 2.0, bad)
    jobs = rng.uniform(0.2, 5.0, int(rng.integers(1, 4)))
    made = []
    for i in range(count):
        if paired:
            pairs = rng.choice(nodes // 2, max(size // 2, 1), replace=False)
            members = np.concatenate([2 * pairs, 2 * pairs + 1])
        else:
            members = rng.choice(nodes, size, replace=False)
        draw = rng.standard_t(3) / np.sqrt(3) if heavy else rng.standard_normal()
        odd = rng.uniform(1.1, 1.6) if rng.random() < 0.03 else 1.0
        job = int(rng.integers(len(jobs)))
        seconds = jobs[job] * factor[members].max() * np.exp(noise * draw) * odd
        made.append(RunOn(f"run{i}", float(seconds), frozenset(names[m] for m in members), f"job{job}"))
    return Fleet(tuple(made), frozenset(names[c] for c in culprits), paired)


def graded(fleet: Fleet, found: Placement) -> Counter[str]:
    """What is right and wrong with an answer."""
    slow = {n.node for n in found.nodes if n.status == "slow"}
    doubtful = {n for pair in found.undecidable for n in pair.nodes}
    cleared = {n.node for n in found.nodes if n.status == "cleared"}
    return Counter(
        fleets=1,
        wrong=bool(slow - fleet.bad),
        wrong_set=any(fleet.bad.isdisjoint(pair.nodes) for pair in found.undecidable),
        bad=len(fleet.bad),
        named=len(slow & fleet.bad),
        in_doubt=len(fleet.bad & doubtful),
        cleared_bad=len(cleared & fleet.bad),
    )


SETS: tuple[tuple[str, int, dict[str, object]], ...] = (
    ("none bad", 0, {}),
    ("one bad", 1, {}),
    ("two bad", 2, {}),
    ("four bad", 4, {}),
    ("always in pairs, one bad", 1, {"paired": True}),
    ("always in pairs, none bad", 0, {"paired": True}),
    ("8 runs, one bad", 1, {"runs": 8}),
    ("8 runs, none bad", 0, {"runs": 8}),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Print one row a set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleets", type=int, default=100, help="fleets per set")
    wanted = parser.parse_args(argv)
    heads = ("fleets", "wrong node", "wrong set", "named", "in doubt", "wrongly cleared")
    print(f"{'set':28}", *(f"{head:>{max(len(head), 6)}}" for head in heads))
    for number, (name, bad, how) in enumerate(SETS):
        total: Counter[str] = Counter()
        for i in range(wanted.fleets):
            made = fleet(10_000 * number + i, bad, **how)  # type: ignore[arg-type]
            total += graded(made, judge(made.runs, seed=i))
        of = max(total["bad"], 1)
        print(
            f"{name:28} {total['fleets']:6} {total['wrong']:10} {total['wrong_set']:9} "
            f"{total['named'] / of:6.0%} {total['in_doubt'] / of:8.0%} {total['cleared_bad']:15}"
        )


if __name__ == "__main__":
    main()
