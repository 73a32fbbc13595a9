"""Make the learned chooser that ships with the package: simulate jobs, train, cross-validate, write the model.

    python benchmarks/train_chooser.py [--jobs 600] [--keep FOLDER] [-o MODEL.npz]

Each job is simulated once in every mode, from the same seed, until it has learned as much; what a chooser would have
known after the first iterations is told from those of ssgd. Simulated jobs are kept in the folder in parts of 50, so
that an interrupted run goes on where it was. Deterministic: the same versions of numpy and scikit-learn give the same
file. Regrets are of jobs that the trees of their fold have not seen.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from starprof.decision.choice import heuristic
from starprof.decision.choice.choice import Standing
from starprof.decision.choice.heuristic import Settings
from starprof.decision.choice.learned import chooser, model
from starprof.decision.choice.learned.features import NAMES, OF_JOB, Surroundings, of_job, of_mode
from starprof.decision.choice.learned.trees import Trees
from starprof.decision.choice.situation import Limits, Situation
from starprof.decision.choice.situation import NoiseScale as Noise
from starprof.simulation import (
    AllReduce,
    Cluster,
    Episodes,
    HeavyTailed,
    Mode,
    Node,
    NoiseScale,
    ParameterServer,
    Rotating,
    Steady,
    Until,
    Worker,
    simulate,
)

MODES = ("asgd", "static-x", "ring-x", "dynamic-x", "m-sync", "m-sync-fold", "lgc", "deadline", "lb-bsp")
SIMULATED = ("ssgd", *MODES)
PART = 50
LEARNED = 60.0
SEEN = 30
BATCH = 32
SLOWEST = 4.0
FOLDS = 5
DEPTH, TREES, RATE = 3, 80, 0.08
LARGEST_BYTES = 1_000_000


@dataclass(frozen=True)
class SimulatedJob:
    """A job that is simulated."""

    workers: tuple
    cluster: Cluster
    exchange: object
    training: NoiseScale
    noise: Noise
    rate: float
    seed: int

    def run(self, mode: Mode, until: Until):
        """One simulation."""
        return simulate(
            mode, self.workers, self.training, until=until, exchange=self.exchange, cluster=self.cluster, seed=self.seed
        )


def drawn(number: int) -> SimulatedJob:
    """A job by its number."""
    rng = np.random.default_rng([11, number])
    count = int(rng.choice([4, 8, 16, 32], p=[0.3, 0.35, 0.25, 0.1]))
    usual = float(rng.uniform(0.1, 1.0))
    sources = _sources(rng, count, usual)
    names = [f"n{place}" for place in range(count)]
    size = usual * float(10 ** rng.uniform(5.5, 8.5))
    cluster = Cluster(tuple(Node(name, float(rng.choice([4, 8])), 1.25e9) for name in names))
    if rng.random() < 0.5:
        exchange = AllReduce(size, 1e-4)
    else:
        cost = usual * float(10 ** rng.uniform(-4, -1.3))
        exchange = ParameterServer((names[0],), size, cost, cost, cost / 2, latency_s=1e-4)
    phi = BATCH * count * float(10 ** rng.uniform(-1.5, 1.5))
    rate = float(rng.uniform(0.2, 1.0))
    training = NoiseScale(((0.0, phi), (LEARNED, phi * rng.uniform(1, 4))), float(rng.uniform(0.3, 1.0)), rate)
    staff = tuple(Worker(place, source, names[place], BATCH) for place, source in enumerate(sources))
    wrong = float(np.exp(rng.normal(0, 0.15)))
    return SimulatedJob(staff, cluster, exchange, training, Noise(phi * wrong / 1.3, phi * wrong * 1.3), rate, number)


def _sources(rng, count, usual):
    """Own times of one kind of job: lasting, passing, rotating slowness, or heavy tails."""
    scatter = float(rng.choice([0.01, 0.05, 0.15, 0.4]))
    correlation = float(rng.choice([0.0, 0.8]))
    plain = [Steady(usual * float(np.exp(rng.normal(0, 0.03))), scatter, correlation) for _ in range(count)]
    factor = float(rng.uniform(1.1, 5.0))
    slow = set(rng.choice(count, int(rng.integers(1, count // 2 + 1)), replace=False).tolist())
    whole = usual * LEARNED
    match int(rng.integers(5)):
        case 0:
            return [Steady(s.mean_s * factor, s.cv, s.correlation) if p in slow else s for p, s in enumerate(plain)]
        case 1:
            factors = rng.uniform(1.0, factor, count)
            return [Steady(s.mean_s * f, s.cv, s.correlation) for s, f in zip(plain, factors, strict=True)]
        case 2:
            begins = rng.uniform(0, whole, 2)
            periods = [(0.0, whole * rng.uniform(0.3, 2)), *((b, b + whole * rng.uniform(0.1, 0.5)) for b in begins)]
            return [Episodes(s, factor, tuple(periods)) if p in slow else s for p, s in enumerate(plain)]
        case 3:
            period = usual * float(rng.uniform(2, 60))
            return [Rotating(s, factor, period, p, count) for p, s in enumerate(plain)]
        case _:
            return [HeavyTailed(usual, float(rng.uniform(1.3, 5.0))) for _ in range(count)]


@dataclass(frozen=True)
class Outcome:
    """One simulated job: features, and the logarithm of each mode's time over ssgd's; NaN: not to be had."""

    job: np.ndarray
    modes: np.ndarray
    times: np.ndarray
    heuristic: int


def outcome(number: int) -> Outcome:
    """Simulate a job in every mode."""
    job = drawn(number)
    plain = job.run(Mode("ssgd"), Until(learned=LEARNED))
    done = plain.iterations
    seen = np.stack([done.own_s[done.worker == worker.index][:SEEN] for worker in job.workers], axis=1)
    ranks = tuple(worker.index for worker in job.workers)
    # Nothing is barred by risk here: the trees are to know what risky modes bring.
    situation = Situation(ranks, seen, BATCH, job.noise, Limits(accuracy_risk=1.0, momentum=0.0), barred=_others())
    around = Surroundings(isinstance(job.exchange, AllReduce), job.rate, 1.0 - max(plain.busy.values(), default=0.0))
    found = heuristic.assess(situation, Standing(), Settings())
    base = next(score for score in found.scores if score.mode == "ssgd")
    features = of_job(situation, found.late, around, job.noise.middle)
    rows, times = np.full((len(MODES), len(NAMES)), np.nan), np.full(len(MODES), np.nan)
    for score in found.best:
        if score.mode in MODES and score.outlook is not None:
            place = MODES.index(score.mode)
            gain = chooser.heuristic_gain(score, base, situation, job.noise.middle, 1.0)
            rows[place] = of_mode(features, score, base, gain)
            until = Until(learned=LEARNED, at_s=SLOWEST * plain.end_s)
            times[place] = math.log(job.run(Mode(score.mode, score.options), until).end_s / plain.end_s)
    chosen, _ = heuristic.decide(found, Standing(), Settings())
    return Outcome(features, rows, times, SIMULATED.index(chosen.mode))


def _others() -> dict[str, str]:
    from starprof.sync.policies import MODES as ALL

    return {mode: "not trained" for mode in ALL if mode not in SIMULATED}


def collected(jobs: int, folder: Path, parts: int | None) -> Outcome | None:
    """Outcomes of all jobs, part by part; None when there are more parts to do than were asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"part-{at:04}.npz" for at in range(-(-jobs // PART))]
    for at, file in enumerate(files):
        if file.exists():
            continue
        if parts is not None and parts <= 0:
            return None
        begin = time.process_time()
        done = [outcome(number) for number in range(at * PART, (at + 1) * PART)]
        names = ("job", "modes", "times", "heuristic")
        np.savez(file, **{name: np.array([getattr(one, name) for one in done]) for name in names})
        print(f"{file.name}: {time.process_time() - begin:.1f} s of CPU", file=sys.stderr, flush=True)
        parts = None if parts is None else parts - 1
    stored = [np.load(file) for file in files]
    return Outcome(*(np.concatenate([s[n] for s in stored])[:jobs] for n in ("job", "modes", "times", "heuristic")))


def trained(rows: np.ndarray, targets: np.ndarray, seed: int) -> Trees:
    """Boosted trees for one mode, laid out for `Trees`."""
    from sklearn.ensemble import GradientBoostingRegressor

    boosted = GradientBoostingRegressor(
        loss="huber",
        n_estimators=TREES,
        max_depth=DEPTH,
        learning_rate=RATE,
        subsample=0.7,
        min_samples_leaf=10,
        random_state=seed,
    )
    boosted.fit(rows.astype(np.float32), targets)
    inner = 2**DEPTH - 1
    feature, threshold = np.zeros((TREES, inner), np.int16), np.zeros((TREES, inner), np.float32)
    value = np.zeros((TREES, inner + 1), np.float32)
    for number, estimator in enumerate(boosted.estimators_[:, 0]):
        _lay_out(estimator.tree_, number, (feature, threshold, value))
    return Trees(float(np.ravel(boosted.init_.predict(rows[:1]))[0]), feature, threshold, value)


def _lay_out(tree, number, into) -> None:
    feature, threshold, value = into
    inner = feature.shape[1]

    def place(node, at) -> None:
        leaf = tree.children_left[node] < 0
        if at >= inner:
            value[number, at - inner] = RATE * tree.value[node, 0, 0]
            return
        if not leaf:
            feature[number, at] = tree.feature[node]
            # Inputs are float32; the largest one that goes left says the same as the threshold in float64.
            cut = np.float32(tree.threshold[node])
            threshold[number, at] = cut if cut <= tree.threshold[node] else np.nextafter(cut, np.float32(-np.inf))
        place(node if leaf else tree.children_left[node], 2 * at + 1)
        place(node if leaf else tree.children_right[node], 2 * at + 2)

    place(0, 0)


def fitted(data: Outcome, among: np.ndarray, seed: int) -> dict[str, Trees]:
    """Trees of every mode, trained on some of the jobs."""
    found = {}
    for place, mode in enumerate(MODES):
        known = among & np.isfinite(data.times[:, place])
        rows = data.modes[known, place]
        found[mode] = trained(rows, -data.times[known, place] - rows[:, NAMES.index("heuristic_gain")], seed)
    return found


def told_times(data: Outcome, jobs: np.ndarray, modes: dict[str, Trees]) -> np.ndarray:
    """Predicted logarithms of times over ssgd's, ssgd first, shape (jobs, 1 + modes)."""
    told = np.full((len(jobs), len(SIMULATED)), np.inf)
    told[:, 0] = 0.0
    for place, mode in enumerate(MODES):
        rows = data.modes[jobs, place]
        known = np.isfinite(rows).all(axis=1)
        told[known, place + 1] = -(rows[known, NAMES.index("heuristic_gain")] + modes[mode].predict(rows[known]))
    return told


def validated(data: Outcome) -> dict[str, object]:
    """Regrets by cross-validation over jobs."""
    jobs = len(data.job)
    fold = np.random.default_rng(0).permutation(jobs) % FOLDS
    chosen = np.zeros(jobs, int)
    for number in range(FOLDS):
        there = np.flatnonzero(fold == number)
        told = told_times(data, there, fitted(data, fold != number, number))
        best = told.argmin(axis=1)
        # As the chooser does: ssgd stays unless 5 % are gained.
        pays = told[np.arange(len(there)), best] < -math.log1p(Settings().least_gain)
        chosen[there] = np.where(pays, best, 0)
    actual = np.concatenate([np.zeros((jobs, 1)), np.where(np.isfinite(data.times), data.times, np.inf)], axis=1)
    rows = np.arange(jobs)
    ways = {"learned": chosen, "heuristic": data.heuristic, "ssgd": np.zeros(jobs, int)}
    regret = {name: np.exp(actual[rows, way] - actual.min(axis=1)) - 1.0 for name, way in ways.items()}
    difference = regret["heuristic"] - regret["learned"]
    drawn_again = np.random.default_rng(1).integers(jobs, size=(2000, jobs))
    low, high = np.quantile(difference[drawn_again].mean(axis=1), [0.025, 0.975])
    over = {name: np.exp(actual[rows, way]) for name, way in ways.items()}
    return {
        "jobs": jobs,
        "regret": {name: round(float(value.mean()), 5) for name, value in regret.items()},
        "regret_95_percentile": {name: round(float(np.quantile(value, 0.95)), 4) for name, value in regret.items()},
        "heuristic_less_learned_interval": [round(float(low), 5), round(float(high), 5)],
        "worse_than_ssgd_by_2_percent": {n: round(float((v > 1.02).mean()), 4) for n, v in over.items() if n != "ssgd"},
        "asgd_slower_than_ssgd": round(float((actual[:, SIMULATED.index("asgd")] > 0).mean()), 4),
    }


def heuristic_by_rate(data: Outcome) -> list[str]:
    """Where the heuristic loses: mean time beyond the best mode's by the learning rate, and by what it chose there."""
    actual = np.concatenate(
        [np.zeros((len(data.job), 1)), np.where(np.isfinite(data.times), data.times, np.inf)], axis=1
    )
    regret = np.exp(actual[np.arange(len(data.job)), data.heuristic] - actual.min(axis=1)) - 1.0
    rate, lines = data.job[:, OF_JOB.index("rate")], []
    for low, high in ((0.2, 0.4), (0.4, 0.8), (0.8, 1.0)):
        there = (rate >= low) & (rate <= high)
        told = []
        for place, mode in enumerate(SIMULATED):
            those = there & (data.heuristic == place)
            if those.any():
                told.append(f"{mode} {regret[those].mean():.3f} of {those.sum()}")
        lines.append(f"rate {low} to {high}: {regret[there].mean():.3f} of {there.sum()} jobs ({', '.join(told)})")
    return lines


def main() -> int:
    """Simulate, validate, train on everything, write."""
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, default=600)
    options.add_argument("--keep", type=Path, default=Path("chooser-jobs"))
    options.add_argument("--parts", type=int, help="simulate at most so many parts of 50 jobs, then leave")
    options.add_argument("-o", "--output", type=Path, default=model.DEFAULT)
    asked = options.parse_args()
    data = collected(asked.jobs, asked.keep, asked.parts)
    if data is None:
        return 0
    about = validated(data)
    print(json.dumps(about, indent=1))
    print("\n".join(heuristic_by_rate(data)))
    whole = model.Model(fitted(data, np.ones(len(data.job), bool), 0), model.range_of(data.job), about)
    model.save(asked.output, whole)
    size = asked.output.stat().st_size
    print(f"Wrote {asked.output}, {size} bytes")
    return int(size > LARGEST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
