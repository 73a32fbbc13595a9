"""Labelled synthetic runs: every fault the generator knows, faint to gross, healthy ones, and two faults at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from draws import catalogue, innocents, jobs
from draws.drawn import SLOWEST, Draw, Drawn, Maker, Need
from label import Label
from truth import Case, Truth

from starprof.analysis.synthetic import SyntheticRun

SURE_SLOWDOWN = 1.2
"""From here on a fault of a quiet run must be found; fainter ones, or more noise, count for recall only."""

SURE_STEPS = 50
LEAST_SLOWDOWN = 1.02
FAINT = (1.04, 1.09)
FAINT_SHARE = 0.25
WHOLE_NODE_SHARE = 0.25
KINDS = {"healthy": 0.22, "nobody": 0.13, "wire": 0.14, "two": 0.11, "rank": 0.40}


@dataclass(frozen=True)
class Recipe:
    """A run to make, its right answer, and what it is."""

    run: SyntheticRun
    truth: Truth
    label: Label


def cases(count: int, ranks: tuple[int, int], first_seed: int = 0) -> Iterator[Case]:
    """Random recipes of jobs with least to most ranks, the same for the same seed."""
    for seed in range(first_seed, first_seed + count):
        made = recipe(seed, ranks)
        yield Case(f"seed {seed}: {_words(made)}", made.truth, made.run.data, made.label)


def recipe(seed: int, ranks: tuple[int, int]) -> Recipe:
    """One run and its right answer."""
    rng = np.random.default_rng([21, seed])
    kind = str(rng.choice(list(KINDS), p=list(KINDS.values())))
    if kind == "healthy":
        return _recorded(jobs.job(rng, seed, ranks, Need()), (), "healthy", rng)
    if kind == "two":
        return _two(rng, seed, ranks)
    faults = {"nobody": catalogue.NOBODYS, "wire": catalogue.WIRES, "rank": catalogue.RANKS}[kind]
    name = str(rng.choice(list(faults)))
    need, make = faults[name]
    run = jobs.job(rng, seed, ranks, need)
    drawn = make(_draw(rng, run, need, _slowdown(rng)))
    return _recorded(run, (drawn,), name, rng)


def _draw(
    rng: np.random.Generator, run: SyntheticRun, need: Need, slowdown: float, among: Sequence[int] | None = None
) -> Draw:
    """Whom a fault hits, how much, and when."""
    rank = int(rng.choice(run.ranks if among is None else np.asarray(among)))
    hit: tuple[int, ...] = (rank,)
    if need.whole_node and run.nodes >= 4 and among is None and rng.random() < WHOLE_NODE_SHARE:
        hit = tuple(int(r) for r in np.flatnonzero(run.node_of == run.node_of[rank]))
    return Draw(run, hit, slowdown, jobs.when(rng, run.steps, need), rng)


def _slowdown(rng: np.random.Generator) -> float:
    if rng.random() < FAINT_SHARE:
        return float(rng.uniform(*FAINT))
    return float(np.exp(rng.uniform(np.log(LEAST_SLOWDOWN), np.log(SLOWEST))))


def _two(rng: np.random.Generator, seed: int, ranks: tuple[int, int]) -> Recipe:
    """Two faults at once: of two ranks, of one node, of one rank, or of a rank and of something else."""
    run = jobs.job(rng, seed, ranks, Need(gpus=True, nodes=2, infiniband=False))
    where = str(rng.choice(["two ranks", "one node", "one rank", "rank and network", "rank and nobody's"]))
    first = _of(rng, run, catalogue.RANKS, None)
    (rank,) = first.ranks
    node = np.flatnonzero(run.node_of == run.node_of[rank])
    if where == "rank and network":
        second = _of(rng, run, catalogue.WIRES, None)
    elif where == "rank and nobody's":
        second = _of(rng, run, catalogue.NOBODYS, None)
    elif where == "one rank" or len(node) == 1:
        second = _of(rng, run, catalogue.RANKS, (rank,))
    elif where == "one node":
        second = _of(rng, run, catalogue.RANKS, [int(r) for r in node if r != rank])
    else:
        second = _of(rng, run, catalogue.RANKS, [r for r in range(run.ranks) if r != rank])
    return _recorded(run, (first, second), f"two: {where}", rng)


def _of(
    rng: np.random.Generator,
    run: SyntheticRun,
    faults: dict[str, tuple[Need, Maker]],
    among: Sequence[int] | None,
) -> Drawn:
    """One of the faults that are possible in a job as it is."""
    possible = [(need, make) for need, make in faults.values() if _fits(run, need)]
    need, make = possible[int(rng.integers(len(possible)))]
    return make(_draw(rng, run, replace(need, whole_node=False), _slowdown(rng), among))


def _fits(run: SyntheticRun, need: Need) -> bool:
    return (
        need.gpus in (None, run.gpus)
        and need.nodes <= run.nodes
        and need.infiniband in (None, run.infiniband)
        and need.stages in (0, run.stages)
    )


def _recorded(run: SyntheticRun, drawn: tuple[Drawn, ...], fault: str, rng: np.random.Generator) -> Recipe:
    """The run with its faults and with counters as they are recorded, and what can be told from them."""
    guilty = {rank for each in drawn for rank in each.ranks | each.tolerated}
    nodes = {int(run.node_of[rank]) for rank in guilty}
    odd = tuple(innocents.oddities(run, nodes, rng)) if not any(f.recipe for f in drawn) else ()
    recording = jobs.recording(rng, run)
    slowest = max((each.slowdown for each in drawn), default=1.0)
    changes = {name: value for each in drawn for name, value in each.recipe.items()}
    faults = (*odd, *(fault for each in drawn for fault in each.faults))
    whole = replace(run, faults=faults, recording=recording, rate_hz=jobs.rate_hz(run, slowest), **changes)
    seen = tuple(_without(each, recording.absent) for each in drawn)
    return Recipe(whole, _truth(run, seen), _label(run, seen, fault))


def _without(drawn: Drawn, absent: tuple[str, ...]) -> Drawn:
    """What can be told where some of the evidence was not recorded."""
    if not set(drawn.evidence) & set(absent):
        return drawn
    known = drawn.causes | drawn.places
    if not drawn.blind:
        return replace(drawn, causes=known)
    # Without the counters of the network nobody can be told, but who is told must be right.
    return replace(
        drawn,
        causes=known,
        verdicts=drawn.verdicts | drawn.blind,
        ranks=frozenset(),
        when=None,
        tolerated=drawn.tolerated | drawn.ranks,
    )


def _truth(run: SyntheticRun, drawn: tuple[Drawn, ...]) -> Truth:
    if not drawn:
        return Truth(frozenset({"none"}))
    blamed = [each for each in drawn if each.ranks]
    about = blamed or list(drawn)
    verdicts = frozenset({"straggler"}) if blamed else frozenset().union(*(each.verdicts for each in drawn))
    alone = about[0].when if len(drawn) == 1 else None
    return Truth(
        verdicts,
        ranks=frozenset().union(*(each.ranks for each in blamed)),
        tolerated=frozenset().union(*(each.tolerated for each in drawn)),
        causes=frozenset().union(*(each.causes | each.places for each in (drawn if blamed else about))),
        onset=None if alone is None or alone.shape == "intermittent" else alone.start,
        sure=len(drawn) == 1 and jobs.quiet(run) and all(_clear(each) for each in drawn),
    )


def _clear(drawn: Drawn) -> bool:
    """Large enough that missing it is wrong; work that is nobody's fault always is."""
    lasts = drawn.when is None or drawn.when.steps >= SURE_STEPS
    return lasts and (drawn.slowdown >= SURE_SLOWDOWN or drawn.slowdown == 1.0)


def _label(run: SyntheticRun, drawn: tuple[Drawn, ...], fault: str) -> Label:
    right: dict[int, frozenset[str]] = {}
    for each in drawn:
        for rank in each.ranks | each.tolerated:
            right[rank] = right.get(rank, frozenset()) | each.causes
    whens = [each.when.shape for each in drawn if each.when is not None]
    return Label(
        fault,
        shape=" and ".join(whens),
        steps=max((each.when.steps for each in drawn if each.when is not None), default=0),
        slowdown=min((each.slowdown for each in drawn if each.ranks or len(drawn) == 1), default=1.0),
        quiet=jobs.quiet(run),
        right=right,
        less=frozenset().union(*(each.places for each in drawn)),
    )


def _words(made: Recipe) -> str:
    run, label = made.run, made.label
    return (
        f"{run.ranks} ranks, {run.steps} steps, cv {run.cv:.3f}, spread {run.spread:.4f}, {label.fault} "
        f"{label.shape} {label.slowdown:.2f}x of {sorted(made.truth.ranks)[:9]}, {', '.join(sorted(made.truth.causes))}"
    )
