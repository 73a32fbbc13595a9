"""What a choice of a mode costs: processor time of one decision for jobs of several sizes, and of predictions.

    python benchmarks/decide.py [--workers 8 64 1024] [--repeat 20]

Processor time, because that is what a choice takes from the node it runs on, and because it can be measured on a
machine that others use. Prints a line per size and leaves with 1 when a choice for 1,024 workers takes more than 50 ms,
or the LSTM's prediction for 64 of them more than 5 ms. Run it with OPENBLAS_NUM_THREADS=1: processor time of several
threads adds up.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from starprof.decision.choice.heuristic import choose
from starprof.decision.choice.situation import NoiseScale, Situation
from starprof.decision.prediction.baselines import BASELINES
from starprof.decision.prediction.history import COLUMNS, WINDOW
from starprof.decision.prediction.lstm import HIDDEN, Lstm, expected_shapes

LIMIT_MS = 50.0
LIMITED_WORKERS = 1024
PREDICTED_WORKERS, PREDICTION_LIMIT_MS = 64, 5.0


def situation(workers: int, seed: int) -> Situation:
    """Times of a job in which one worker of a hundred, and one at least, takes twice as long."""
    rng = np.random.default_rng(seed)
    times = rng.lognormal(0.0, 0.05, (30, workers)) * 0.5
    times[:, rng.choice(workers, max(1, workers // 100), replace=False)] *= 2.0
    return Situation(tuple(range(workers)), times, 32, NoiseScale(1000.0, 4000.0))


def predictions(repeat: int) -> float:
    """Prints what each predictor takes; returns the LSTM's milliseconds. What its weights are makes no difference."""
    rng = np.random.default_rng(0)
    weights = {n: rng.normal(0, 0.3, shape).astype(np.float32) for n, shape in expected_shapes(HIDDEN).items()}
    past = rng.lognormal(0, 0.1, (PREDICTED_WORKERS, WINDOW, COLUMNS))
    median = 0.0
    for predictor in (*BASELINES, Lstm(weights)):
        spent = []
        for _ in range(repeat + 1):
            begin = time.process_time()
            predictor.predict(past)
            spent.append((time.process_time() - begin) * 1000.0)
        median = float(np.median(spent[1:]))
        print(f"{predictor.name:>10}, {PREDICTED_WORKERS} workers: median {median:5.2f} ms")
    return median


def main() -> int:
    """Measure, print, judge."""
    options = argparse.ArgumentParser()
    options.add_argument("--workers", type=int, nargs="+", default=[8, 64, 1024])
    options.add_argument("--repeat", type=int, default=20)
    asked = options.parse_args()
    too_slow = False
    for workers in asked.workers:
        spent = []
        for seed in range(asked.repeat + 1):
            given = situation(workers, seed)
            begin = time.process_time()
            choice = choose(given)
            spent.append((time.process_time() - begin) * 1000.0)
        median, worst = float(np.median(spent[1:])), max(spent[1:])
        print(f"{workers:5} workers: median {median:6.1f} ms, worst {worst:6.1f} ms, last chose {choice.mode}")
        too_slow |= workers == LIMITED_WORKERS and median > LIMIT_MS
    too_slow |= predictions(asked.repeat) > PREDICTION_LIMIT_MS
    print(f"torch imported: {'torch' in sys.modules}")
    return int(too_slow or "torch" in sys.modules)


if __name__ == "__main__":
    sys.exit(main())
