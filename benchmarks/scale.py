"""Time and memory of the diagnosis of long runs, and whether it finds what is in them.

Makes runs of 1,024 ranks (or `--ranks`): own time and waiting of every rank and step, in step order, on disk. One rank
is 1.06x slow from 40 % of the run on, another one 1.5x for 100 steps. Making them is not timed, and every measurement
runs in a process of its own, for its peak of resident memory:

- `arrays`: single-precision numbers as they lie on disk, read block by block: the scan with its own verdict, then the
  whole diagnosis (scan included);
- `run file`: the same as a run file, opened as `starprof summary` does, and its size.

    python benchmarks/scale.py                            # 1e6 and 1e7 rank-steps
    python benchmarks/scale.py --largest                  # 1e8 as well; making its run file takes minutes
    python benchmarks/scale.py --sizes 1e5 3e5 1e6 3e6 1e7 3e7 1e8 --plot docs/growth.svg
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pickle
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from starprof.analysis.long.choice import MOST_RANK_STEPS, diagnosed
from starprof.analysis.long.run import diagnose_long, judged_scan
from starprof.analysis.long.scan import scan_run
from starprof.model.rundata import RunData, Steps
from starprof.model.stepsource import StepBlock
from starprof.model.verdict import Verdict
from starprof.store.query import open_steps
from starprof.store.save import save_steps
from starprof.store.starts import reckoned_starts

CHUNK = 256
CV = 0.03
STEP_US, TRANSFER_US = 62_000.0, 4_000.0
ALLOWED_MB = 300
SLOW, SLOWDOWN = 17, 1.06
SHORT, SHORT_SLOWDOWN, SHORT_STEPS = 5, 1.5, 100
COLUMNS = ("dur_us", "blocked_us")
RUN_FILE, SHELL, DONE = "run.starprof", "shell", "done"


class FilesOnDisk:
    """A run whose columns are files of single-precision numbers, one step's ranks side by side: a `StepSource`."""

    def __init__(self, folder: Path, ranks: int, steps: int) -> None:
        self.folder, self.ranks = folder, ranks
        self.numbers = np.arange(steps)
        self.columns = COLUMNS

    @cached_property
    def shell(self) -> RunData:
        """All of the run but its steps; unpickled, since what draws it would count as memory of the diagnosis."""
        return pickle.loads((self.folder / SHELL).read_bytes())

    def blocks(self, first: int, end: int, size: int, columns: Sequence[str]) -> Iterator[StepBlock]:
        """Some steps, block by block."""
        for start in range(first, end, size):
            stop = min(start + size, end)
            yield StepBlock(self.numbers[start:stop], {name: self._read(name, start, stop) for name in columns})

    def raw(self, first: int, end: int) -> RunData:
        """Some steps as a run."""
        columns = {name: self._read(name, first, end).T.astype(np.float64) for name in COLUMNS}
        return replace(self.shell, steps=Steps(self.numbers[first:end], columns, reckoned_starts(columns["dur_us"])))

    def starts(self, places: np.ndarray) -> None:  # noqa: ARG002
        """Nobody measured them."""
        return

    def make(self) -> None:
        """Write the files."""
        from starprof.analysis.synthetic import SyntheticRun

        empty = Steps(np.zeros(0, np.int64), {}, np.zeros((self.ranks, 0), np.int64))
        shell = replace(SyntheticRun(ranks=self.ranks, steps=2, counters=False).data(), steps=empty)
        (self.folder / SHELL).write_bytes(pickle.dumps(shell))
        rng = np.random.default_rng(0)
        level = (1.0 + 0.005 * rng.standard_normal((1, self.ranks))).astype(np.float32)
        total = len(self.numbers)
        with open(self.folder / "dur_us", "wb") as duration, open(self.folder / "blocked_us", "wb") as waiting:
            for first in range(0, total, CHUNK):
                step = np.arange(first, min(first + CHUNK, total))
                noise = rng.standard_normal((len(step), self.ranks), dtype=np.float32)
                own = STEP_US * level * (1.0 + CV * noise)
                own[:, SLOW] *= np.where(step >= onset(total), SLOWDOWN, 1.0)
                own[:, SHORT] *= np.where(
                    (step >= short(total)) & (step < short(total) + SHORT_STEPS), SHORT_SLOWDOWN, 1
                )
                own = np.rint(own)
                blocked = own.max(axis=1, keepdims=True) - own + np.float32(TRANSFER_US)
                (own + blocked).tofile(duration)
                blocked.tofile(waiting)

    def _read(self, name: str, first: int, end: int) -> np.ndarray:
        count, at = (end - first) * self.ranks, first * self.ranks * 4
        return np.fromfile(self.folder / name, np.float32, count, offset=at).reshape(-1, self.ranks)


def onset(steps: int) -> int:
    """First step in which the slow rank is slow."""
    return int(0.4 * steps)


def short(steps: int) -> int:
    """First step in which the other one is slow for a while."""
    return int(0.7 * steps)


