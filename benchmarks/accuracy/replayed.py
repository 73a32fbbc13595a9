"""Labelled traces of pipeline-parallel jobs, operation by operation, for the judge that replays them.

Layouts from one rank to 8 pipelines of 8 stages, tensor and expert parallelism, 2 to 32 micro-batches, 5 to 100 steps,
jitter of 1 to 10 %, ranks that differ by up to 1 %; and in some of them clocks that are apart, or a rank whose trace is
missing. On these: slow ranks (for good, for a while, in one kind of pass), slow links (for good, for a
while, one way), slow interfaces and collectives, late data, heavy stages, unequal sequences, two faults at once,
nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from truth import Case, Truth, answer

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.synthetic.op_job import MS, OpJob, Place, lengths

SURE_FACTOR, SURE_NOISE, SURE_STEPS, SURE_PIPELINES = 1.3, 0.05, 10, 3
"""Where a fault must be found; fainter ones, more noise, or fewer peers count for recall only."""
MOST_PASSES = 40_000
"""Size of the largest trace: places x micro-batches x steps."""
CLOCKS_SHARE, MISSING_SHARE = 0.2, 0.08
COMPUTE = ("gpu-compute", "forward-compute", "backward-compute")


def cases(count: int, first_seed: int = 0) -> Iterator[Case]:
    """Random recipes, the same for the same seed."""
    for seed in range(first_seed, first_seed + count):
        job, truth, words = recipe(seed)
        yield Case(f"seed {seed}: {words}, {_layout(job)}", truth, partial(job.data))


def recipe(seed: int) -> tuple[OpJob, Truth, str]:
    """One job, its right answer, and what is wrong with it."""
    rng = np.random.default_rng([14, seed])
    draw = _Draw(rng, _base(rng, seed))
    weights = np.array([weight for weight, _ in SCENARIOS])
    make = SCENARIOS[int(rng.choice(len(SCENARIOS), p=weights / weights.sum()))][1]
    job, truth = make(draw)
    if len(draw.places) == 1:
        truth = answer("inconclusive")
    words = make.__name__.strip("_").replace("_", " ")
    if rng.random() < CLOCKS_SHARE:
        spread = float(np.exp(rng.uniform(np.log(0.1 * MS), np.log(50 * MS))))
        job = replace(job, clock_us={place: float(rng.uniform(-spread, spread)) for place in draw.places})
        words += f", clocks {spread / MS:.1f} ms apart"
    if rng.random() < MISSING_SHARE and len(draw.places) > 2:
        gone = draw.places[int(rng.integers(len(draw.places)))]
        job = replace(job, missing=(gone,))
        # Whoever is named must be to blame, but with a rank unseen nobody needs to be.
        truth = replace(truth, ranks=truth.ranks - {job.rank(*gone)}, sure=False)
        words += f", rank {job.rank(*gone)} missing"
    return job, truth, words


def _base(rng: np.random.Generator, seed: int) -> OpJob:
    """A healthy job."""
    pipelines = int(rng.choice([1, 2, 2, 3, 4, 4, 5, 6, 8, 8]))
    stages = int(rng.choice([1, 2, 2, 3, 4, 4, 5, 6, 8]))
    micro_batches = int(np.exp(rng.uniform(np.log(2), np.log(33))))
    most = max(5, MOST_PASSES // (pipelines * stages * micro_batches))
    steps = min(most, int(np.exp(rng.uniform(np.log(5), np.log(101)))))
    experts = [e for e in (2, 4, 8) if pipelines % e == 0]
    spread = float(rng.uniform(0.0, 0.01))
    places = [(d, p) for d in range(pipelines) for p in range(stages)]
    return OpJob(
        pipelines=pipelines,
        stages=stages,
        micro_batches=micro_batches,
        steps=steps,
        chunks=2 if stages > 1 and rng.random() < 0.1 else 1,
        tensor=int(rng.choice([1, 1, 2, 4, 8])),
        experts=int(rng.choice(experts)) if experts and rng.random() < 0.2 else 1,
        noise=float(np.exp(rng.uniform(np.log(0.01), np.log(0.1)))),
        slow={place: float(np.exp(spread * rng.standard_normal())) for place in places},
        transfer_us=float(np.exp(rng.uniform(np.log(0.3), np.log(5)))) * MS,
        seed=seed,
    )


@dataclass
class _Draw:
    """What scenarios draw from."""

    rng: np.random.Generator
    job: OpJob

    @property
    def places(self) -> list[Place]:
        return [(d, p) for d in range(self.job.pipelines) for p in range(self.job.stages)]

    def place(self) -> Place:
        return self.places[int(self.rng.integers(len(self.places)))]

    def factor(self, least: float, most: float) -> float:
        return float(np.exp(self.rng.uniform(np.log(least), np.log(most))))

    def span(self) -> tuple[int, int]:
        """A while: at least a fifth of the run, not all of it."""
        steps = self.job.steps
        length = int(self.rng.integers(max(1, steps // 5), max(2, steps // 2 + 1)))
        first = int(self.rng.integers(1, max(2, steps - length)))
        return first, min(first + length, steps)

    def slow(self, **changes: Any) -> OpJob:
        return replace(self.job, **changes)

    def sure(self, factor: float, steps: int | None = None) -> bool:
        long = (self.job.steps if steps is None else steps) >= SURE_STEPS
        plain = factor >= SURE_FACTOR and self.job.noise <= SURE_NOISE and self.job.pipelines >= SURE_PIPELINES
        return plain and long and self.job.micro_batches >= 4


def _during(first: int, end: int, factor: float, otherwise: float = 1.0) -> Callable[[Ints], Floats]:
    return lambda steps: np.where((steps >= first) & (steps < end), factor, otherwise)


def _named(draw: _Draw, *places: Place, causes: tuple[str, ...], sure: bool, onset: int | None = None) -> Truth:
    """These ranks; where there is no peer nobody can be named for sure."""
    ranks = tuple(draw.job.rank(*place) for place in places)
    if draw.job.pipelines == 1:
        return answer("inconclusive", "none", "structural", tolerated=frozenset(ranks), sure=False)
    return answer("straggler", ranks=ranks, causes=causes, sure=sure, onset=None if onset is None else 100 + onset)


def _healthy(draw: _Draw) -> tuple[OpJob, Truth]:
    return draw.job, answer("none")


def _slow_rank(draw: _Draw) -> tuple[OpJob, Truth]:
    place, factor = draw.place(), draw.factor(1.05, 3.0)
    job = draw.slow(slow={**draw.job.slow, place: factor})
    return job, _named(draw, place, causes=COMPUTE, sure=draw.sure(factor))


def _slow_for_a_while(draw: _Draw) -> tuple[OpJob, Truth]:
    place, factor, (first, end) = draw.place(), draw.factor(1.1, 3.0), draw.span()
    job = draw.slow(slow={**draw.job.slow, place: _during(first, end, factor)})
    sure = draw.sure(factor, end - first)
    return job, _named(draw, place, causes=COMPUTE, sure=sure, onset=first)


def _slow_from_a_step_on(draw: _Draw) -> tuple[OpJob, Truth]:
    place, factor, (first, _) = draw.place(), draw.factor(1.1, 3.0), draw.span()
    job = draw.slow(slow={**draw.job.slow, place: _during(first, draw.job.steps, factor)})
    return job, _named(draw, place, causes=COMPUTE, sure=draw.sure(factor, draw.job.steps - first), onset=first)


def _slow_one_way(draw: _Draw) -> tuple[OpJob, Truth]:
    place, factor = draw.place(), draw.factor(1.1, 3.0)
    way = "forward" if draw.rng.random() < 0.5 else "backward"
    job = draw.slow(**{f"slow_{way}": {place: factor}})
    # A third (two thirds) of the pass is slow.
    whole = 1 + (factor - 1) * (1 / 3 if way == "forward" else 2 / 3)
    return job, _named(draw, place, causes=(f"{way}-compute",), sure=draw.sure(whole))


def _heavy_stage(draw: _Draw) -> tuple[OpJob, Truth]:
    stage, factor = int(draw.rng.integers(draw.job.stages)), draw.factor(1.05, 2.0)
    times = tuple(100 * MS * (factor if p == stage else 1.0) for p in range(draw.job.stages))
    job = draw.slow(forward_us=times)
    if draw.job.stages == 1:
        return job, answer("none")
    if draw.job.pipelines == 1:
        return job, answer("inconclusive", "structural", "none", sure=False)
    return job, answer("structural", causes=("pipeline-stage",), sure=draw.sure(factor))


def _unequal_sequences(draw: _Draw) -> tuple[OpJob, Truth]:
    spread = draw.factor(0.05, 0.5)
    job = draw.slow(cost=lengths(spread))
    sure = draw.sure(2.0) and spread >= 3 * draw.job.noise and spread > 0.15 and draw.job.pipelines * spread > 0.5
    return job, answer("workload-skew", causes=("sequence-length",), sure=sure)


def _unequal_sequences_and_a_slow_rank(draw: _Draw) -> tuple[OpJob, Truth]:
    place, factor = draw.place(), draw.factor(1.2, 3.0)
    job = draw.slow(cost=lengths(draw.factor(0.1, 0.4)), slow={**draw.job.slow, place: factor})
    truth = answer("straggler", ranks=(job.rank(*place),), sure=draw.sure(factor / 1.3) and draw.job.stages > 2)
    return job, truth


def _always_longer_sequences(draw: _Draw) -> tuple[OpJob, Truth]:
    """One pipeline gets more work in all steps: its ranks are not to blame."""
    pipeline, factor, spread = int(draw.rng.integers(draw.job.pipelines)), draw.factor(1.1, 1.6), draw.factor(0.15, 0.4)

    def cost(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
        more: Floats = np.where(np.arange(shape[1]) == pipeline, factor, 1.0)[None, :, None]
        return lengths(spread)(rng, shape) * more

    return draw.slow(cost=cost), answer("workload-skew", "inconclusive", "none", sure=False)


def _link(draw: _Draw) -> tuple[Place, float, Truth]:
    """A link, how slow, and the answer."""
    job = draw.job
    link = (int(draw.rng.integers(job.pipelines)), int(draw.rng.integers(max(1, job.stages - 1))))
    factor = draw.factor(5 * MS, 200 * MS) * MS / job.transfer_us / MS
    if job.stages == 1:
        return link, factor, answer("none")
    ends = sorted((job.rank(*link), job.rank(link[0], link[1] + 1)))
    # It costs something for sure where it holds up each pass of the pipeline.
    plain = draw.sure(2.0) and factor * job.transfer_us > 60 * MS and job.stages > 2
    says = (f"ranks {ends[0]} and {ends[1]}",) if plain else ()
    return link, factor, answer("shared", causes=("network-path",), sure=plain, says=says)


def _slow_link(draw: _Draw) -> tuple[OpJob, Truth]:
    link, factor, truth = _link(draw)
    return draw.slow(links={link: max(1.0, factor)}), truth


def _link_slow_for_a_while(draw: _Draw) -> tuple[OpJob, Truth]:
    (link, factor, truth), (first, end) = _link(draw), draw.span()
    job = draw.slow(links={link: _during(first, end, max(1.0, factor))})
    if draw.job.stages > 1 and end - first < SURE_STEPS:
        truth = replace(truth, sure=False, says=())
    return job, truth


def _link_slow_one_way(draw: _Draw) -> tuple[OpJob, Truth]:
    link, factor, truth = _link(draw)
    way = "forward" if draw.rng.random() < 0.5 else "backward"
    if draw.job.stages > 1 and factor * draw.job.transfer_us < 100 * MS:
        truth = replace(truth, sure=False, says=())
    return draw.slow(link_ways={(way, *link): max(1.0, factor)}), truth


def _slow_interface(draw: _Draw) -> tuple[OpJob, Truth]:
    """All links of a rank are slow."""
    if draw.job.stages < 3:
        return _slow_link(draw)
    pipeline, stage = int(draw.rng.integers(draw.job.pipelines)), int(draw.rng.integers(1, draw.job.stages - 1))
    factor = max(1.0, draw.factor(20 * MS, 200 * MS) / draw.job.transfer_us)
    job = draw.slow(links={(pipeline, stage - 1): factor, (pipeline, stage): factor})
    rank = job.rank(pipeline, stage)
    if draw.job.pipelines == 1:
        return job, answer("straggler", "shared", "inconclusive", "none", tolerated=frozenset({rank}), sure=False)
    plain = draw.sure(2.0) and factor * job.transfer_us > 60 * MS
    if draw.job.stages == 3:  # all links of the pipeline: its network may be as well at fault
        return job, answer("shared", "straggler", tolerated=frozenset({rank}), sure=plain)
    return job, answer("straggler", ranks=(rank,), causes=("nic-degraded",), sure=plain)


def _slow_collective(draw: _Draw) -> tuple[OpJob, Truth]:
    """A stage's gradients take longer to reduce: which of its ranks is at fault can't be told."""
    stage, factor = int(draw.rng.integers(draw.job.stages)), draw.factor(3.0, 40.0)
    job = draw.slow(groups={("grads-reduce-scatter", stage): factor})
    return job, answer("shared", causes=("network-path",), sure=False)


def _collective_slow_for_a_while(draw: _Draw) -> tuple[OpJob, Truth]:
    """The same, for some steps only."""
    (first, end), factor = draw.span(), draw.factor(3.0, 40.0)
    stages = range(draw.job.stages) if draw.rng.random() < 0.5 else [int(draw.rng.integers(draw.job.stages))]
    slower = _during(first, end, factor)
    job = draw.slow(groups={("grads-reduce-scatter", stage): slower for stage in stages})
    step_us = 300 * MS * (job.micro_batches + job.stages)
    sure = draw.job.pipelines > 1 and end - first >= SURE_STEPS and factor * 40 * MS > 0.15 * step_us
    return job, answer("shared", causes=("network-path",), sure=sure and job.noise <= SURE_NOISE and len(stages) == 1)


def _late_data(draw: _Draw) -> tuple[OpJob, Truth]:
    """The loader of a pipeline's first rank is late, in all steps or for a while."""
    pipeline, (first, end) = int(draw.rng.integers(draw.job.pipelines)), draw.span()
    late_us = draw.factor(20, 1000) * MS
    whole = draw.rng.random() < 0.5
    late = late_us if whole else _during(first, end, late_us, 0.0)
    job = draw.slow(delay_us={(pipeline, 0): late})
    step_us = 300 * MS * (job.micro_batches + job.stages)
    sure = draw.sure(2.0, None if whole else end - first) and late_us > 0.1 * step_us
    return job, _named(draw, (pipeline, 0), causes=("data-loading",), sure=sure)


