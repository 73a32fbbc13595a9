"""Labelled synthetic runs: every fault the generator knows, faint to gross, healthy ones, and two faults at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from truth import Case, Truth, answer

from starprof.analysis.synthetic import CpuHog, Fault, Pinned, Quota, Slow, SlowNic, SyntheticRun

SURE_SLOWDOWN = 1.2
SURE_CV, SURE_SPREAD, SURE_STEPS = 0.05, 0.01, 200
"""Where a fault must be found; fainter ones, or more noise, count for recall only."""
HEALTHY_SHARE, TWO_FAULTS_SHARE, NOBODY_SHARE = 0.3, 0.1, 0.15

_PHASE_CAUSES = {
    "data_wait": ("data-loading",),
    "h2d": ("host-to-device",),
    "forward": ("forward-compute", "gpu-compute"),
    "backward": ("backward-compute", "gpu-compute"),
    "optimizer": ("optimizer",),
}


def cases(count: int, max_ranks: int, first_seed: int = 0) -> Iterator[Case]:
    """Random recipes, the same for the same seed."""
    for seed in range(first_seed, first_seed + count):
        run, truth = recipe(seed, max_ranks)
        yield Case(f"seed {seed}: {run.ranks} ranks, {run.steps} steps, {_words(run)}", truth, partial(run.data))


def recipe(seed: int, max_ranks: int) -> tuple[SyntheticRun, Truth]:
    """One run and its right answer."""
    rng = np.random.default_rng([11, seed])
    base = SyntheticRun(
        ranks=int(np.exp(rng.uniform(np.log(8), np.log(max_ranks)))),
        steps=int(rng.integers(200, 600)),
        seed=seed,
        cv=float(rng.uniform(0.01, 0.10)),
        ar1=float(rng.uniform(0.0, 0.6)),
        spread=float(rng.uniform(0.0, 0.015)),
    )
    kind = rng.random()
    if kind < HEALTHY_SHARE:
        return base, answer("none")
    if kind < HEALTHY_SHARE + NOBODY_SHARE:
        return _nobodys(base, rng)
    if kind < HEALTHY_SHARE + NOBODY_SHARE + TWO_FAULTS_SHARE:
        return _two(base, rng)
    fault, causes, slowdown = _single(base, int(rng.integers(base.ranks)), rng)
    truth = answer("straggler", ranks=fault.ranks or (), causes=causes, onset=fault.start, sure=_sure(base, slowdown))
    return _with(base, fault), truth


def _single(base: SyntheticRun, rank: int, rng: np.random.Generator) -> tuple[Fault, tuple[str, ...], float]:
    """A fault of one rank, its causes, and how much slower it makes the rank."""
    slowdown = float(np.exp(rng.uniform(np.log(1.02), np.log(5.0))))
    own_us = sum(base.phases_us.values())
    start = 0 if rng.random() < 0.4 else int(rng.integers(base.steps // 4, base.steps // 2))
    which = rng.integers(8)
    if which == 0:
        share = min(0.8, 1 - 1 / slowdown)
        return CpuHog(rank, share, start), ("cpu-contention",), 1 / (1 - share)
    if which == 1:
        return Quota(rank, us=(slowdown - 1) * own_us / 0.6, start=start), ("cgroup-throttling",), slowdown
    if which == 2:
        return Pinned(rank, slowdown, start=start), ("affinity",), slowdown
    phase = list(_PHASE_CAUSES)[int(rng.integers(len(_PHASE_CAUSES)))]
    return Slow(phase, (rank,), us=(slowdown - 1) * own_us, start=start), _PHASE_CAUSES[phase], slowdown


def _two(base: SyntheticRun, rng: np.random.Generator) -> tuple[SyntheticRun, Truth]:
    """Two ranks with a plain fault each, in different phases."""
    first, second = (int(r) for r in rng.choice(base.ranks, 2, replace=False))
    own_us = sum(base.phases_us.values())
    sizes = rng.uniform(0.3, 1.5, 2)
    faults = (
        Slow("backward", (first,), us=sizes[0] * own_us, end=base.steps // 2),
        Slow("data_wait", (second,), us=sizes[1] * own_us, start=base.steps // 2),
    )
    return _with(base, *faults), answer("straggler", ranks=(first, second), sure=base.cv <= SURE_CV)


def _nobodys(base: SyntheticRun, rng: np.random.Generator) -> tuple[SyntheticRun, Truth]:
    """Slow, but no rank's fault."""
    own_us = sum(base.phases_us.values())
    which = rng.integers(4)
    if which == 0:
        work = Slow("checkpoint", (0,), us=5 * own_us, every=20, start=10)
        return _with(base, work), answer("none", causes=("checkpoint",))
    if which == 1:
        slower = Slow("forward", None, us=0.5 * own_us, start=base.steps // 2)
        return _with(base, slower), answer("uniform", sure=base.cv <= SURE_CV)
    if which == 2:
        moving = Slow("unaccounted", None, us=2 * own_us, share=0.5, rotating=True)
        return _with(base, moving), answer("rotating", "inconclusive")
    pauses = Slow("gc", None, us=2 * own_us, share=0.3, rotating=True)
    return _with(base, pauses), answer("rotating", "none")


def nic_cases(count: int) -> Iterator[Case]:
    """One node's interface gets slow; its node must be named where its sockets show it."""
    for seed in range(count):
        rng = np.random.default_rng([12, seed])
        nodes = int(rng.integers(2, 9))
        node = int(rng.integers(nodes))
        run = SyntheticRun(ranks=4 * nodes, nodes=nodes, steps=300, seed=seed, faults=(SlowNic(node, start=150),))
        ranks = frozenset(int(r) for r in np.flatnonzero(run.node_of == node))
        truth = Truth(
            frozenset({"straggler", "inconclusive"} if nodes == 2 else {"straggler"}),
            tolerated=ranks,
            causes=frozenset({"nic-bandwidth", "nic-degraded"}) if nodes > 2 else frozenset(),
        )
        yield Case(f"seed {seed}: slow interface of node {node} of {nodes}", truth, run.data)


def _with(base: SyntheticRun, *faults: Fault) -> SyntheticRun:
    return SyntheticRun(
        ranks=base.ranks,
        steps=base.steps,
        seed=base.seed,
        cv=base.cv,
        ar1=base.ar1,
        spread=base.spread,
        faults=faults,
    )


def _sure(base: SyntheticRun, slowdown: float) -> bool:
    return slowdown >= SURE_SLOWDOWN and base.cv <= SURE_CV and base.spread <= SURE_SPREAD and base.steps >= SURE_STEPS


def _words(run: SyntheticRun) -> str:
    faults = ", ".join(type(f).__name__ + (f" {f.phase}" if isinstance(f, Slow) else "") for f in run.faults)
    return f"cv {run.cv:.3f}, spread {run.spread:.4f}, {faults or 'healthy'}"
