"""How often a healthy run is accused.

Draws healthy synthetic runs (nothing injected) over the whole range that "healthy" means here: 8 to `--max-ranks`
ranks, step-to-step CV of 1-20 %, AR(1) of 0-0.9, ranks that differ constantly by 0-3 % (standard deviation), normal
and heavy-tailed noise, 100 to 1,000 steps. Counts the runs in which a rank was named, and other verdicts than `none`.

    python benchmarks/false_alarms.py --runs 3000
"""

import argparse
import collections
import time

import numpy as np

from starprof.analysis import diagnose
from starprof.analysis.synthetic import SyntheticRun

ALLOWED_RATE = 0.001


def healthy_run(seed: int, max_ranks: int, heavy_tails: bool) -> SyntheticRun:
    """One random healthy recipe."""
    rng = np.random.default_rng([7, seed])
    return SyntheticRun(
        ranks=int(np.exp(rng.uniform(np.log(8), np.log(max_ranks)))),
        steps=int(np.exp(rng.uniform(np.log(100), np.log(1000)))),
        seed=seed,
        cv=rng.uniform(0.01, 0.2),
        ar1=rng.uniform(0.0, 0.9),
        spread=rng.uniform(0.0, 0.03),
        heavy_tail=heavy_tails and bool(rng.random() < 0.3),
        counters=False,
    )


def main() -> None:
    """Print one line per alarm and the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--max-ranks", type=int, default=1024)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--normal", action="store_true", help="no heavy-tailed runs")
    options = parser.parse_args()
    verdicts: collections.Counter[str] = collections.Counter()
    accused = 0
    began = time.process_time()
    for seed in range(options.first_seed, options.first_seed + options.runs):
        run = healthy_run(seed, options.max_ranks, not options.normal)
        verdict = diagnose(run.data())
        verdicts[verdict.verdict] += 1
        named = any(finding.ranks for finding in verdict.findings)
        accused += named
        if verdict.verdict != "none" or named:
            what = "; ".join(
                f"{f.kind} {f.ranks} from {f.onset_step} x{f.slowdown:.3f}"
                for f in verdict.findings
                if f.kind != "one-off"
            )
            print(
                f"seed {seed}: {run.ranks} ranks, {run.steps} steps, cv {run.cv:.3f}, ar1 {run.ar1:.2f}, spread "
                f"{run.spread:.4f}, heavy {run.heavy_tail}: {verdict.verdict}: {what}"
            )
    rate = accused / options.runs
    print(f"{options.runs} healthy runs: {accused} accused ({rate:.4%}; allowed {ALLOWED_RATE:.1%}); {dict(verdicts)}")
    print(f"CPU time {time.process_time() - began:.0f} s")


if __name__ == "__main__":
    main()
