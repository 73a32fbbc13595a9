"""Real runs: `starprof demo` breaks a real four-rank job, records it and diagnoses it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from truth import Case, Truth, answer

from starprof.model.rundata import RunData
from starprof.store.query import load_run

DEMO_LIMIT_S = 300
ANSWERS: tuple[tuple[str, Truth], ...] = (
    ("backward", answer("straggler", ranks=(1,), causes=("backward-compute",))),
    ("loader", answer("straggler", ranks=(2,), causes=("data-loading",))),
    ("cpu", answer("straggler", ranks=(3,), causes=("cpu-contention",))),
    ("net", answer("straggler", "inconclusive", tolerated=frozenset({0}))),
    ("none", answer("none")),
)


def cases(folder: Path) -> Iterator[Case]:
    """One recording a fault, made when it is asked for."""
    for fault, truth in ANSWERS:
        yield Case(f"demo --fault {fault}", truth, partial(_record, fault, next(iter(truth.ranks), 0), folder / fault))


def _record(fault: str, rank: int, folder: Path) -> RunData:
    command = [sys.executable, "-m", "starprof", "demo", "--fault", fault, "--out", str(folder), "--json"]
    if fault != "none":
        command += ["--rank", str(rank)]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=DEMO_LIMIT_S, check=False)
    runs = sorted(folder.glob("*.starprof"))
    if not runs:
        raise FileNotFoundError(f"the demo left no run in {folder}")
    return load_run(runs[0])
