"""Runs the job of one cell: four ranks that train, a fault that strikes in the middle, and what became of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import duckdb
from cells import TRAIN, Job
from disturb import GROUP, QUOTA_US, STRAGGLER, Disturbance, Hogs, Quota, Shaped
from faults import APPLY, HEALTHY, NEVER, PASSES_S, STAYS_S, Cell

from starprof.errors import StarprofError

RANKS = 4
COMPUTE_MS = 25.0
EPOCHS = 5
GOOD = 0.975
"""Of the held-out digits; no job reaches it before its fault strikes."""
SETTLED_S = 2.0
"""After the onset and after the advisor's move rates are not counted for this time."""
STOPPED_S, RUNNING_S = 0.09, 0.03
WORDS = {NEVER: ["--control"], APPLY: ["--advise=apply"]}


def run(cell: Cell) -> dict[str, Any]:
    """The cell's result: `cell` and its parts, and either figures, or `failed` with the reason."""
    record: dict[str, Any] = {"cell": cell.name, **vars(cell), "at_unix_s": round(time.time())}
    with tempfile.TemporaryDirectory(prefix="starprof-advisor-") as folder:
        try:
            return record | _run(cell, Path(folder))
        except (StarprofError, OSError, ValueError, KeyError, duckdb.Error) as error:
            return record | {"failed": f"{type(error).__name__}: {error}"}


class Stops(Disturbance):
    """The rank is stopped three quarters of the time."""

    @contextlib.contextmanager
    def ready(self) -> Iterator[Disturbance]:
        self.over, self.thread = threading.Event(), threading.Thread(target=self._work)
        try:
            yield self
        finally:
            self.lift()

    def begin(self) -> None:
        self.thread.start()

    def lift(self) -> None:
        self.over.set()
        if self.thread.ident is not None:
            self.thread.join()

    def _work(self) -> None:
        rank = int((self.out / STRAGGLER).read_text())
        with contextlib.suppress(ProcessLookupError):
            while not self.over.is_set():
                os.kill(rank, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(rank, signal.SIGCONT)
                time.sleep(RUNNING_S)


class LateQuota(Quota):
    """As `Quota`, from a moment in the middle on."""

    def begin(self) -> None:
        group, rank = Path(self.kept[GROUP]), (self.out / STRAGGLER).read_text()
        (group / "cgroup.procs").write_text(rank)
        (group / "cpu.cfs_quota_us").write_text(str(QUOTA_US))

    @contextlib.contextmanager
    def ready(self) -> Iterator[Disturbance]:
        with super().ready():
            self.kept, self.environ = self.environ, {}  # the rank does not go there by itself
            yield self


FROM_OUTSIDE = {"stops": Stops, "hogs": Hogs, "quota": LateQuota, "shaped": Shaped}
IN_SCRIPT = {
    "compute": ["--bout", *map(str, STAYS_S)],
    "server": ["--bout", *map(str, STAYS_S), "--method", "ps"],
    "loader": ["--bout", *map(str, STAYS_S), "--bout-of", "loader"],
    "passes": ["--bout", *map(str, PASSES_S)],
}


def _run(cell: Cell, out: Path) -> dict[str, Any]:
    fault = FROM_OUTSIDE.get(cell.fault, Disturbance)(RANKS, out)
    trains = ["--seed", str(cell.seed), "--epochs", str(EPOCHS), "--compute-ms", str(COMPUTE_MS), "--good", str(GOOD)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(fault.ready())
        script = [str(TRAIN), *trains, *IN_SCRIPT.get(cell.fault, []), "--out", str(out), *fault.arguments]
        job = Job(out, {"OMP_NUM_THREADS": "1", **fault.environ})
        stack.callback(job.end)
        recorded = cell.how in WORDS
        job.start(script, WORDS.get(cell.how, []), fault, recorded=recorded)
        job.until_begun()
        striking = threading.Timer(_begun_s(out) + STAYS_S[0] - time.monotonic(), fault.begin)
        striking.start()
        stack.callback(striking.cancel)
        job.wait()
    ranks = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    moves = _moves(job.run_file) if cell.how == APPLY else {}
    return _figures(cell, ranks, moves)


def _begun_s(out: Path) -> float:
    return float((out / "begun").read_text())


def _moves(run_file: Path) -> dict[str, Any]:
    """What the advisor did; when, by the clock of the ranks."""
    with duckdb.connect(str(run_file), read_only=True) as run:
        notes = run.execute("SELECT stage, mode, reason, mono_ns / 1e9 FROM advisor_action ORDER BY mono_ns").fetchall()
        forced = run.execute(
            "SELECT mono_ns / 1e9, to_mode FROM sync_switch WHERE asked_by = 'advisor' AND version IS NOT NULL "
            "ORDER BY mono_ns"
        ).fetchall()
        gradients = run.execute("SELECT avg(gradients) FROM sync_update WHERE mode <> 'ssgd'").fetchone()
    share = 1.0 if gradients is None or gradients[0] is None else gradients[0] / RANKS
    return {
        "notes": [(stage, mode, reason, round(at_s, 3)) for stage, mode, reason, at_s in notes],
        "forced": [(round(at_s, 3), mode) for at_s, mode in forced],
        "share": round(share, 3),
    }


def _figures(cell: Cell, ranks: list[dict[str, Any]], moves: dict[str, Any]) -> dict[str, Any]:
    """Of one job; times are counted from the onset, rates are rank 0's steps a second."""
    first = ranks[0]
    onset_s = STAYS_S[0]
    reached_s = next((at_s for at_s, accuracy in first["snapshots"] if accuracy >= first["good"]), None)
    forced = [at_s - first["began_s"] for at_s, mode in moves.get("forced", []) if mode not in ("native", "ssgd")]
    settled_s = (forced[0] if forced else onset_s) + SETTLED_S
    until_s = min(PASSES_S[1] if cell.fault == "passes" else STAYS_S[1], max(first["ends_s"]))
    found = {
        "seconds": round(max(rank["seconds"] for rank in ranks), 3),
        "tta_s": reached_s,
        "tta_after_onset_s": None if reached_s is None else round(reached_s - onset_s, 3),
        "accuracy": first["accuracy"],
        "identical": len({rank["digest"] for rank in ranks}) == 1,
        "usual_rate": _rate(first["ends_s"], 1.0, onset_s),
        "late_rate": _rate(first["ends_s"], settled_s, until_s),
        "step_ms": round(1e3 * median(b - a for a, b in pairwise(first["ends_s"])), 3),
        **moves,
    }
    if moves:
        proposed = [at_s for stage, _, _, at_s in moves["notes"] if stage == "proposed"]
        found["actions"] = len(proposed)
        if cell.fault != HEALTHY and proposed:
            found["onset_to_action_s"] = round(proposed[0] - first["began_s"] - onset_s, 3)
        if cell.fault != HEALTHY and forced:
            found["onset_to_force_s"] = round(forced[0] - onset_s, 3)
    return found


def _rate(ends_s: list[float], from_s: float, to_s: float) -> float | None:
    """Steps a second between two moments; None: too few of them."""
    gaps = [b - a for a, b in pairwise(ends_s) if from_s <= a and b <= to_s]
    return round(1 / mean(gaps), 3) if len(gaps) >= 10 else None
