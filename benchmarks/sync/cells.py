"""Runs the job of one cell: real processes under `starprof record`, and what became of them as one flat record."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import IO, Any

import switching
from compute import EMULATED
from design import LIGHTHOUSE, MODES, NATIVE, OTHERS, PLAIN, SWITCHES, Cell
from disturb import REAL, Disturbance
from runfile import SETTLED_STEPS, told

from starprof.control import modes
from starprof.demo.job import RENDEZVOUS_PORT, TRANSPORT_PORT, starprof_command
from starprof.errors import StarprofError
from starprof.model import env

HERE = Path(__file__).resolve().parent
TRAIN = HERE / "train.py"
HOME = HERE.parents[1]
WITHIN_S = 240.0
"""A job that takes longer is stopped, and its cell has failed."""
END_S = 20.0
COMPUTE_MS = {2: 20.0, 4: 20.0, 8: 40.0}
"""Emulated compute of a step: what ranks compute themselves must fit beside each other on two cores."""
EPOCHS = {("digits", 2): 1, ("digits", 4): 3, ("digits", 8): 4, ("text", 4): 2}
SWITCHING_EPOCHS = {"none": 11, "persistent": 6}
"""Long enough for all switches, which come by the clock."""
TAIL_LINES = 40
TORCHRUN_SAYS = "torch/distributed/elastic/multiprocessing/api.py"


class CannotError(StarprofError):
    """This machine or this version can't run the cell."""


def run(cell: Cell, epochs: int | None = None, compute_ms: float | None = None) -> dict[str, Any]:
    """The cell's result: `cell` and its parts, and either figures, `cannot` or `failed` with the reason.

    Args:
        cell: to run.
        epochs: of its job; None: as many as such a cell has.
        compute_ms: emulated compute of a step; None: as such a cell has it.
    """
    compute_ms = compute_ms or COMPUTE_MS[cell.ranks]
    record: dict[str, Any] = {
        "cell": cell.name,
        **vars(cell),
        "compute_ms": compute_ms,
        "at_unix_s": round(time.time()),
    }
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="starprof-benchmark-") as folder:
        try:
            record |= _run(cell, epochs or epochs_of(cell), compute_ms, Path(folder))
        except CannotError as error:
            record["cannot"] = str(error)
        except (StarprofError, OSError, ValueError, KeyError) as error:
            record["failed"] = f"{type(error).__name__}: {error}"
    record["took_s"] = round(time.monotonic() - began_s, 1)
    return record


def _run(cell: Cell, epochs: int, compute_ms: float, out: Path) -> dict[str, Any]:
    disturbance = REAL.get(cell.slow, Disturbance)(cell.ranks, out)
    with contextlib.ExitStack() as stack:
        try:
            control = control_of(cell)
            stack.enter_context(disturbance.ready())
        except StarprofError as error:
            raise CannotError(str(error)) from error
        environ = {**disturbance.environ, **stack.enter_context(lighthouse(cell))}
        script = [str(TRAIN), *arguments(cell, epochs, compute_ms), "--out", str(out), *disturbance.arguments]
        job = Job(out, {"OMP_NUM_THREADS": "1", **environ})
        stack.callback(job.end)
        job.start(script, control, disturbance, recorded=cell.how != "torchft")
        switcher = None
        job.until_begun()
        disturbance.begin()
        if cell.how == SWITCHES:
            switcher = switching.Switcher(job.run_file, switching.plan(cell.ranks))
            switcher.start()
            stack.callback(switcher.over.set)
        job.wait()
        if switcher is not None and (switcher.failed or switcher.is_alive()):
            raise StarprofError(f"starprof ctl: {'; '.join(switcher.failed) or 'the job ended before the last switch'}")
    ranks = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(cell.ranks)]
    found = figures(ranks, job.run_file if cell.how != "torchft" else None)
    if cell.how in MODES and not found["updates"]:
        raise StarprofError(f"the job has stayed with native steps: {job.tail()}")
    return found


def control_of(cell: Cell) -> list[str]:
    """Arguments of `starprof record`.

    Raises:
        StarprofError: the mode can't be had in a running job.
    """
    if cell.how in (PLAIN, *OTHERS):
        return []
    if cell.how in (NATIVE, SWITCHES):
        return ["--control"]
    options = MODES[cell.how](cell.ranks)
    modes.mode(cell.how, options, range(cell.ranks))
    told_options = [word for name, value in options.items() for word in ("--option", f"{name}={json.dumps(value)}")]
    return ["--control", "--mode", cell.how, *told_options]


def epochs_of(cell: Cell) -> int:
    """How long its job trains."""
    return SWITCHING_EPOCHS[cell.slow] if cell.how == SWITCHES else EPOCHS[cell.task, cell.ranks]


def arguments(cell: Cell, epochs: int, compute_ms: float) -> list[str]:
    """Of the training script."""
    found = {
        "--task": cell.task,
        "--seed": cell.seed,
        "--epochs": epochs,
        "--compute-ms": compute_ms,
        "--straggler": cell.slow if cell.slow in EMULATED else "none",
        "--method": cell.how if cell.how in OTHERS else "ddp",
    }
    on_cpu = ["--on-cpu", *map(str, range(cell.ranks))] if cell.slow == "busy" else []
    return [str(word) for pair in found.items() for word in pair] + on_cpu


