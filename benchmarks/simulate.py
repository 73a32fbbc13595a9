"""What the simulator costs, and how far its noise-scale model agrees with real gradients.

Speed: 1,024 workers x 1,000 updates with the noise-scale model, 32 workers x 2,000 updates with real gradients; CPU
time of this process, since other processes may share the machine.

Agreement: small models are trained for real on handwritten digits, until the loss is what synchronous training reaches
after a number of iterations; the noise-scale model says how long each mode should take for that. Its noise scale is
measured on the same models; learning rate and cost of staleness, which it needs too, are fitted to some modes and
judged by others, and by other stragglers.

Run: python benchmarks/simulate.py [--only speed|real|agreement] [--model NAME]; figures go to stdout as JSON.
"""

import argparse
import json
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices: more threads only cost

import numpy as np

from starprof.demo.digits import MODELS, digits, model
from starprof.simulation import Mode, NoiseScale, RealTraining, Steady, Until, Worker, simulate
from starprof.simulation.scenarios import Traits, scenario
from starprof.simulation.training.real import noise_scale

WORKERS, BATCH, ITERATIONS = 8, 16, 80
LONGEST = 3  # times as many iterations as synchronous training needs; a mode that needs more is told as "not reached"
WINDOW = 9  # iterations over which a loss is smoothed
RATES = {"logistic": 0.5, "mlp": 0.5, "cnn": 0.5, "transformer": 0.2}
TO_FIT = (Mode("asgd"), Mode("m-sync", {"m": 4}))
TO_JUDGE = (
    Mode("static-x", {"x": 2}),
    Mode("static-x", {"x": 6}),
    Mode("m-sync", {"m": 6}),
    Mode("m-sync-fold", {"m": 6}),
    Mode("dynamic-x"),
    Mode("rennala", {"batch": 8}),
    Mode("local-sgd", {"period": 4}),
)
KINDS = ("persistent", "heavy-tailed")


def cpu_s(mode, workers, training, updates):
    begun = time.process_time()
    simulate(mode, workers, training, until=Until(updates=updates))
    return round(time.process_time() - begun, 2)


def speed(_names):
    staff = [Worker(index, Steady(1.0, cv=0.1), batch=32) for index in range(1024)]
    modes = (Mode("ssgd"), Mode("static-x", {"x": 900}), Mode("m-sync", {"m": 900}), Mode("asgd"))
    return {str(mode): cpu_s(mode, staff, NoiseScale(phi=300), 1_000) for mode in modes}


def real(names):
    data = digits()
    staff = [Worker(index, Steady(1.0, cv=0.1), batch=16) for index in range(32)]
    return {
        f"{name} {mode}": cpu_s(mode, staff, RealTraining(model(name), data, RATES[name]), 2_000)
        for name in names
        for mode in (Mode("ssgd"), Mode("asgd"))
    }


def real_s(name, data, mode, job, seeds, target):
    """Geometric mean, over the seeds, of the seconds until the smoothed loss is as low as it should be."""
    training = RealTraining(model(name), data, RATES[name], evaluate_every=1.0)
    times = []
    for seed in seeds:
        history = simulate(mode, job.workers, training, until=Until(progress=LONGEST * ITERATIONS), seed=seed)
        times.append(reached(history, target(seed)))
    return float(np.exp(np.mean(np.log(times))))


def smoothed(history):
    """Mean loss over the last iterations at each evaluation, of which modes make unequally many."""
    progress = np.array([e.progress for e in history.evaluations])
    losses = np.array([e.loss for e in history.evaluations])
    return np.array([losses[(progress > p - WINDOW) & (progress <= p)].mean() for p in progress])


def reached(history, target):
    below = np.flatnonzero(smoothed(history) <= target)
    return history.evaluations[below[0]].at_s if len(below) else np.inf


def model_s(training, mode, job, seed=0):
    until = Until(learned=ITERATIONS, progress=20 * ITERATIONS)
    return simulate(mode, job.workers, training, until=until, seed=seed).time_to_learned(ITERATIONS) or np.inf


def agreement(names, seeds=(0, 1)):
    data, told = digits(), {}
    for name in names:
        training = RealTraining(model(name), data, RATES[name], evaluate_every=1.0)
        phi = noise_scale(training, WORKERS * BATCH, after=ITERATIONS // 2)
        targets = {}
        for seed in seeds:
            job = scenario("even", WORKERS, traits=Traits(batch=BATCH))
            history = simulate(Mode("ssgd"), job.workers, training, until=Until(progress=ITERATIONS + 1), seed=seed)
            targets[seed] = float(smoothed(history)[ITERATIONS])
        jobs = {kind: scenario(kind, WORKERS, traits=Traits(batch=BATCH, tail_index=1.8)) for kind in KINDS}
        measured = {}
        for kind, job in jobs.items():
            times = {str(m): real_s(name, data, m, job, seeds, targets.get) for m in (Mode("ssgd"), *TO_FIT, *TO_JUDGE)}
            measured[kind] = {m: t / times["ssgd"] for m, t in times.items()}
        fitted = fit(phi, jobs["persistent"], measured["persistent"])
        rows = {}
        for kind, job in jobs.items():
            base = model_s(fitted, Mode("ssgd"), job)
            for mode in (*TO_FIT, *TO_JUDGE) if kind != "persistent" else TO_JUDGE:
                rows[f"{kind}: {mode}"] = (
                    round(measured[kind][str(mode)], 3),
                    round(model_s(fitted, mode, job) / base, 3),
                )
        misses = [abs(np.log(says / real)) for real, says in rows.values() if np.isfinite(real) and np.isfinite(says)]
        told[name] = {
            "phi": round(phi, 1),
            "rate": fitted.rate,
            "staleness_cost": fitted.staleness_cost,
            "real and model, of the time of ssgd": rows,
            "median miss": round(float(np.median(misses)), 3),
            "90 % of misses below": round(float(np.quantile(misses, 0.9)), 3),
            "within 10 %": f"{sum(m <= 0.1 for m in misses)} of {len(rows)}",
        }
    return told


def fit(phi, job, measured):
    """Rate and cost of staleness that explain the modes to fit best."""
    best = None
    for rate in (0.01, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0):
        for cost in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):
            training = NoiseScale(phi, cost, rate)
            base = model_s(training, Mode("ssgd"), job)
            miss = sum(np.log(model_s(training, m, job) / base / measured[str(m)]) ** 2 for m in TO_FIT)
            if best is None or miss < best[0]:
                best = (miss, training)
    return best[1]


PARTS = {"speed": speed, "real": real, "agreement": agreement}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--model", choices=MODELS)
    args = parser.parse_args()
    names = MODELS if args.model is None else (args.model,)
    print(json.dumps({name: part(names) for name, part in PARTS.items() if args.only in (None, name)}, indent=2))
