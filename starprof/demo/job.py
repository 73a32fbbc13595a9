"""Start the demo's training job through `starprof record`, and follow it step by step."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from starprof.demo.netlab import NetLab
from starprof.errors import StarprofError
from starprof.model import env

HERE = Path(__file__).resolve().parent
TRAIN = HERE / "train.py"
FAULTS = HERE / "faults.py"
TRANSPORT_PORT = 7787
RENDEZVOUS_PORT = 29511
_STEP = re.compile(r"step (\d+)/\d+ ")
_LOG_TAIL_LINES = 30

OnStep = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A job to record.

    Attributes:
        run_file: run file to write; what was there before is overwritten.
        script: training script and its arguments; it prints `step N/M ...` after each step.
        ranks: how many.
        environ: variables of the job, beside those of this process.
        words: further options of `starprof record`.
    """

    run_file: Path
    script: tuple[str, ...]
    ranks: int
    environ: Mapping[str, str]
    words: tuple[str, ...] = ()

    @property
    def log(self) -> Path:
        """Where the output of the job goes."""
        return self.run_file.with_suffix(".log")


def starprof_command(*words: str) -> list[str]:
    """A starprof verb, run by this interpreter."""
    return [sys.executable, "-m", "starprof", *words]


def on_one_host(job: Recorded, on_step: OnStep) -> None:
    """Record all ranks on this machine, started by torchrun.

    Args:
        job: what to record.
        on_step: called with the number of finished steps each time rank 0 tells one.

    Raises:
        StarprofError: the job failed.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={job.ranks}"]
    command = [
        *starprof_command("record", "--force", *job.words, "-o", str(job.run_file), "--"),
        *torchrun,
        *job.script,
    ]
    with job.log.open("w", buffering=1) as log:
        _follow([_start(command, job.environ, subprocess.PIPE, log)], log, on_step)


def on_hosts(lab: NetLab, job: Recorded, on_step: OnStep, settle_s: float = 60.0) -> None:
    """Record with one rank on each host of the lab; host 0 takes in the records of the others.

    Raises:
        StarprofError: the job failed, or the other hosts' recorders did not end within `settle_s` after it.
    """
    meeting = f"{lab.address(0)}:{TRANSPORT_PORT}"
    token = {env.TOKEN: secrets.token_hex(16), "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    world = {"WORLD_SIZE": str(job.ranks), "MASTER_ADDR": lab.address(0), "MASTER_PORT": str(RENDEZVOUS_PORT)}
    with ExitStack() as stack:
        log = stack.enter_context(job.log.open("w", buffering=1))
        processes = []
        for host in range(job.ranks):
            name = job.run_file if host == 0 else job.run_file.with_name(f"{job.run_file.stem}-host{host}")
            link = ["--listen", meeting] if host == 0 else ["--join", meeting]
            record = starprof_command("record", "--force", "-o", str(name), "--node-rank", str(host), *link, "--")
            command = lab.inside(host, [*record, sys.executable, *job.script])
            rank = {"RANK": str(host), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            output = subprocess.PIPE if host == 0 else log
            processes.append(_start(command, {**job.environ, **token, **world, **rank}, output, log))
        _follow(processes, log, on_step, settle_s)


def _start(
    command: Sequence[str], environ: Mapping[str, str], output: IO[str] | int, log: IO[str]
) -> subprocess.Popen[str]:
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", **environ}
    return subprocess.Popen(command, env=variables, stdout=output, stderr=log, text=True)


def _follow(
    processes: Sequence[subprocess.Popen[str]], log: IO[str], on_step: OnStep, settle_s: float | None = None
) -> None:
    """Read the first process' output until it ends, then wait for all; end them when we are interrupted."""
    output = processes[0].stdout
    assert output is not None
    try:
        for line in output:
            log.write(line)
            found = _STEP.match(line)
            if found:
                on_step(int(found[1]))
        codes = [p.wait(settle_s) for p in processes]
    except subprocess.TimeoutExpired as error:
        raise StarprofError(f"a host's recorder did not end {settle_s:g} s after the job: see {log.name}") from error
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            process.wait()
        output.close()
    if any(codes):
        lines = [line for line in Path(log.name).read_text().splitlines() if not _STEP.match(line)]
        tail = "\n".join(lines[-_LOG_TAIL_LINES:])
        raise StarprofError(f"the demo's job failed (exit code {max(codes)}), the end of {log.name} says:\n{tail}")
