"""Scores against training: does a mode gain over ssgd what the formula says, when gradients are real?

    python benchmarks/score_check.py [--seeds 3] [--keep FILE]

Small models are trained on scikit-learn's handwritten digits in simulated time, by 8 workers of which some are slow,
with the tasks of `benchmarks/star`: learning rates tuned for synchronous steps of the whole training, which fall to
nothing. A mode's time is that to the held-out loss that ssgd has after 30, 50 and 70 % of the training, its gain the
mean of these three and of the seeds. Gains are held against what the score of `starprof.decision.choice.progress` says,
for several learning rates r, costs of staleness c and powers of 1/(1 - momentum), and against STAR's score with the
right round times. Last, what choosing among these modes by regret takes over the best of them that is allowed, and by
the worst gain. 324 trainings, about 3 minutes; with --keep they go to a file, and a second start goes on where the
first one stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).with_name("star")))

from tasks import phi_of, task_of, training_of

from starprof.decision.choice.candidates import outlooks
from starprof.decision.choice.choice import Score
from starprof.decision.choice.outlook import Outlook
from starprof.decision.choice.progress import RATE, accuracy_risk, seconds_per_step
from starprof.decision.choice.progress import RATES as SUPPOSED
from starprof.decision.choice.scoring import with_regret
from starprof.decision.choice.situation import Limits, Situation
from starprof.simulation import Mode, Steady, Until, Worker, simulate

WORKERS, BATCH, TYPICAL_S, SCATTER = 8, 8, 0.1, 0.1
FIRST_SEED = 50
TASKS = ("perceptron", "logistic", "cnn", "perceptron plain")
JOBS = {
    "all alike": (1.0,) * 8,
    "one twice as slow": (1.0,) * 7 + (2.0,),
    "all different": tuple(np.linspace(1, 3, 8).tolist()),
}
MODES: tuple[tuple[str, dict[str, int]], ...] = (
    ("asgd", {}),
    ("static-x", {"x": 4}),
    ("ring-x", {"x": 6}),
    ("m-sync", {"m": 4}),
    ("m-sync", {"m": 6}),
    ("m-sync", {"m": 7}),
    ("m-sync-fold", {"m": 6}),
    ("lgc", {"k": 7}),
)
AFTER = (0.3, 0.5, 0.7)
SMOOTH = 3
RATES, COSTS, POWERS = (0.1, 0.2, 0.4, 0.7, 1.0), (0.0, 0.5, 1.0, 2.0), (0.0, 0.5, 1.0)
USED = (RATE, 1.0, 0.5)
NOISE_INTERVAL, SURE = 1.5, 1.05
"""A noise scale is known within this factor; of the worst gains one must be so large."""
FARTHEST = 1.5
"""A logarithm that is further off, of a mode that the score says makes no progress, counts as this."""


def trained(task: str, job: str, mode: str, options: dict[str, int], seed: int) -> list[list[float]]:
    """Time, progress and loss at each evaluation of one training."""
    staff = [Worker(at, Steady(TYPICAL_S * f, SCATTER), batch=BATCH) for at, f in enumerate(JOBS[job])]
    until = Until(progress=task_of(task).progress)
    history = simulate(Mode(mode, options), staff, training_of(task), until=until, seed=seed)
    return [[round(e.at_s, 3), round(e.progress, 2), round(e.loss, 5)] for e in history.evaluations]


def collected(seeds: int, keep: Path | None) -> dict[str, list[list[float]]]:
    """All trainings by name."""
    there: dict[str, list[list[float]]] = {}
    if keep is not None and keep.exists():
        there = dict(json.loads(line) for line in keep.read_text().splitlines() if line.endswith("]"))
    for seed, task, job, (mode, options) in itertools.product(
        range(FIRST_SEED, FIRST_SEED + seeds), TASKS, JOBS, (("ssgd", {}), *MODES)
    ):
        name = name_of(task, job, mode, options, seed)
        if name not in there:
            there[name] = trained(task, job, mode, options, seed)
            if keep is not None:
                with keep.open("a") as file:
                    file.write(json.dumps([name, there[name]]) + "\n")
    return there


def name_of(*parts: object) -> str:
    """By which a training is known."""
    return " | ".join(map(str, parts))


def smoothed(curve: list[list[float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, progress, and losses as running medians."""
    at, progress, loss = np.array(curve).T
    return at, progress, np.array([np.median(loss[max(0, i - SMOOTH + 1) : i + 1]) for i in range(len(loss))])


