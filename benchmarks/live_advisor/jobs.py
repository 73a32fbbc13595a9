"""Real jobs: what each variant reaches, by seed."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

TRAIN = Path(__file__).with_name("train.py")
STEP = re.compile(r"^step (\d+) ([\d.]+) ([\d.]+)", re.MULTILINE)
USUAL_MS, FACTOR = 30, 4
ONSET_STEP = 200
STOPPED_S, RUNNING_S = 0.09, 0.03
TARGET = 0.35
"""Held-out loss of which the time is told (TTA)."""

WORDS = {
    "advisor": ("record", "--advise=apply"),
    "never": ("record", "--control"),
    "healthy": ("record", "--advise=apply"),
    "plain": (),
    "healthy-plain": (),
}


def all_of(given: argparse.Namespace) -> dict[str, Any]:
    """Every variant with every seed, and their medians."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in given.variants}
    for seed in range(given.seeds):
        for name in given.variants:
            found[name].append(_run(name, seed, given))
            print(json.dumps({"variant": name, **found[name][-1]}), file=sys.stderr, flush=True)
    middles = {
        name: {
            key: round(statistics.median(values), 4)
            for key in sorted({k for row in rows for k in row})
            if (values := [row[key] for row in rows if isinstance(row.get(key), (int, float))])
        }
        for name, rows in found.items()
    }
    return {"fault": given.fault, "medians": middles, "runs": found}


def _run(name: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="live-advisor-") as place:
        folder = Path(place)
        faulty = not name.startswith("healthy")
        slow_ms = USUAL_MS * FACTOR if given.fault == "sleep" else USUAL_MS
        script = [str(TRAIN), str(folder), str(seed), str(USUAL_MS), str(slow_ms), str(given.steps)]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", *script]
        ours = [sys.executable, "-m", "starprof", *WORDS[name], "-o", str(folder / "run"), "--"] if WORDS[name] else []
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "STARPROF_CONTROL_NOISE_EVERY": "20"}
        out = folder / "out"
        with out.open("w") as stdout, (folder / "err").open("w") as stderr:
            job = subprocess.Popen([*ours, *torchrun], cwd=folder, env=environ, stdout=stdout, stderr=stderr)
            onset_s = 0.0
            with contextlib.ExitStack() as stack:
                while job.poll() is None:
                    steps = STEP.findall(out.read_text())
                    if faulty and not onset_s and len(steps) >= ONSET_STEP:
                        onset_s = time.monotonic()
                        if given.fault == "sleep":
                            (folder / "slow").touch()
                        else:
                            stack.enter_context(_stopped(int((folder / "pid3").read_text())))
                    time.sleep(0.1)
        if job.returncode:
            raise SystemExit((folder / "err").read_text()[-3000:])
        return _judged(name, folder, onset_s) | {"seed": seed}


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """A process runs a quarter of the time."""
    over = threading.Event()

    def work() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(pid, signal.SIGCONT)
                time.sleep(RUNNING_S)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _judged(name: str, folder: Path, onset_s: float) -> dict[str, Any]:
    steps = [(int(n), float(at), float(loss)) for n, at, loss in STEP.findall((folder / "out").read_text())]
    begun_s = steps[0][1]
    final = json.loads((folder / "rank0.json").read_text())
    usual = [after[1] - before[1] for before, after in itertools.pairwise(steps[20:ONSET_STEP])]
    late = steps[-300:-1]
    found: dict[str, Any] = {
        "accuracy": final["accuracy"],
        "seconds": round(steps[-1][1] - begun_s, 2),
        "usual_steps_per_s": round(1 / statistics.mean(usual), 3),
        "late_steps_per_s": round((len(late) - 1) / (late[-1][1] - late[0][1]), 3),
        "tta_s": next((round(at - begun_s, 2) for at, loss in final["held_out"] if loss <= TARGET), None),
    }
    if WORDS[name] and "--advise=apply" in WORDS[name]:
        with duckdb.connect(str(folder / "run.starprof"), read_only=True) as run:
            moves = run.execute("SELECT mono_ns FROM advisor_action WHERE stage = 'proposed' ORDER BY 1").fetchall()
            force = run.execute("SELECT mono_ns FROM sync_switch WHERE asked_by = 'advisor' ORDER BY 1").fetchall()
        found["actions"] = len(moves)
        if moves and onset_s:
            found["onset_to_action_s"] = round(moves[0][0] / 1e9 - onset_s, 2)
        if force and onset_s:
            found["onset_to_force_s"] = round(force[0][0] / 1e9 - onset_s, 2)
    if onset_s:
        found["of_ideal"] = round(found["late_steps_per_s"] / found["usual_steps_per_s"], 4)
    return found
