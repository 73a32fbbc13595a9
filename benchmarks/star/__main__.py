"""Does STAR hold? The claims of arXiv 2512.09685 and 2602.03802, one by one, in simulated time with real gradients.

    python benchmarks/star run [--limits | --shared] [--out FILE] [--minutes N] [--only REGEX] [--seeds N]
    python benchmarks/star tell [--limits | --shared] [--out FILE] [--page PAGE.html]
    python benchmarks/star tune

`run` simulates trainings (`tasks.py`) on workers with made-up and recorded troubles (`scenarios.py`) under fixed modes
and choosers (`methods.py`). Each is a line of FILE as soon as it is there; a second start goes on where the first one
stopped, and whatever is there is balanced (`design.py`). `tell` prints the claims with our figures. `tune` prints
accuracy by learning rate for synchronous steps where nobody is slow. With `--limits` choosers are compared that may
take more or less risk (`limited.py`). With --shared jobs are beside others, and it is compared what
plans for the nodes add (`shared.py`).
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from _records import append, read

RESULTS = Path("star.jsonl")
RATES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


def results(path: Path) -> list[dict[str, Any]]:
    """What is there; of a cell that was run again, the newest."""
    return list({record["cell"]: record for record in read(path)}.values())


def run_all(options: argparse.Namespace) -> None:
    """Run what is not there yet."""
    import cells
    import design
    import limited
    import shared

    there = {record["cell"] for record in results(options.out)}
    pattern = re.compile(options.only)
    planned = limited if options.limits else shared if options.shared else design
    run = shared.run if options.shared else cells.run
    todo = [c for c in planned.design(options.seeds) if c.name not in there and pattern.search(c.name)]
    ends_s = time.monotonic() + 60.0 * options.minutes
    for place, cell in enumerate(todo):
        if time.monotonic() > ends_s:
            print(f"{len(todo) - place} cells are left: start it again to go on", file=sys.stderr)
            break
        append(options.out, run(cell))
        if place % 50 == 0:
            print(f"{place + 1}/{len(todo)}  {cell.name}", file=sys.stderr)


def tell_all(options: argparse.Namespace) -> None:
    """Print the tables; write the page."""
    import claims
    import limited
    import shared

    found = results(options.out)
    about = limited if options.limits else shared if options.shared else claims
    print("\n".join(about.tell([record for record in found if "cannot" not in record])))
    for why in sorted({record["cannot"] for record in found if "cannot" in record}):
        print(f"left out: {why}", file=sys.stderr)
    if options.page:
        from page import draw

        draw(found, options.page)


def tune(_options: argparse.Namespace) -> None:
    """Print the accuracy at the end for each rate, a mean of three seeds."""
    from scenarios import place_of
    from tasks import TASKS, training_of

    from starprof.simulation import Mode, Until, simulate

    for name, task in TASKS.items():
        for rate in RATES:
            found = [
                simulate(
                    Mode("ssgd"),
                    place_of("none", "ring", seed).workers,
                    training_of(name, rate),
                    until=Until(progress=task.progress),
                    seed=seed,
                ).accuracy
                for seed in range(3)
            ]
            print(f"{name:<12} {rate:<5} {mean(accuracy or 0.0 for accuracy in found):.4f}")


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["run", "tell", "tune"])
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of results")
    parser.add_argument("--minutes", type=float, default=90.0, help="begin no cell after this time")
    parser.add_argument("--only", default="", help="a regular expression that the names of cells match")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--limits", action="store_true", help="choosers with other limits of risk instead")
    parser.add_argument("--shared", action="store_true", help="jobs beside others, and what resources add")
    parser.add_argument("--page", type=Path, help="write the page there")
    options = parser.parse_args()
    {"run": run_all, "tell": tell_all, "tune": tune}[options.do](options)


if __name__ == "__main__":
    main()
