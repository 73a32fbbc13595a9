"""How small a slowness is found, how soon, and how often the wrong rank is named.

Draws synthetic runs of 200 steps at random (slowdown of one rank 1.02x to 5x, from the first step on or from step 66 or
120 on; step-to-step CV; constant differences between ranks; number of ranks) and gives each to the offline diagnosis
and, step by step, to the running job's detector. Prints recall over slowdown by CV and by number of ranks as Markdown.

    python benchmarks/power.py --runs 1000
    python benchmarks/power.py --runs 400 --slowdown 1.06 --detector live      # how soon 1.06x is told

Every run is a line of `--out`; called again with the same file, it goes on where it stopped.
"""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from _random_runs import (
    CALM_CV,
    CALM_SPREAD,
    CVS,
    ONSETS,
    RANKS,
    SLOWDOWNS,
    SPREADS,
    Line,
    extend,
    live,
    offline,
    slow_run,
)

GOALS = ((1.2, 0.99), (1.06, 0.90))
SOON = {1.06: 30, 1.1: 30, 1.2: 10, 1.5: 3, 2.0: 3, 5.0: 3}
"""Steps after the onset within which the live detector should have said something."""
ALLOWED = 0.001


def measure(slowdown: float | None, detector: str, seed: int) -> Line:
    """One run's line."""
    run, recipe = slow_run(seed, slowdown)
    data = run.data()
    line: Line = {"seed": seed, **recipe}
    if detector != "live":
        line |= offline(data)
    if detector != "offline":
        line |= live(data)
    return line


def calm(line: Line) -> bool:
    """Whether the goals apply."""
    return bool(line["cv"] <= CALM_CV and line["spread"] <= CALM_SPREAD)


def found(hit: str) -> Callable[[Line], bool]:
    """Whether the slow rank and no other was named."""
    return lambda line: bool(line[hit] == [line["rank"]])


def soon(line: Line) -> bool:
    """Whether the live detector had named the slow rank in time."""
    told = line["live_seen"]
    return found("live_named")(line) and told - line["onset"] + 1 <= SOON[line["slowdown"]]


def rate(lines: list[Line], hit: Callable[[Line], bool]) -> str:
    """Share of lines, with their number."""
    return f"{np.mean([hit(line) for line in lines]):.0%} of {len(lines)}" if lines else "-"


def table(lines: list[Line], column: str, values: tuple[float, ...], hit: Callable[[Line], bool]) -> None:
    """Recall by slowdown and another column, as Markdown."""
    print(f"\n| slowdown | {' | '.join(f'{column} {v:g}' for v in values)} |\n{'|---' * (len(values) + 1)}|")
    for slowdown in sorted({line["slowdown"] for line in lines}):
        rows = [line for line in lines if line["slowdown"] == slowdown]
        print(f"| {slowdown:g}x | {' | '.join(rate([x for x in rows if x[column] == v], hit) for v in values)} |")


def recall(name: str, lines: list[Line], hit: str) -> None:
    """The tables and goals of one detector."""
    print(f"\n## {name}: the slow rank, and nobody else, is named\n\nSpread up to 1 %, by CV:")
    table([x for x in lines if x["spread"] <= CALM_SPREAD], "cv", CVS, found(hit))
    print("\nCV up to 5 %, by constant spread of the ranks:")
    table([x for x in lines if x["cv"] <= CALM_CV], "spread", SPREADS, found(hit))
    quiet = [x for x in lines if calm(x)]
    print("\nCV up to 5 %, spread up to 1 %:")
    table(quiet, "ranks", RANKS, found(hit))
    table(quiet, "onset", ONSETS, found(hit))
    for slowdown, goal in GOALS:
        exactly, more = ([x for x in quiet if test(x["slowdown"], slowdown)] for test in (float.__eq__, float.__ge__))
        print(f"\nat {slowdown}x {rate(exactly, found(hit))}, from there on {rate(more, found(hit))} (goal {goal:.0%})")
    wrong = [x["seed"] for x in lines if set(x[hit]) - {x["rank"]}]
    print(f"wrong rank named in {len(wrong)} of {len(lines)} (allowed {ALLOWED:.1%}): {wrong}")


def delays(lines: list[Line]) -> None:
    """How many steps after the onset the live detector spoke first."""
    late = [x for x in lines if x["onset"] > 0 and x["slowdown"] in SOON and x["spread"] <= CALM_SPREAD]
    print("\n## live: named (provisionally or not) in time, onset in the run, spread up to 1 %\n")
    print("In time: " + ", ".join(f"{slowdown:g}x {steps} steps" for slowdown, steps in SOON.items()))
    table(late, "cv", CVS, soon)
    quiet = [x for x in late if calm(x)]
    for cv in CVS[:3]:
        print(f"\nCV {cv:g}:")
        table([x for x in late if x["cv"] == cv], "ranks", RANKS, soon)
    table(quiet, "onset", ONSETS[1:], soon)
    for slowdown in SOON:
        rows = [x for x in quiet if x["slowdown"] == slowdown and found("live_named")(x)]
        first = [x["live_seen"] - x["onset"] + 1 for x in rows]
        sure = [x["live_sure"] - x["onset"] + 1 for x in rows if x["live_sure"] is not None]
        if first and sure:
            print(
                f"\n{slowdown:g}x: first word after {np.median(first):.0f} steps (median; 90 % within "
                f"{np.quantile(first, 0.9):.0f}), confirmed after {np.median(sure):.0f} ({np.quantile(sure, 0.9):.0f})"
            )


def main() -> None:
    """Make what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--slowdown", type=float, choices=SLOWDOWNS, help="only this one")
    parser.add_argument("--detector", choices=("offline", "live", "both"), default="both")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, help="keep every run's result here (and take what is there already)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = options.out or Path(folder) / "runs.jsonl"
        one = partial(measure, options.slowdown, options.detector)
        lines = extend(out, range(options.runs), one, options.processes)
    for name, hit in (("offline", "offline_blamed"), ("live", "live_confirmed")):
        if any(hit in line for line in lines):
            recall(name, [line for line in lines if hit in line], hit)
    delays([line for line in lines if "live_named" in line])


if __name__ == "__main__":
    main()
