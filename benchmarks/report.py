"""Size and time of the HTML report, for few and for many ranks.

    python benchmarks/report.py [--ranks 4 512] [--steps 2000] [--json]

Each run is synthetic but takes the real way: simulated, saved with the real schema, loaded back from the run file,
diagnosed, rendered. `total` is what `starprof report` does: load + diagnose + render + write.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from starprof.analysis import diagnose
from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.reports import html, write
from starprof.store.query import load_run
from starprof.store.save import save_run

Result = TypeVar("Result")
GOAL_BYTES, GOAL_S = 4_000_000, 10.0  # 512 ranks x 2,000 steps


def measure(ranks: int, steps: int, rate_hz: float) -> dict[str, float | int | str]:
    """One report; CPU seconds beside wall seconds, because a busy machine stretches only the latter."""
    spent: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Result]) -> Result:
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        spent[f"{name}_s"] = round(time.perf_counter() - wall, 3)
        spent[f"{name}_cpu_s"] = round(time.process_time() - cpu, 3)
        return result

    slow = Slow(phase="backward", us=30_000.0, ranks=(ranks * 5 // 8,), start=steps // 5)
    recipe = SyntheticRun(ranks=ranks, steps=steps, nodes=max(1, ranks // 8), faults=(slow,), rate_hz=rate_hz)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.starprof"
        save_run(recipe.data(), path)
        run = timed("load", lambda: load_run(path))
        verdict = timed("diagnose", lambda: diagnose(run))
        page = timed("render", lambda: html.render(run, verdict))
        size = timed("write", lambda: write.write(Path(folder) / "report.html", page))
    total = {kind: round(sum(v for k, v in spent.items() if k.endswith(kind)), 2) for kind in ("_s", "_cpu_s")}
    total["_s"] = round(total["_s"] - total["_cpu_s"], 2)  # "_s" also ends the CPU times
    return {
        "ranks": ranks,
        "steps": steps,
        "bytes": size,
        **spent,
        "total_s": total["_s"],
        "total_cpu_s": total["_cpu_s"],
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "verdict": verdict.verdict,
        "blamed": ", ".join(str(rank) for finding in verdict.findings for rank in finding.ranks),
        "expected": str(slow.ranks[0]) if slow.ranks else "",
    }


def main() -> int:
    """Measure, print, and fail when a goal is missed."""
    parser = argparse.ArgumentParser(description="size and time of the HTML report")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 512])
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--rate", type=float, default=10.0, help="samples per second of the counters")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = [measure(ranks, options.steps, options.rate) for ranks in options.ranks]
    if options.json:
        print(json.dumps({"goal": {"bytes": GOAL_BYTES, "total_s": GOAL_S}, "results": results}, indent=2))
    else:
        print("| ranks x steps | size | load | diagnose | render | total | total CPU | peak RSS |")
        print("|---|---|---|---|---|---|---|---|")
        for row in results:
            print(
                f"| {row['ranks']} x {row['steps']:,} | {row['bytes'] / 1e6:.2f} MB | {row['load_s']:.2f} s "
                f"| {row['diagnose_s']:.2f} s | {row['render_s']:.2f} s | {row['total_s']:.2f} s "
                f"| {row['total_cpu_s']:.2f} s | {row['peak_rss_mb']} MB |"
            )
    return int(any(row["bytes"] > GOAL_BYTES or row["total_s"] > GOAL_S for row in results))


if __name__ == "__main__":
    sys.exit(main())