def log_time(curve: list[list[float]], plain: list[list[float]]) -> float:
    """Logarithm of the time over that of ssgd to the same losses; NaN: none of them is reached."""
    at, _, loss = smoothed(curve)
    plain_at, progress, plain_loss = smoothed(plain)
    ratios = []
    for share in AFTER:
        target = np.interp(share * progress[-1], progress, plain_loss)
        reached, before = np.flatnonzero(loss <= target), np.flatnonzero(plain_loss <= target)
        if len(reached):
            ratios.append(math.log(at[reached[0]] / plain_at[before[0]]))
    return float(np.mean(ratios)) if ratios else math.nan


def outlook_of(job: str) -> list[Outlook]:
    """Of all modes, ssgd first."""
    rng = np.random.default_rng(0)
    sigma = math.sqrt(math.log1p(SCATTER**2))
    times = TYPICAL_S * np.array(JOBS[job]) * np.exp(rng.normal(-(sigma**2) / 2, sigma, (60, WORKERS)))
    return outlooks(Situation(tuple(range(WORKERS)), times, BATCH), 1)[0]


def by_star(outlook: Outlook, phi: float) -> float:
    """STAR's score with the right time between updates: no weights, no staleness."""
    (stream, *_) = outlook.streams
    taken = stream.step_squared / stream.weights_squared
    return (1.0 / outlook.updates_per_s) * (1.0 + phi / (taken * BATCH))


def told(row: dict[str, Any], rate: float, cost: float, power: float) -> float:
    """Logarithm of the time over ssgd's by our score; the cost takes in what momentum does to it."""
    # The score's own power is a half: what is left of another one.
    momentum = task_of(row["task"]).momentum
    cost *= (1.0 - momentum) ** (0.5 - power)
    seconds = [
        seconds_per_step(one, row["phi"], BATCH, WORKERS, rate=rate, momentum=momentum, staleness_cost=cost)
        for one in (row["outlook"], row["plain"])
    ]
    return math.log(seconds[0] / seconds[1]) if math.isfinite(seconds[0]) else math.inf


def rows_of(there: dict[str, list[list[float]]], seeds: int) -> list[dict[str, Any]]:
    """A row for every mode in every job of every task: what was real, and what scores need."""
    rows = []
    for task, (job, found) in itertools.product(TASKS, [(job, outlook_of(job)) for job in JOBS]):
        for mode, options in MODES:
            real = [
                log_time(there[name_of(task, job, mode, options, s)], there[name_of(task, job, "ssgd", {}, s)])
                for s in range(FIRST_SEED, FIRST_SEED + seeds)
            ]
            outlook = next(
                one for one in found if one.mode == mode and all(one.options.get(k) == v for k, v in options.items())
            )
            rows.append(
                {
                    "task": task,
                    "job": job,
                    "mode": " ".join([mode, *map(str, options.values())]),
                    "real": float(np.mean(real)),
                    "phi": phi_of(task, BATCH),
                    "outlook": outlook,
                    "plain": found[0],
                }
            )
    return [row for row in rows if math.isfinite(row["real"])]


def error(rows: list[dict[str, Any]], says) -> float:
    """Root mean square of how far a score is off."""
    return math.sqrt(np.mean([min(abs(says(row) - row["real"]), FARTHEST) ** 2 for row in rows]))


