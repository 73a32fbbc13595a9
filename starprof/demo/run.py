"""The demo itself: train, record, break something, diagnose, compare with the truth."""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from starprof.demo import job, scenarios
from starprof.demo.faults import KINDS, Fault, pin_to_core_of
from starprof.demo.hog import Hog
from starprof.demo.netlab import NetLab
from starprof.demo.scenarios import RANKS, Scenario, Truth
from starprof.errors import StarprofError, UsageError
from starprof.model.rundata import RunData
from starprof.model.verdict import Verdict
from starprof.spool.layout import RUN_SUFFIX

MIN_STEPS = 60


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for; `name`: of the files, else that of the scenario."""

    scenario: Scenario
    rank: int
    out: Path
    steps: int
    name: str = ""

    @property
    def fault_step(self) -> int:
        """The fault starts half-way, so that there is a before and an after."""
        return self.steps // 2

    @property
    def run_file(self) -> Path:
        """The run file that is written."""
        return (self.out / f"demo-{self.name or self.scenario.name}{RUN_SUFFIX}").absolute()

    @property
    def report(self) -> Path:
        """The report that is written."""
        return self.run_file.with_suffix(".html")


def check(request: Request) -> None:
    """Refuse now what could not work later.

    Raises:
        UsageError: no such rank, or too few steps.
        StarprofError: torch or scikit-learn is missing.
    """
    if not 0 <= request.rank < RANKS:
        raise UsageError(f"the demo has ranks 0 to {RANKS - 1}: --rank {request.rank} is none of them")
    if request.steps < MIN_STEPS:
        raise UsageError(f"--steps {request.steps} is too few to tell before from after: {MIN_STEPS} at least")
    missing = [name for name in ("torch", "sklearn") if importlib.util.find_spec(name) is None]
    if missing:
        raise StarprofError(f"the demo trains with {' and '.join(missing)}: pip install 'starprof[demo]'")
    if request.scenario.name == "cpu" and len(os.sched_getaffinity(0)) < 2:
        raise StarprofError("the cpu fault needs two CPU cores, one of them for the rank at fault alone")


def diagnose(request: Request) -> tuple[RunData, Verdict]:
    """Read the run, diagnose it and write the report.

    Raises:
        StarprofError: the run can't be read, or the report can't be written.
    """
    from starprof.analysis import diagnose as diagnose_run
    from starprof.reports import html, write
    from starprof.store.query import load_run

    data = load_run(request.run_file)
    verdict = diagnose_run(data)
    write.write(request.report, html.render(data, verdict))
    return data, verdict


def train(request: Request, on_step: Callable[[int], None]) -> Truth:
    """Record the training job with the fault in it.

    Args:
        request: what to do.
        on_step: called with the number of finished steps.

    Returns:
        What was really injected.

    Raises:
        StarprofError: the job failed, or the folder can't be written.
    """
    try:
        request.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StarprofError(
            f"can't write to {request.out}: {error.strerror}; name another folder with --out"
        ) from error
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="starprof-demo-")))
        start, trigger = _stage(request, stack)

        def stepped(done: int) -> None:
            if done == request.fault_step:
                trigger()
            on_step(done)

        start(_recorded(request, logs), stepped)
        truth = _truth(request, logs)
    request.run_file.with_suffix(".truth.json").write_text(json.dumps(scenarios.to_json(truth), indent=2) + "\n")
    return truth


def _stage(request: Request, stack: ExitStack) -> tuple[Callable[[job.Recorded, job.OnStep], None], Callable[[], None]]:
    """How to start the job, and what to do from outside when the fault's step begins."""
    if request.scenario.name == "cpu":
        hog = stack.enter_context(Hog(pin_to_core_of(request.rank, request.rank)))
        return job.on_one_host, hog.release
    if request.scenario.name == "net":
        lab = stack.enter_context(NetLab(RANKS))
        return partial(job.on_hosts, lab), partial(lab.shape, request.rank, scenarios.NET_RATE_MBIT)
    return job.on_one_host, lambda: None


def _recorded(request: Request, logs: Path) -> job.Recorded:
    inside = request.scenario.name if request.scenario.name in KINDS else "none"
    fault = Fault(
        inside,
        rank=request.rank,
        step=request.fault_step,
        delay_ms=scenarios.DELAY_MS,
        truth=str(logs / "truth.json"),
    )
    script = [str(job.FAULTS), str(job.TRAIN), f"--steps={request.steps}", f"--log-dir={logs}"]
    if inside == "cpu":
        script.append(f"--host-rank={request.rank}")
    return job.Recorded(request.run_file, tuple(script), RANKS, {**fault.to_env(), "OMP_NUM_THREADS": "1"})


def _truth(request: Request, logs: Path) -> Truth:
    if request.scenario.name == "none":
        return Truth(request.scenario, request.rank, None, None)
    step_seconds = json.loads((logs / "steps-0.json").read_text())
    delays = json.loads((logs / "truth.json").read_text())["delays"]
    if delays:
        return Truth(request.scenario, request.rank, delays[0][0], sum(seconds for _, seconds in delays))
    cost = scenarios.true_cost_seconds(step_seconds, request.fault_step)
    return Truth(request.scenario, request.rank, request.fault_step, cost)