@contextlib.contextmanager
def lighthouse(cell: Cell) -> Iterator[dict[str, str]]:
    """What torchft's ranks meet at.

    Raises:
        CannotError: it is not installed.
    """
    if cell.how != "torchft":
        yield {}
        return
    os.environ.setdefault("RUST_LOG", "error")
    try:
        from torchft._torchft import LighthouseServer
    except ImportError as error:
        raise CannotError(f"torchft is not here: {error}") from error
    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=cell.ranks)
    try:
        yield {LIGHTHOUSE: server.address()}
    finally:
        server.shutdown()


class Job:
    """The processes of a cell's job.

    Attributes:
        run_file: that is recorded.
    """

    def __init__(self, out: Path, environ: dict[str, str]) -> None:
        self.out = out
        self.run_file = out / "run.starprof"
        self._environ = {**os.environ, **environ, "PYTHONPATH": _first(HOME, os.environ.get("PYTHONPATH"))}
        self._log = out / "job.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, script: Sequence[str], control: Sequence[str], place: Disturbance, *, recorded: bool) -> None:
        """Start the ranks, on this host by torchrun, or one on each host of the disturbance's lab."""
        with self._log.open("wb") as log:
            if place.lab is not None:
                self._on_hosts(script, control, place, log)
                return
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command = [*torchrun, f"--nproc-per-node={place.world}", *script]
            record = starprof_command("record", "--force", "-o", str(self.run_file), *control, "--")
            self._start([*record, *command] if recorded else command, {}, log)

    def _on_hosts(self, script: Sequence[str], control: Sequence[str], place: Disturbance, log: IO[bytes]) -> None:
        lab, ranks = place.lab, place.world
        assert lab is not None
        meeting = f"{lab.address(0)}:{TRANSPORT_PORT}"
        world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": lab.address(0), "MASTER_PORT": str(RENDEZVOUS_PORT)}
        shared = {**world, env.TOKEN: secrets.token_hex(16), "GLOO_SOCKET_IFNAME": "eth0", "LOCAL_WORLD_SIZE": "1"}
        for rank in range(ranks):
            name = self.run_file if rank == 0 else self.out / f"host{rank}.starprof"
            link = ["--listen" if rank == 0 else "--join", meeting, "--node-rank", str(rank)]
            record = starprof_command("record", "--force", "-o", str(name), *link, *control, "--")
            command = lab.inside(rank, [*record, sys.executable, *script])
            self._start(command, {**shared, "RANK": str(rank), "LOCAL_RANK": "0"}, log)

    def _start(self, command: Sequence[str], environ: dict[str, str], log: IO[bytes]) -> None:
        process = subprocess.Popen(
            command,
            env={**self._environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._processes.append(process)

    def until_begun(self, within_s: float = 90.0) -> None:
        """Until the training begins.

        Raises:
            StarprofError: it does not.
        """
        deadline_s = time.monotonic() + within_s
        while not (self.out / "begun").exists():
            if any(process.poll() is not None for process in self._processes) or time.monotonic() > deadline_s:
                raise StarprofError(f"the training has not begun:\n{self.tail()}")
            time.sleep(0.02)

    def wait(self) -> None:
        """Until all has ended.

        Raises:
            StarprofError: badly, or not in time.
        """
        deadline_s = time.monotonic() + WITHIN_S
        for process in self._processes:
            try:
                code = process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise StarprofError(f"the job stands still:\n{self.tail()}") from error
            if code:
                raise StarprofError(f"the job has ended with {code}:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines of what the job has said, before torchrun says at length that it has failed."""
        said = self._log.read_text(errors="replace").partition(TORCHRUN_SAYS)[0]
        return "\n".join(said.splitlines()[-TAIL_LINES:])

    def end(self) -> None:
        """End what still runs: recorders hand a signal on to their job."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            running = [process for process in self._processes if process.poll() is None]
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)


def _first(home: Path, path: str | None) -> str:
    return os.pathsep.join([str(home), *([path] if path else [])])


def figures(ranks: Sequence[dict[str, Any]], run_file: Path | None) -> dict[str, Any]:
    """What a job has brought; times of steps are medians over the ranks that are never slow."""
    first = ranks[0]
    quick = [1e3 * (b - a) for rank in ranks[:-1] for a, b in pairwise(rank["ends_s"][SETTLED_STEPS:])]
    found: dict[str, Any] = {
        "seconds": round(max(rank["seconds"] for rank in ranks), 3),
        "iterations": first["iterations"],
        "step_ms": round(median(quick), 3),
        "iteration_ms": round(1e3 * max(rank["seconds"] for rank in ranks) / first["iterations"], 3),
        "steps": [rank["steps"] for rank in ranks],
        "tta_s": next((at_s for at_s, accuracy in first["snapshots"] if accuracy >= first["good"]), None),
        "accuracy": first["accuracy"],
        "identical": len({rank["digest"] for rank in ranks}) == 1,
        "thread_share": max((rank["thread_share"] or 0.0 for rank in ranks), default=0.0),
        "curve": first["snapshots"],
        "after_epochs": first["after_epochs"],
    }
    if run_file is not None:
        found |= told(run_file, first["iterations"])
        found["switches"] = switching.costs(found["switches"], [switching.steps_of(rank) for rank in ranks])
    return found
