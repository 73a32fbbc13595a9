"""Time and memory of the diagnosis of long runs, and whether it finds what is in them.

Makes runs of 1,024 ranks (or `--ranks`) chunk by chunk, so that the data themselves never lie in memory: one rank is
1.06x slow from 40 % of the run on, another one 1.5x for 100 steps. Each size runs in a process of its own, for its peak
of resident memory.

    python benchmarks/scale.py                    # 1e6 and 1e7 rank-steps
    python benchmarks/scale.py --largest          # 1e8 as well
"""

import argparse
import json
import multiprocessing
import os
import resource
import time

import numpy as np

from starprof.analysis.long.run import diagnose_long
from starprof.analysis.synthetic import SyntheticRun
from starprof.model.rundata import RunData, Steps

CHUNK = 256
CV = 0.03
ALLOWED_MB = 300
PHASES = {"data_wait_us": 2_000.0, "forward_us": 20_000.0, "backward_us": 36_000.0, "optimizer_us": 4_000.0}
SLOW, SLOWDOWN = 17, 1.06
SHORT, SHORT_SLOWDOWN, SHORT_STEPS = 5, 1.5, 100


class LongRun:
    """A run that is made when it is read; every chunk is always the same."""

    def __init__(self, ranks: int, steps: int) -> None:
        self.steps = steps
        self.onset = int(0.4 * steps)
        self.short = int(0.7 * steps)
        self._level = 1.0 + 0.005 * np.random.default_rng(0).standard_normal((ranks, 1))
        self._shell = SyntheticRun(ranks=ranks, steps=2, counters=False).data()
        self.made_s = 0.0

    def window(self, first: int, end: int) -> RunData:
        """The steps [first, end)."""
        began = time.process_time()
        chunks = [self._chunk(k) for k in range(first // CHUNK, -(-end // CHUNK))]
        offset = first // CHUNK * CHUNK
        inside = slice(first - offset, end - offset)
        columns = {name: np.concatenate([c[name] for c in chunks], axis=1)[:, inside] for name in chunks[0]}
        steps = np.arange(first, min(end, self.steps))
        start = np.broadcast_to(steps * 70_000_000 + 1, columns["dur_us"].shape)
        self.made_s += time.process_time() - began
        data = self._shell
        return RunData(
            info=data.info,
            attempt=0,
            ranks=data.ranks,
            steps=Steps(steps, columns, np.ascontiguousarray(start)),
            samples=data.samples,
            events=data.events,
            gaps=data.gaps,
            unavailable=data.unavailable,
            nodes=data.nodes,
        )

    def _chunk(self, number: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([1, number])
        first = number * CHUNK
        step = np.arange(first, min(first + CHUNK, self.steps))
        shape = (len(self._level), len(step))
        noise = self._level * (1.0 + CV * rng.standard_normal(shape))
        noise[SLOW] *= np.where(step >= self.onset, SLOWDOWN, 1.0)
        hit = (step >= self.short) & (step < self.short + SHORT_STEPS)
        noise[SHORT] *= np.where(hit, SHORT_SLOWDOWN, 1.0)
        columns = {name: us * noise for name, us in PHASES.items()}
        own = np.sum(list(columns.values()), axis=0)
        columns["blocked_us"] = own.max(axis=0) - own + 4_000.0
        columns["dur_us"] = own + columns["blocked_us"]
        return columns


def measure(ranks: int, steps: int, out: "multiprocessing.SimpleQueue[str]") -> None:
    """Diagnose one run and report its figures."""
    run = LongRun(ranks, steps)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    verdict = diagnose_long(run.window, 0, steps)
    seconds = time.process_time() - began - run.made_s
    found = {f.ranks: (f.onset_step, f.end_step) for f in verdict.findings if f.ranks}
    onset = found.get((SLOW,), (None, None))[0]
    short = found.get((SHORT,), (None, None))
    line = {
        "rank_steps": ranks * steps,
        "steps": steps,
        "seconds": round(seconds, 1),
        "rank_steps_per_s": int(ranks * steps / max(seconds, 1e-9)),
        "generating_s": round(run.made_s, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "peak_before_mb": before // 1024,
        "verdict": verdict.verdict,
        "blamed": sorted(rank for ranks in found for rank in ranks),
        "onset_off_by": None if onset is None else onset - run.onset,
        "short_onset_off_by": None if short[0] is None else short[0] - run.short,
    }
    out.put(json.dumps(line))


def main() -> None:
    """One line per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--largest", action="store_true", help="1e8 rank-steps as well")
    parser.add_argument("--sizes", type=float, nargs="*", help="rank-steps, instead of the usual ones")
    options = parser.parse_args()
    os.nice(10)
    sizes = options.sizes or [1e6, 1e7, *([1e8] if options.largest else [])]
    context = multiprocessing.get_context("spawn")
    for size in sizes:
        out = context.SimpleQueue()
        process = context.Process(target=measure, args=(options.ranks, round(size / options.ranks), out))
        process.start()
        process.join()
        line = json.loads(out.get()) if not out.empty() else {"rank_steps": size, "failed": process.exitcode}
        print(json.dumps(line), flush=True)
        if line.get("peak_mb", 0) > ALLOWED_MB:
            print(f"more than {ALLOWED_MB} MB resident")


if __name__ == "__main__":
    main()
