"""Damages valid inputs of every format and reads them: only InputError, or a run that holds together, may come out.

    python tests/importers/fuzz.py --inputs 200000 --seed 1

Each input goes through recognition, its importer, the merge with other formats, and the diagnosis. What breaks is kept
in a folder with its seed; the exit code is the number of different faults.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import gzip
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from samples import Sample, samples

from starprof.analysis import diagnose
from starprof.errors import InputError
from starprof.importers.load import load
from starprof.importers.registry import importers
from starprof.importers.source import Source
from starprof.model.columns import Type
from starprof.model.rundata import RunData
from starprof.model.schema import BY_NAME
from starprof.store.query import load_run
from starprof.store.save import save_run

LIMIT_S = 10
"""Processor time of one input, so that a busy machine is no fault."""

LIMIT_GROWTH_MIB = 400
"""What one input of a few kilobytes may take at most, of memory that the process did not have before."""

DIAGNOSED = 0.15
"""Share of the runs that are also judged."""

SAVED = 0.003
"""Share of the runs that are also written, read back and judged again: a hundred times as dear as reading."""

IN_MEMORY = Path("/dev/shm")
"""Where inputs are written, if it is there: making and removing folders takes a third of the time on a disk."""

MAX_INPUT = 1 << 21
NUMBERS = (b"0", b"-1", b"1e400", b"-1e308", b"NaN", b"Infinity", b"18446744073709551616", b"9223372036854775807",
           b"-9223372036854775808", b"1e-320", b"0x7fffffffffffffff", b"9" * 26, b"2147483648",
           b"4294967295", b"1.7976931348623157e308", b"", b"1" * 400)  # fmt: skip
TEXTS = ("\x1b]0;owned\x07", "\u202e", "\x00", "\ud800", "\U0001f525", "e\u0301" * 50, "null", "[N/A]", "true", "rank",
         "\r", "\t", "\u2028", '"', "\\", "}", "]", "{", "[", ",", "\n", "#", "-", "[Not Supported]", "../../x", "%s%n",
         "a" * 5000)  # fmt: skip

Change = Callable[[random.Random, bytes, bytes], bytes]


def flip(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if raw:
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw)


def cut(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def drop(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    first, last = _span(rng, data)
    return data[:first] + data[last:]


def repeat(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    first, last = _span(rng, data)
    return data[:last] + data[first:last] * rng.randint(1, 20) + data[last:]


def splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def insert_other(rng: random.Random, data: bytes, other: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    first, last = _span(rng, other)
    return data[:at] + other[first:last] + data[at:]


def numbers(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    found = list(re.finditer(rb"\d+(?:\.\d+)?", data))
    for match in sorted(rng.sample(found, min(len(found), rng.randint(1, 3))), key=lambda m: -m.start()):
        data = data[: match.start()] + rng.choice(NUMBERS) + data[match.end() :]
    return data


def words(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(TEXTS).encode("utf-8", "surrogatepass") + data[at:]


def nest(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    opening = rng.choice((b"[", b'{"a":', b"(", b"\x80\x02(", b"]\x94("))
    return data[:at] + opening * rng.choice((5, 600, 20_000)) + data[at:]


def swap_lines(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    for _ in range(rng.randint(1, 4)):
        if len(lines) > 1:
            first, second = rng.sample(range(len(lines)), 2)
            lines[first], lines[second] = lines[second], lines[first]
    return b"".join(lines)


def swap_cells(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    cells = re.split(rb"([,:\s])", data)
    if len(cells) > 2:
        first, second = rng.sample(range(0, len(cells), 2), 2) if len(cells) > 4 else (0, 2)
        cells[first], cells[second] = cells[second], cells[first]
    return b"".join(cells)


def pack(_rng: random.Random, data: bytes, _other: bytes) -> bytes:
    return gzip.compress(data, 1)


CHANGES: tuple[Change, ...] = (
    flip,
    cut,
    drop,
    repeat,
    splice,
    insert_other,
    numbers,
    numbers,
    words,
    nest,
    swap_lines,
    swap_cells,
    pack,
)


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    first = rng.randrange(len(data) + 1)
    return first, min(len(data), first + int(rng.expovariate(1 / 200)) + 1)


def mutate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """One to four changes, one after the other."""
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        data = rng.choice(CHANGES)(rng, data, other)[:MAX_INPUT]
    return data


def cases(seed: int, count: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Format and damaged files of each input; the same for the same seed and samples."""
    known = samples()
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        sample, other = rng.choice(known), rng.choice(known)
        yield sample.format, _damaged(rng, sample, other)


