"""How small a slowness is found, how often the wrong rank is named, and how often a healthy run is accused.

Draws synthetic runs of 200 steps at random from a grid (slowdown of one rank 1.02x to 5x, from the first step on or
from a third of the run on; step-to-step CV; constant differences between ranks; number of ranks) and healthy ones as in
false_alarms.py, and gives each to the offline diagnosis and, with `--live`, step by step to the running job's detector.

Every run is a line of `--out`; called again, it goes on where it stopped, so that the work can be done in pieces:

    python benchmarks/power.py --runs 3000 --healthy 3000 --out power.jsonl
    python benchmarks/power.py --out power.jsonl                # only the tables
"""

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from false_alarms import healthy_run

from starprof.analysis import diagnose
from starprof.analysis.live.detector import OnlineDetector
from starprof.analysis.synthetic import Slow, SyntheticRun

STEPS = 200
SLOWDOWNS = (1.02, 1.04, 1.06, 1.1, 1.2, 1.5, 2.0, 5.0)
CVS = (0.01, 0.03, 0.05, 0.1, 0.2)
SPREADS = (0.0, 0.005, 0.01, 0.03)
RANKS = (8, 16, 64, 256)
ONSETS = (0, STEPS // 3)
WORK = ("data_wait", "h2d", "forward", "backward", "optimizer", "unaccounted")
GOALS = ((1.2, 0.99), (1.06, 0.90))
ALLOWED = 0.001

Row = dict[str, object]


def slow_recipe(seed: int) -> dict[str, float]:
    """One random recipe with a slow rank."""
    rng = np.random.default_rng([23, seed])
    ranks = int(rng.choice(RANKS))
    return {
        "slowdown": float(rng.choice(SLOWDOWNS)),
        "cv": float(rng.choice(CVS)),
        "spread": float(rng.choice(SPREADS)),
        "ranks": ranks,
        "onset": int(rng.choice(ONSETS)),
        "rank": int(rng.integers(ranks)),
    }


def slow_run(seed: int) -> tuple[SyntheticRun, dict[str, float]]:
    """The run of a recipe: all regular work of one rank takes longer."""
    recipe = slow_recipe(seed)
    rank, start = int(recipe["rank"]), int(recipe["onset"])
    faults = tuple(Slow(phase, (rank,), factor=recipe["slowdown"], start=start) for phase in WORK)
    run = SyntheticRun(
        ranks=int(recipe["ranks"]),
        steps=STEPS,
        seed=seed,
        cv=recipe["cv"],
        spread=recipe["spread"],
        counters=False,
        faults=faults,
    )
    return run, recipe


def offline(run: SyntheticRun) -> Row:
    """Whom the offline diagnosis blames."""
    verdict = diagnose(run.data())
    return {
        "verdict": verdict.verdict,
        "blamed": sorted({rank for finding in verdict.findings for rank in finding.ranks}),
        "onset": next((f.onset_step for f in verdict.findings if f.ranks), None),
    }


def online(run: SyntheticRun) -> Row:
    """Whom the running job's detector names, and with which step it first did."""
    data = run.data()
    blocked = data.steps["blocked_us"]
    own = data.steps["dur_us"] - blocked
    detector = OnlineDetector(data.ranks)
    found = [f for step in range(own.shape[1]) for f in detector.observe(step, own[:, step], blocked[:, step])]
    return {
        "named": sorted({f.rank for f in found}),
        "confirmed": sorted({f.rank for f in found if f.status == "confirmed"}),
        "seen": min((f.seen_step for f in found), default=None),
    }


def measure(kind: str, seed: int, max_ranks: int, live: bool) -> Row:
    """One run's line."""
    if kind == "slow":
        run, recipe = slow_run(seed)
    else:
        run = healthy_run(seed, max_ranks, heavy_tails=True)
        recipe = {"cv": run.cv, "spread": run.spread, "ranks": run.ranks, "ar1": run.ar1, "steps": run.steps}
    line: Row = {"kind": kind, "seed": seed, **recipe, **{f"offline_{k}": v for k, v in offline(run).items()}}
    if live:
        line |= {f"live_{k}": v for k, v in online(run).items()}
    return line


def extend(path: Path, kind: str, runs: int, options: argparse.Namespace) -> None:
    """Add what is missing of this many runs."""
    done = sum(line["kind"] == kind for line in read(path))
    with path.open("a") as out:
        for seed in range(done, runs):
            line = measure(kind, seed, options.max_ranks, options.live)
            out.write(json.dumps(line) + "\n")
            out.flush()


def read(path: Path) -> list[Row]:
    """All complete lines; one that was cut by an interruption is left out."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    if len(whole) < len(lines):
        path.write_text("".join(whole))
    return [json.loads(line) for line in whole]


def rate(lines: Iterable[Row], hit: str) -> str:
    """Recall among lines, with their number."""
    hits = [line[hit] == [line["rank"]] for line in lines]
    return f"{np.mean(hits):4.0%} ({len(hits)})" if hits else "-"


def table(lines: list[Row], column: str, values: tuple[float, ...], hit: str) -> str:
    """Recall by slowdown and another column, as Markdown."""
    head = f"| slowdown | {' | '.join(f'{column} {v:g}' for v in values)} |"
    rows = [head, "|---" * (len(values) + 1) + "|"]
    for slowdown in SLOWDOWNS:
        cells = (rate((x for x in lines if x["slowdown"] == slowdown and x[column] == v), hit) for v in values)
        rows.append(f"| {slowdown:g}x | {' | '.join(cells)} |")
    return "\n".join(rows)


def report(lines: list[Row]) -> None:
    """Print the tables and whether the goals are met."""
    slow = [line for line in lines if line["kind"] == "slow"]
    healthy = [line for line in lines if line["kind"] == "healthy"]
    quiet = [x for x in slow if float(str(x["cv"])) <= 0.05 and float(str(x["spread"])) <= 0.01]
    for name, hit in (("offline", "offline_blamed"), ("live, confirmed", "live_confirmed")):
        if not any(hit in line for line in lines):
            continue
        known, calm, well = ([x for x in part if hit in x] for part in (slow, quiet, healthy))
        print(f"\n## {name}: recall, spread <= 1 %\n")
        print(table([x for x in known if float(str(x["spread"])) <= 0.01], "cv", CVS, hit))
        for column, values in (("spread", SPREADS), ("ranks", RANKS), ("onset", ONSETS)):
            chosen = [x for x in known if float(str(x["cv"])) <= 0.05] if column == "spread" else calm
            print(f"\nCV <= 5 %{'' if column == 'spread' else ', spread <= 1 %'}:\n")
            print(table(chosen, column, values, hit))
        for slowdown, goal in GOALS:
            at_least = [x for x in calm if float(str(x["slowdown"])) >= slowdown]
            exactly = [x for x in at_least if x["slowdown"] == slowdown]
            print(f"\nat {slowdown}x {rate(exactly, hit)}, from there on {rate(at_least, hit)} (goal {goal:.0%})")
        wrong = [x for x in known if set(x[hit]) - {x["rank"]}]  # type: ignore[call-overload]
        accused = [x for x in well if x[hit]]
        print(f"wrong rank named in {len(wrong)} of {len(known)} (allowed {ALLOWED:.1%}): {[x['seed'] for x in wrong]}")
        print(f"healthy accused {len(accused)} of {len(well)} (allowed {ALLOWED:.1%}): {[x['seed'] for x in accused]}")
    delays(slow)


def delays(slow: list[Row]) -> None:
    """How many steps after the onset the live detector spoke first."""
    for slowdown in SLOWDOWNS:
        seen = [
            int(str(x["live_seen"])) - int(str(x["onset"])) + 1
            for x in slow
            if x["slowdown"] == slowdown
            and x["onset"] != 0
            and float(str(x["cv"])) <= 0.05
            and x.get("live_named") == [x["rank"]]
        ]
        if seen:
            print(
                f"live, {slowdown}x, CV <= 5 %: first seen after {np.median(seen):.0f} steps (median), "
                f"90 % within {np.quantile(seen, 0.9):.0f}, of {len(seen)} seen"
            )


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=0, help="runs with a slow rank, in all")
    parser.add_argument("--healthy", type=int, default=0, help="healthy runs, in all")
    parser.add_argument("--max-ranks", type=int, default=1024, help="largest healthy run")
    parser.add_argument("--live", action="store_true", help="also step by step")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    os.nice(10)
    extend(options.out, "slow", options.runs, options)
    extend(options.out, "healthy", options.healthy, options)
    report(read(options.out))


if __name__ == "__main__":
    main()
