"""The jobs that faults are drawn into: sizes, phases, noise, machines, and how well their counters are recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from draws.drawn import Need, Spells, When
from starprof.analysis.synthetic import Recording, SyntheticRun
from starprof.analysis.synthetic.devices import gpu_numa, numa_cpus

QUIET_CV, QUIET_SPREAD, QUIET_SHARE = 0.05, 0.01, 0.6
MANY_RANKS = 512
SAMPLES, SAMPLES_OF_MANY = 300, 120
SLOWEST_RATE_HZ, FASTEST_RATE_HZ = 0.2, 10.0
LEAST_SPELLS_STEPS = 10

COLLECTORS = (
    ("gpu_sample", "gpu"),
    ("tcp_sample", "tcp"),
    ("nic_sample", "nic"),
    ("process_sample", "process"),
    ("cgroup_sample", "cgroup"),
    ("cpu_sample",),
    ("node_sample",),
    ("disk_sample", "disk"),
)
RESTARTED = ("nic_sample", "gpu_sample", "tcp_sample", "disk_sample")


def job(rng: np.random.Generator, seed: int, between: tuple[int, int], need: Need) -> SyntheticRun:
    """A healthy job of least to most ranks that has what a fault needs."""
    least = max(between[0], 2 * need.nodes, 8 * need.stages)
    ranks = int(np.exp(rng.uniform(np.log(least), np.log(max(least, between[1]) + 1))))
    gpus = bool(rng.random() < 0.75) if need.gpus is None else need.gpus
    per_node = min(8 if gpus else int(rng.choice([4, 8, 16])), max(1, ranks // need.nodes))
    nodes = max(need.nodes, -(-ranks // per_node))
    if need.nodes == 2 and rng.random() < 0.3:
        nodes = 2
    quiet = rng.random() < QUIET_SHARE
    fabric = gpus and nodes > 1 and rng.random() < 0.4
    run = SyntheticRun(
        ranks=ranks,
        steps=int(rng.integers(200, 600 if ranks <= MANY_RANKS else 260)),
        seed=seed,
        nodes=nodes,
        cv=float(rng.uniform(0.01, QUIET_CV) if quiet else rng.uniform(QUIET_CV, 0.10)),
        ar1=float(rng.uniform(0.0, 0.6)),
        spread=float(rng.uniform(0.0, QUIET_SPREAD) if quiet else rng.uniform(QUIET_SPREAD, 0.015)),
        heavy_tail=bool(rng.random() < 0.1),
        cores=64 if gpus else -(-ranks // nodes) * int(rng.choice([1, 2, 4])),
        gpus=gpus,
        infiniband=fabric if need.infiniband is None else need.infiniband,
        stages=need.stages or (4 if ranks >= 64 and rng.random() < 0.1 else 1),
        **_phases(rng),  # type: ignore[arg-type]
    )
    return _bound(run) if gpus and rng.random() < 0.4 else run


def quiet(run: SyntheticRun) -> bool:
    """Little noise, little spread, and enough steps: where faults must be found."""
    return run.cv <= QUIET_CV and run.spread <= QUIET_SPREAD and run.steps >= 200


def _phases(rng: np.random.Generator) -> dict[str, object]:
    step_us = float(np.exp(rng.uniform(np.log(45e3), np.log(900e3))))
    weights = {
        "data_wait": rng.uniform(0.01, 0.06),
        "h2d": rng.uniform(0.01, 0.10),
        "forward": rng.uniform(0.22, 0.35),
        "backward": rng.uniform(0.45, 0.60),
        "optimizer": rng.uniform(0.03, 0.10),
        "unaccounted": rng.uniform(0.01, 0.03),
    }
    total = sum(weights.values())
    phases = {name: float(step_us * part / total) for name, part in weights.items()}
    return {"phases_us": phases, "transfer_us": float(step_us * rng.uniform(0.03, 0.15))}


def _bound(run: SyntheticRun) -> SyntheticRun:
    """Every rank on the cores of its GPU's NUMA node."""
    run = replace(run, numa_nodes=2)
    return replace(run, cpu_lists={rank: numa_cpus(run, gpu_numa(run, rank)) for rank in range(run.ranks)})


def when(rng: np.random.Generator, steps: int, need: Need) -> When:
    """A course of time that the fault can have."""
    shape = str(rng.choice(need.shapes))
    if shape == "chronic":
        return When(shape, 0, None, (), steps)
    if shape == "onset":
        start = int(rng.integers(steps // 4, steps // 2))
        return When(shape, start, None, (), steps - start)
    if shape == "transient":
        start = int(rng.integers(steps // 5, steps // 2))
        length = int(rng.integers(min(50, steps // 4), steps // 3))
        return When(shape, start, start + length, (), length)
    spells = _spells(rng, steps)
    return When(shape, spells[0][0], spells[-1][1], spells, sum(end - first for first, end in spells))


def _spells(rng: np.random.Generator, steps: int) -> Spells:
    """Comes and goes."""
    at, spells = int(rng.integers(10, max(11, steps // 4))), []
    while at < steps - LEAST_SPELLS_STEPS:
        length = int(rng.integers(LEAST_SPELLS_STEPS, 50))
        spells.append((at, min(steps, at + length)))
        at += length + int(rng.integers(LEAST_SPELLS_STEPS, 50))
    return tuple(spells)


def rate_hz(run: SyntheticRun, slowdown: float) -> float:
    """A sampling rate that gives a few hundred samples."""
    step_s = (slowdown * sum(run.phases_us.values()) + run.transfer_us) / 1e6
    samples = SAMPLES if run.ranks <= MANY_RANKS else SAMPLES_OF_MANY
    return float(np.clip(samples / (step_s * run.steps), SLOWEST_RATE_HZ, FASTEST_RATE_HZ))


def recording(rng: np.random.Generator, run: SyntheticRun) -> Recording:
    """How well the counters are recorded: most runs well, some with holes, restarts or without collectors."""
    holes = tuple(
        (int(rng.integers(run.nodes)), float(at), float(at + rng.uniform(0.05, 0.2)))
        for at in rng.uniform(0.0, 0.9, int(rng.integers(0, 3)) if rng.random() < 0.3 else 0)
    )
    resets = tuple(
        (str(rng.choice(RESTARTED)), int(rng.integers(run.nodes)), float(rng.uniform(0.1, 0.9)))
        for _ in range(int(rng.random() < 0.2))
    )
    missing = rng.choice(len(COLLECTORS), int(rng.integers(1, 4)), replace=False) if rng.random() < 0.2 else []
    if rng.random() < 0.04:
        missing = range(len(COLLECTORS))
    absent = tuple(table for each in missing for table in COLLECTORS[int(each)])
    return Recording(float(rng.uniform(0.02, 0.1)), float(rng.uniform(0.0, 0.03)), holes, resets, absent)