def _damaged(rng: random.Random, sample: Sample, other: Sample) -> dict[str, bytes]:
    foreign = rng.choice(list(other.files.values()))
    files = dict(sample.files)
    for name in rng.sample(list(files), rng.randint(1, len(files))):
        files[name] = mutate(rng, files[name], foreign)
    if rng.random() < 0.15:  # a second format beside it, whole or damaged
        for name, data in other.files.items():
            files.setdefault(f"beside-{name}", data if rng.random() < 0.5 else mutate(rng, data, foreign))
    if rng.random() < 0.05:
        files = {
            f"{name}{rng.choice(TEXTS[:4]).replace(chr(0), '')}".encode("utf-8", "ignore").decode(): d
            for name, d in files.items()
        }
    return files


class Fault(AssertionError):
    """A run that does not hold together."""


def check(run: RunData) -> None:
    """Raise Fault unless the run is what the model says a run is."""
    shape = (len(run.ranks), len(run.steps.steps))
    ranks = [r.rank for r in run.ranks]
    _must(len(set(ranks)) == len(ranks), "a rank comes twice")
    _must(bool(np.all(np.diff(run.steps.steps) > 0)), "steps do not rise")
    _must(run.steps.start_mono_ns.shape == shape, "starts have another shape")
    for name, matrix in run.steps.columns.items():
        _must(matrix.shape == shape, f"{name} has another shape")
        _must(not np.isinf(matrix).any() and not (matrix < 0).any(), f"{name} is negative or infinite")
    frames = {"event": run.events, "gap": run.gaps, "unavailable": run.unavailable, "node": run.nodes, **run.samples}
    others = {"operation": run.operations, "collective": run.collectives, "link_test": run.link_tests}
    for name, frame in {**frames, **{k: f for k, f in others.items() if f is not None}}.items():
        for column in BY_NAME[name].names:
            _must(column in frame.columns, f"{name} lacks {column}")
        _check_integers(name, frame)


def _check_integers(table: str, frame: pd.DataFrame) -> None:
    """Raise Fault unless columns of integers hold such, or nothing."""
    kinds = dict(zip(frame.columns, (t.kind for t in frame.dtypes), strict=True))
    wanted = [c.name for c in BY_NAME[table].columns if c.type is Type.INT and kinds[c.name] != "i"]
    if len(frame) and wanted:
        values = frame[wanted].to_numpy(dtype=np.float64, na_value=np.nan)
        seen = ~np.isnan(values)
        for bad, what in ((np.abs(values) >= 2.0**63, "no 64-bit integer"), (values != np.rint(values), "no integer")):
            wrong = (bad & seen).any(axis=0)
            _must(not wrong.any(), f"{table}.{wanted[int(wrong.argmax())]} is {what}")


def _must(true: bool, what: str) -> None:
    if not true:
        raise Fault(what)