def lost_by_rules(rows: list[dict[str, Any]]) -> list[str]:
    """Time of the mode that each rule chooses over that of the best one that is allowed, over all jobs."""
    lost: dict[str, list[float]] = defaultdict(list)
    for task, job in itertools.product(TASKS, JOBS):
        momentum, those = task_of(task).momentum, [r for r in rows if (r["task"], r["job"]) == (task, job)]
        phi = phi_of(task, BATCH)
        points = [(phi, RATE), *itertools.product((phi / NOISE_INTERVAL, phi * NOISE_INTERVAL), SUPPOSED)]

        def score(outlook: Outlook, plain: Outlook, points=points, momentum=momentum) -> Score:
            seconds = [
                [seconds_per_step(one, phi, BATCH, WORKERS, rate=rate, momentum=momentum) for phi, rate in points]
                for one in (plain, outlook)
            ]
            gains = tuple(a / b for a, b in zip(*seconds, strict=True))
            risk = accuracy_risk(outlook, shuffled=True, momentum=momentum)
            barred = "risk" if risk > Limits().accuracy_risk else ""
            return Score(outlook.mode, outlook.options, outlook, gains[0], min(gains), risk, barred, gains)

        plain = score(those[0]["plain"], those[0]["plain"])
        found = [(0.0, plain), *((r["real"], score(r["outlook"], r["plain"])) for r in those)]
        allowed = [(real, one) for real, one in found if one.eligible]
        least = Limits().worst_gain
        told = with_regret([one for _, one in allowed], least)
        best = min(real for real, _ in allowed)
        pairs = [(real, one) for (real, _), one in zip(allowed, told, strict=True) if one.worst_gain >= least]
        by_regret = min(pairs, key=lambda pair: pair[1].regret)[0]
        by_worst = max(allowed, key=lambda pair: pair[1].worst_gain)
        lost["regret"].append(by_regret - best)
        lost["worst gain"].append((by_worst[0] if by_worst[1].worst_gain >= SURE else 0.0) - best)
    return [f"by {name}: {math.exp(np.mean(v)):.3f}, at most {math.exp(max(v)):.2f}" for name, v in lost.items()]


def main() -> None:
    """Train, compare, print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--keep", type=Path)
    asked = options.parse_args()
    rows = rows_of(collected(asked.seeds, asked.keep), asked.seeds)
    for row in rows:
        print(f"{row['task']:17}{row['job']:18}{row['mode']:14} real {math.exp(row['real']):.2f}  told ", end="")
        print(
            "  ".join(f"{name} {math.exp(told(row, *point)):.2f}" for name, point in (("", USED), ("r=1", (1, 1, 0))))
        )
    without = [row for row in rows if row["mode"] != "asgd"]
    print(f"\nerror of the logarithm, {len(rows)} rows; without asgd, {len(without)}")

    def line(name: str, says) -> None:
        print(f"{name:42} {error(rows, says):.3f}  {error(without, says):.3f}")

    line("r, c, power used", lambda row: told(row, *USED))
    line("r = 1, c = 1, no momentum", lambda row: told(row, 1.0, 1.0, 0.0))
    line(
        "STAR, right round times",
        lambda row: math.log(by_star(row["outlook"], row["phi"]) / by_star(row["plain"], row["phi"])),
    )
    by_task = defaultdict(list)
    for point in itertools.product(RATES, COSTS, POWERS):
        for task in ("all", *TASKS):
            those = [row for row in rows if task in ("all", row["task"])]
            by_task[task].append((error(those, lambda row, point=point: told(row, *point)), point))
    for task, found in by_task.items():
        best = "; ".join(f"{e:.3f} at r={r}, c={c}, power {p}" for e, (r, c, p) in sorted(found)[:3])
        print(f"best of the grid, {task}: {best}")
    print("\n".join(lost_by_rules(rows)))


if __name__ == "__main__":
    main()
