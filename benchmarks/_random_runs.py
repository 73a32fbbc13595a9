"""The random runs of the benchmarks of false alarms and power, and what both detectors say of them.

Each run follows from its number alone, so results are lines of a file that can be made in pieces and by several
processes: a line that is there is not made again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta

from starprof.analysis import diagnose
from starprof.analysis.live.detector import OnlineDetector
from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.model.rundata import RunData

STEPS = 200
SLOWDOWNS = {1.02: 0.1, 1.04: 0.1, 1.06: 0.25, 1.1: 0.15, 1.2: 0.15, 1.5: 0.15, 2.0: 0.05, 5.0: 0.05}
"""Slowdowns and how often each is drawn: most often where the goals are."""
CVS = (0.01, 0.03, 0.05, 0.1, 0.2)
SPREADS = (0.0, 0.005, 0.01, 0.03)
CALM_CV, CALM_SPREAD, CALM_SHARE = 0.05, 0.01, 0.5
RANKS = (8, 16, 64, 256)
ONSETS = (0, STEPS // 3, 3 * STEPS // 5)
WORK = ("data_wait", "h2d", "forward", "backward", "optimizer", "unaccounted")

Line = dict[str, Any]


def healthy_run(seed: int, max_ranks: int) -> SyntheticRun:
    """One random run without a fault, over the whole range that "healthy" means here."""
    rng = np.random.default_rng([7, seed])
    return SyntheticRun(
        ranks=int(np.exp(rng.uniform(np.log(8), np.log(max_ranks)))),
        steps=int(np.exp(rng.uniform(np.log(100), np.log(1000)))),
        seed=seed,
        cv=rng.uniform(0.01, 0.2),
        ar1=rng.uniform(0.0, 0.9),
        spread=rng.uniform(0.0, 0.03),
        heavy_tail=bool(rng.random() < 0.3),
        counters=False,
    )


def slow_recipe(seed: int, slowdown: float | None) -> dict[str, Any]:
    """One random recipe with a slow rank; every other one (`CALM_SHARE`) where the goals apply."""
    rng = np.random.default_rng([29, seed])
    calm = rng.random() < CALM_SHARE
    ranks = int(rng.choice(RANKS))
    drawn = float(rng.choice(list(SLOWDOWNS), p=list(SLOWDOWNS.values())))
    return {
        "slowdown": slowdown or drawn,
        "cv": float(rng.choice([cv for cv in CVS if cv <= CALM_CV or not calm])),
        "spread": float(rng.choice([spread for spread in SPREADS if spread <= CALM_SPREAD or not calm])),
        "ranks": ranks,
        "onset": int(rng.choice(ONSETS)),
        "rank": int(rng.integers(ranks)),
    }


def slow_run(seed: int, slowdown: float | None = None) -> tuple[SyntheticRun, dict[str, Any]]:
    """The run of a recipe: all regular work of one rank takes longer."""
    recipe = slow_recipe(seed, slowdown)
    rank, start = recipe["rank"], recipe["onset"]
    run = SyntheticRun(
        ranks=recipe["ranks"],
        steps=STEPS,
        seed=seed,
        cv=recipe["cv"],
        spread=recipe["spread"],
        counters=False,
        faults=tuple(Slow(phase, (rank,), factor=recipe["slowdown"], start=start) for phase in WORK),
    )
    return run, recipe


def offline(data: RunData) -> Line:
    """Whom the offline diagnosis blames."""
    verdict = diagnose(data)
    return {
        "offline_verdict": verdict.verdict,
        "offline_blamed": sorted({rank for finding in verdict.findings for rank in finding.ranks}),
        "offline_onset": next((f.onset_step for f in verdict.findings if f.ranks), None),
    }


def live(data: RunData) -> Line:
    """Whom the running job's detector names, provisionally or not, and with which step it first did."""
    blocked = data.steps["blocked_us"]
    found = OnlineDetector(data.ranks).observe_many(data.steps.steps, data.steps["dur_us"] - blocked, blocked)
    return {
        "live_named": sorted({f.rank for f in found}),
        "live_confirmed": sorted({f.rank for f in found if f.status == "confirmed"}),
        "live_seen": min((f.seen_step for f in found), default=None),
        "live_sure": min((f.changed_step for f in found if f.status == "confirmed"), default=None),
    }


def extend(path: Path, seeds: Iterable[int], line: Callable[[int], Line], processes: int) -> list[Line]:
    """Make what is missing of some runs' lines; gives all lines of the file."""
    done = read(path)
    missing = sorted(set(seeds) - {known["seed"] for known in done})
    if not missing:
        return done
    with path.open("a") as out, ProcessPoolExecutor(processes, initializer=os.nice, initargs=(5,)) as pool:
        for made in pool.map(line, missing):
            out.write(json.dumps(made) + "\n")
            out.flush()
            done.append(made)
    return done


def read(path: Path) -> list[Line]:
    """All complete lines; one that was cut by an interruption is left out."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    if len(whole) < len(lines):
        path.write_text("".join(whole))
    return [json.loads(line) for line in whole]


def at_most(hits: int, runs: int) -> float:
    """Rate that is not exceeded with 95 % confidence (Clopper and Pearson)."""
    return float(beta.ppf(0.95, hits + 1, runs - hits)) if hits < runs else 1.0