class Fuzzer:
    """Reads inputs and keeps count.

    Args:
        folder: where the inputs are written while they are read.
        kept: where those that break something stay.
    """

    def __init__(self, folder: Path, kept: Path | None) -> None:
        self.folder, self.kept = folder, kept
        self.outcomes: Counter[str] = Counter()
        self.read: Counter[str] = Counter()
        self.faults: dict[str, str] = {}
        self.slowest_s = 0.0
        self._known = {i.NAME: i for i in importers()}

    def run(self, seed: int, count: int) -> None:
        """Try `count` inputs."""
        signal.signal(signal.SIGPROF, _too_slow)
        gc.freeze()  # what is loaded now is never looked through again
        for number, (name, files) in enumerate(cases(seed, count)):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            began = time.process_time()
            self._one(f"{seed}/{number}", name, files)
            self.slowest_s = max(self.slowest_s, time.process_time() - began)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            if grown > LIMIT_GROWTH_MIB and number > 100:
                self._fault(f"{seed}/{number}", name, f"memory grew by {grown:.0f} MiB", files)

    def _one(self, case: str, name: str, files: dict[str, bytes]) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        for file, data in files.items():
            (self.folder / file).write_bytes(data)
        rng = random.Random(f"{case}/way")
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                run = load([str(self.folder)]) if rng.random() < 0.7 else self._forced(name)
                check(run)
                self.outcomes["read"] += 1
                self.read[str(run.info["source_format"])] += 1
                if rng.random() < DIAGNOSED:
                    self.outcomes["diagnosed"] += 1
                    diagnose(run).to_json()
                if rng.random() < SAVED:
                    self.outcomes["kept"] += 1
                    self._keep(run)
        except InputError as error:
            self.outcomes["refused"] += 1
            if "\n" in str(error) or len(str(error)) > 2000:
                self._fault(case, name, f"not one line: {str(error)[:80]!r}", files)
        except KeyboardInterrupt:
            raise
        except BaseException:  # the fuzzer is here to see what comes out
            self._fault(case, name, _where(), files)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _keep(self, run: RunData) -> None:
        """Write the run and read it back: the verdict must be the same."""
        file = self.folder.with_name("kept.starprof")
        file.unlink(missing_ok=True)
        save_run(run, file)
        back = diagnose(load_run(file)).to_json()
        _must(back == diagnose(run).to_json(), "a kept run has another verdict")

    def _forced(self, name: str) -> RunData:
        paths = sorted(p for p in self.folder.iterdir() if not p.name.startswith("beside-"))
        return self._known[name].read([Source(str(p), p) for p in paths])

    def _fault(self, case: str, name: str, where: str, files: dict[str, bytes]) -> None:
        self.outcomes["faults"] += 1
        if where in self.faults:
            return
        self.faults[where] = f"{case} ({name})"
        if self.kept is not None:
            place = self.kept / f"fault-{len(self.faults)}"
            place.mkdir(parents=True, exist_ok=True)
            for file, data in files.items():
                (place / file).write_bytes(data)
            (place / "where.txt").write_text(f"{case} {name}\n{where}\n{traceback.format_exc()}")


def _too_slow(_signal: int, _frame: object) -> None:
    raise TimeoutError(f"more than {LIMIT_S} s")


def _where() -> str:
    """Type and the innermost place of ours."""
    kind, error, trace = sys.exc_info()
    ours = [f for f in traceback.extract_tb(trace) if "starprof/" in f.filename]
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
    return f"{kind.__name__ if kind else '?'} at {place}: {str(error)[:100]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=None, help="folder for inputs that break something")
    given = parser.parse_args(argv)
    began = time.perf_counter()
    room = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=room) as place, contextlib.redirect_stderr(sys.stderr):
        tempfile.tempdir = place  # what archives hold goes there too
        fuzzer = Fuzzer(Path(place) / "in", given.keep)
        fuzzer.run(given.seed, given.inputs)
    figures = {
        "inputs": given.inputs,
        "seed": given.seed,
        "seconds": round(time.perf_counter() - began, 1),
        "outcomes": dict(fuzzer.outcomes),
        "read_by_format": dict(fuzzer.read),
        "slowest_s": round(fuzzer.slowest_s, 2),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "faults": fuzzer.faults,
    }
    print(json.dumps(figures, indent=2))
    return min(len(fuzzer.faults), 100)


if __name__ == "__main__":
    sys.exit(main())
