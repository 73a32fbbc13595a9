"""How often a steady job-level series is called slow, and how small a shift is found.

Draws step times of a whole job as lognormal AR(1) noise: step-to-step CV of 1-20 %, AR(1) of 0-0.9, 60 to 2,000
records. Without a fault it counts verdicts other than `none` and findings that last; with `--shift` it makes the last
part of the run longer by that share and counts how often that is found, and its onset told.

    python benchmarks/job_series.py --runs 3000
    python benchmarks/job_series.py --runs 300 --shift 0.05
"""

import argparse
import collections
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "analysis"))

from series_runs import judged, noise

ALLOWED_RATE = 0.001


def steady(seed, heavy):
    """One random steady series and its recipe."""
    rng = np.random.default_rng([13, seed])
    recipe = {
        "n": int(np.exp(rng.uniform(np.log(60), np.log(2000)))),
        "cv": float(rng.uniform(0.01, 0.2)),
        "ar1": float(rng.uniform(0.0, 0.9)),
        "heavy": heavy and bool(rng.random() < 0.5),
    }
    return noise(**recipe, seed=seed), recipe


def main():
    """Print one line per alarm (without a shift) and the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--heavy", action="store_true", help="half of the series with Student's t noise")
    parser.add_argument("--shift", type=float, default=0.0)
    parser.add_argument("--cv", type=float)
    parser.add_argument("--ar1", type=float)
    parser.add_argument("--records", type=int)
    options = parser.parse_args()
    counted = collections.Counter()
    began = time.process_time()
    for seed in range(options.first_seed, options.first_seed + options.runs):
        seconds, recipe = steady(seed, options.heavy)
        fixed = {"cv": options.cv, "ar1": options.ar1, "n": options.records}
        if any(v is not None for v in fixed.values()):
            recipe |= {k: v for k, v in fixed.items() if v is not None}
            seconds = noise(**recipe, seed=seed)
        onset = int(len(seconds) * (0.3 + 0.4 * np.random.default_rng([17, seed]).random()))
        seconds[onset:] *= 1.0 + options.shift
        verdict = judged(seconds)
        lasting = [f for f in verdict.findings if f.kind != "one-off"]
        counted["other verdicts"] += verdict.verdict != "none"
        counted["lasting findings"] += bool(lasting)
        counted["one-off findings"] += len(lasting) < len(verdict.findings)
        counted["onset in its interval"] += any(f.onset_interval[0] <= onset <= f.onset_interval[1] for f in lasting)
        if not options.shift and (verdict.verdict != "none" or lasting):
            told = "; ".join(
                f"{f.kind} x{f.slowdown:.3f} from {f.onset_step} to {f.end_step}" for f in verdict.findings
            )
            print(f"seed {seed}: {recipe}: {verdict.verdict}: {told}", flush=True)
    for what, count in counted.items():
        print(f"{what}: {count} of {options.runs} ({count / options.runs:.2%}; a steady series: {ALLOWED_RATE:.1%})")
    print(f"CPU time {time.process_time() - began:.0f} s")


if __name__ == "__main__":
    main()