def _stalls_in_turn(draw: _Draw) -> tuple[OpJob, Truth]:
    """Forward passes take longer in some steps, on changing ranks."""
    share, factor = draw.factor(0.02, 0.2), draw.factor(1.5, 4.0)

    def stalls(place: Place) -> Callable[[Ints], Floats]:
        rng = np.random.default_rng([draw.job.seed, *place])
        return lambda steps: np.where(rng.random(len(steps)) < share, factor, 1.0)

    job = draw.slow(slow_forward={place: stalls(place) for place in draw.places})
    return job, answer("rotating", "none", sure=share * factor > 0.3)


def _two_slow_ranks(draw: _Draw) -> tuple[OpJob, Truth]:
    if len(draw.places) < 3:
        return _slow_rank(draw)
    first, second = (draw.places[int(i)] for i in draw.rng.choice(len(draw.places), 2, replace=False))
    factors = draw.factor(1.2, 2.5), draw.factor(1.2, 2.5)
    job = draw.slow(slow={**draw.job.slow, first: factors[0], second: factors[1]})
    # The faster of two may cost nothing, and with both of two pipelines slow either may be the healthy one.
    truth = _named(draw, first, second, causes=COMPUTE, sure=False)
    return job, truth


def _slow_rank_and_heavy_stage(draw: _Draw) -> tuple[OpJob, Truth]:
    job, _ = _heavy_stage(draw)
    place, factor = draw.place(), draw.factor(1.5, 3.0)
    job = replace(job, slow={**job.slow, place: factor})
    return job, _named(draw, place, causes=COMPUTE, sure=draw.sure(factor / 1.5))