def make(folder: Path, ranks: int, steps: int, out: multiprocessing.SimpleQueue[str]) -> None:
    """Make a run on disk, as arrays and as a run file; what is there is taken as it is."""
    source = FilesOnDisk(folder, ranks, steps)
    if not (folder / DONE).exists():
        (folder / RUN_FILE).unlink(missing_ok=True)
        source.make()
        save_steps(source, folder / RUN_FILE)
        (folder / DONE).touch()
    out.put("{}")


def measure_arrays(folder: Path, ranks: int, steps: int, out: multiprocessing.SimpleQueue[str]) -> None:
    """The scan with its verdict, then the whole diagnosis."""
    source = FilesOnDisk(folder, ranks, steps)
    before_mb = peak_mb()
    began = time.perf_counter(), time.process_time()
    quick = judged_scan(scan_run(source))
    seconds, cpu_s = time.perf_counter() - began[0], time.process_time() - began[1]
    figures = {"scan_s": seconds, "scan_cpu_s": cpu_s, "scan_verdict": quick.verdict, "scan_peak_mb": peak_mb()}
    began = time.perf_counter(), time.process_time()
    verdict = diagnose_long(source).verdict
    seconds, cpu_s = time.perf_counter() - began[0], time.process_time() - began[1]
    figures |= {"whole_s": seconds, "whole_cpu_s": cpu_s, "peak_mb": peak_mb(), "imports_mb": before_mb}
    out.put(json.dumps(rounded(figures | told(verdict, steps))))


def measure_run_file(folder: Path, ranks: int, steps: int, out: multiprocessing.SimpleQueue[str]) -> None:
    """From opening the file to the verdict."""
    before_mb = peak_mb()
    began = time.perf_counter(), time.process_time()
    with open_steps(folder / RUN_FILE) as source:
        _, verdict = diagnosed(source)
    seconds, cpu_s = time.perf_counter() - began[0], time.process_time() - began[1]
    size = (folder / RUN_FILE).stat().st_size
    figures = {"whole_s": seconds, "whole_cpu_s": cpu_s, "peak_mb": peak_mb(), "imports_mb": before_mb}
    figures |= {"bytes_per_rank_step": size / (ranks * steps)}
    out.put(json.dumps(rounded(figures | told(verdict, steps))))


def told(verdict: Verdict, steps: int) -> dict[str, Any]:
    """What the verdict says of the two slow ranks."""
    found = {f.ranks: (f.onset_step, f.end_step) for f in verdict.findings if f.ranks}
    since, (begun, ended) = found.get((SLOW,), (None, None))[0], found.get((SHORT,), (None, None))
    return {
        "verdict": verdict.verdict,
        "blamed": sorted(rank for ranks in found for rank in ranks),
        "onset_off_by": None if since is None else since - onset(steps),
        "short_onset_off_by": None if begun is None else begun - short(steps),
        "short_end_off_by": None if ended is None else ended - short(steps) - SHORT_STEPS + 1,
    }


def peak_mb() -> int:
    """Peak of resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def rounded(figures: dict[str, Any]) -> dict[str, Any]:
    """Numbers as they are printed."""
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in figures.items()}


def in_process(work: Callable[..., None], *arguments: object) -> dict[str, Any]:
    """Run a measurement in a process of its own."""
    context = multiprocessing.get_context("spawn")
    out = context.SimpleQueue()
    process = context.Process(target=work, args=(*arguments, out))
    process.start()
    process.join()
    return json.loads(out.get()) if not out.empty() else {"failed": process.exitcode}


def measured(ranks: int, size: float, kept: Path | None) -> Iterator[dict[str, Any]]:
    """All figures of one size."""
    steps = max(1, round(size / ranks))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) if kept is None else kept / f"{ranks}x{steps}"
        folder.mkdir(parents=True, exist_ok=True)
        in_process(make, folder, ranks, steps)
        about = {"rank_steps": ranks * steps, "ranks": ranks, "steps": steps}
        yield about | {"from": "arrays"} | in_process(measure_arrays, folder, ranks, steps)
        yield about | {"from": "run file"} | in_process(measure_run_file, folder, ranks, steps)


def main() -> None:
    """One line per size and source."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--largest", action="store_true", help="1e8 rank-steps as well")
    parser.add_argument("--sizes", type=float, nargs="*", help="rank-steps, instead of the usual ones")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="keep the runs there, and take what is there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw how time and memory grow, as SVG")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the lines there as well")
    options = parser.parse_args()
    lines: list[str] = []
    for size in options.sizes or [1e6, 1e7, *([1e8] if options.largest else [])]:
        for line in measured(options.ranks, size, options.data):
            lines.append(json.dumps(line))
            print(lines[-1], flush=True)
            if options.out is not None:
                options.out.write_text("\n".join(lines) + "\n")
            if line["rank_steps"] > MOST_RANK_STEPS and line.get("peak_mb", 0) > ALLOWED_MB:
                print(f"more than {ALLOWED_MB} MB resident")
    if options.plot is not None:
        from _growth import draw

        draw([json.loads(line) for line in lines], options.plot)


if __name__ == "__main__":
    main()
