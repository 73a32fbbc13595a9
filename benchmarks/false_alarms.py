"""How often a healthy run is accused, by the offline diagnosis and by the running job's detector.

Draws healthy synthetic runs (nothing injected) over the whole range that "healthy" means here: 8 to `--max-ranks`
ranks, step-to-step CV of 1-20 %, AR(1) of 0-0.9, ranks that differ constantly by 0-3 % (standard deviation), normal
and (three in ten) heavy-tailed noise, 100 to 1,000 steps. Counts the runs in which a rank was named; live, a
provisional naming counts like any other.

    python benchmarks/false_alarms.py --runs 3000

Every run is a line of `--out`; called again with the same file, it goes on where it stopped.
"""

import argparse
import collections
import tempfile
from functools import partial
from pathlib import Path

from _random_runs import Line, at_most, extend, healthy_run, live, offline

ALLOWED = 0.001
DETECTORS = {"offline": "offline_blamed", "live": "live_named"}


def measure(max_ranks: int, detector: str, seed: int) -> Line:
    """One run's line."""
    run = healthy_run(seed, max_ranks)
    recipe = {name: getattr(run, name) for name in ("ranks", "steps", "cv", "ar1", "spread", "heavy_tail")}
    line: Line = {"seed": seed, **recipe}
    data = run.data()
    if detector != "live":
        line |= offline(data)
    if detector != "offline":
        line |= live(data)
    return line


def report(lines: list[Line]) -> None:
    """One line per alarm, and the rates."""
    for detector, named in DETECTORS.items():
        known = [line for line in lines if named in line]
        accused = [line for line in known if line[named]]
        for line in accused:
            print(f"{detector}: {line}")
        for what, part in (
            ("all", lambda _: True),
            ("normal", lambda line: not line["heavy_tail"]),
            ("heavy tails", lambda line: line["heavy_tail"]),
            ("256 ranks and more", lambda line: line["ranks"] >= 256),
        ):
            runs, hits = sum(map(part, known)), sum(map(part, accused))
            if runs:
                print(
                    f"{detector}, {what}: {hits} of {runs} healthy runs accused ({hits / runs:.3%}; at most "
                    f"{at_most(hits, runs):.2%} with 95 % confidence; allowed {ALLOWED:.1%})"
                )
    print("offline verdicts:", dict(collections.Counter(x["offline_verdict"] for x in lines if "offline_verdict" in x)))


def main() -> None:
    """Make what is missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--max-ranks", type=int, default=1024)
    parser.add_argument("--detector", choices=("offline", "live", "both"), default="both")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, help="keep every run's result here (and take what is there already)")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.runs)
    with tempfile.TemporaryDirectory() as folder:
        out = options.out or Path(folder) / "runs.jsonl"
        report(extend(out, seeds, partial(measure, options.max_ranks, options.detector), options.processes))


if __name__ == "__main__":
    main()