def _slow_rank_and_slow_link(draw: _Draw) -> tuple[OpJob, Truth]:
    job, _ = _slow_link(draw)
    place, factor = draw.place(), draw.factor(1.3, 2.5)
    job = replace(job, slow={**job.slow, place: factor})
    truth = _named(draw, place, causes=COMPUTE, sure=draw.sure(factor))
    return job, replace(truth, verdicts=truth.verdicts | {"shared"})


def _slow_rank_and_late_data(draw: _Draw) -> tuple[OpJob, Truth]:
    job, _ = _late_data(draw)
    place, factor = draw.place(), draw.factor(1.3, 2.5)
    job = replace(job, slow={**job.slow, place: factor})
    (late,) = job.delay_us
    truth = _named(draw, place, causes=(), sure=draw.sure(factor))
    return job, replace(truth, tolerated=truth.tolerated | {job.rank(*late)})


Scenario = Callable[[_Draw], tuple[OpJob, Truth]]
SCENARIOS: tuple[tuple[float, Scenario], ...] = (
    (18, _healthy),
    (10, _slow_rank),
    (6, _slow_for_a_while),
    (5, _slow_from_a_step_on),
    (8, _slow_one_way),
    (7, _heavy_stage),
    (7, _unequal_sequences),
    (6, _unequal_sequences_and_a_slow_rank),
    (3, _always_longer_sequences),
    (4, _slow_link),
    (4, _link_slow_for_a_while),
    (3, _link_slow_one_way),
    (3, _slow_interface),
    (2, _slow_collective),
    (4, _collective_slow_for_a_while),
    (5, _late_data),
    (2, _stalls_in_turn),
    (4, _two_slow_ranks),
    (3, _slow_rank_and_heavy_stage),
    (3, _slow_rank_and_slow_link),
    (2, _slow_rank_and_late_data),
)


def _layout(job: OpJob) -> str:
    parallel = f"dp {job.pipelines} x pp {job.stages} x tp {job.tensor}"
    return f"{parallel}, ep {job.experts}, {job.micro_batches} micro-batches, {job.steps} steps, {job.noise:.1%} jitter"
