"""The advisor's demo: a real job, a fault that strikes and goes, and what the advisor makes of it, as it happens."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from starprof.demo import job
from starprof.demo.faults import Fault
from starprof.demo.run import Request
from starprof.demo.scenarios import RANKS
from starprof.errors import StarprofError
from starprof.model import env
from starprof.spool.layout import Spool

DELAY_MS = 120.0
FAULT_STEP = 120
QUIET_STEPS, KEPT_STEPS, BACK_STEPS = 60, 150, 60
"""Steps that are shown before, with the fault, and after."""

MOST_STEPS = 6000
"""Where the advisor does nothing: the job has an end."""


@dataclass
class Pace:
    """Step times of rank 0, by what was going on.

    Attributes:
        seconds: durations by the advisor's phase and whether the fault was on.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, what: str, seconds: float) -> None:
        """A step."""
        self.seconds.setdefault(what, []).append(seconds)

    def per_s(self, what: str) -> float | None:
        """Steps per second."""
        known = self.seconds.get(what)
        return 1.0 / median(known) if known else None


PARTS = HEALTHY, STRUCK, ADVISED, AFTER = (
    "before the fault",
    "with the fault",
    "with the fault, advised",
    "after the fault",
)


class Story:
    """Follows the job, and says what happens."""

    def __init__(self, request: Request, over: Path, end: Path, say: Callable[[str], None]) -> None:
        self.pace = Pace()
        self._state = Spool.beside(request.run_file).root / "advisor.json"
        self._over, self._end, self._say = over, end, say
        self._phase = ""
        self._last_s = time.monotonic()
        self._kept_at = self._back_at = 0

    def step(self, done: int) -> None:
        """`done` steps are finished."""
        now_s = time.monotonic()
        took_s, self._last_s = now_s - self._last_s, now_s
        phase, told = self._look()
        if phase != self._phase and phase:
            self._tell(done, phase, told)
            self._phase = phase
        if done == FAULT_STEP:
            self._say(f"step {done}: the fault strikes: {DELAY_MS:g} ms in every backward pass of one rank")
        if done > QUIET_STEPS:
            self.pace.add(self._what(done, phase), took_s)
        if phase == "kept" and not self._kept_at:
            self._kept_at = done
        if self._kept_at and not self._over.exists() and done >= self._kept_at + KEPT_STEPS:
            self._over.touch()
            self._say(f"step {done}: the fault is over")
        if self._over.exists() and phase == "watching" and not self._back_at:
            self._back_at = done
        if (self._back_at and done >= self._back_at + BACK_STEPS) or done >= MOST_STEPS - 1:
            self._end.touch()

    def _what(self, done: int, phase: str) -> str:
        if done <= FAULT_STEP:
            return HEALTHY
        if self._over.exists():
            return AFTER
        return ADVISED if phase in ("canary", "kept") else STRUCK

    def _look(self) -> tuple[str, dict[str, object]]:
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(self._state.read_text())
            return str(told["phase"]), told
        return self._phase, {}

    def _tell(self, done: int, phase: str, told: dict[str, object]) -> None:
        words = {
            "watching": "the advisor watches",
            "asked": f"rank {told.get('ranks')} is late: the advisor asks for {told.get('mode')}, "
            f"expecting {told.get('predicted')}",
            "canary": f"{told.get('mode')} is in force: its first steps are measured",
            "kept": f"measured {told.get('measured')}: it is kept",
            "back": "back to native steps",
        }
        self._say(f"step {done}: {words.get(phase, phase)}")


def train(request: Request, say: Callable[[str], None]) -> Pace:
    """Record the job with the advisor at work.

    Raises:
        StarprofError: the job failed, or the folder can't be written.
    """
    try:
        request.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StarprofError(f"can't write to {request.out}: {error.strerror}; choose another with --out") from error
    with _folder() as folder:
        over, end = folder / "over", folder / "end"
        fault = Fault("backward", rank=request.rank, step=FAULT_STEP, delay_ms=DELAY_MS, until=str(over))
        script = (str(job.FAULTS), str(job.TRAIN), f"--steps={MOST_STEPS}", f"--end={end}", "--batch-size=4")
        environ = {**fault.to_env(), "OMP_NUM_THREADS": "1", env.CONTROL_NOISE_EVERY: "20"}
        recorded = job.Recorded(request.run_file, script, RANKS, environ, ("--advise=apply", "--limit", "hold_s=5"))
        story = Story(request, over, end, say)
        job.on_one_host(recorded, story.step)
        return story.pace


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="starprof-demo-") as name:
        yield Path(name)
