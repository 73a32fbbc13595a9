"""Measures what a plan of resources needs to know of a running job, by short experiments that are all taken back.

    base                 as it is
    delay  1 s           every step a second longer: what a rank frees
    delay  T/4, T/2      of a step T: what it frees per second where plans really delay, and by how much the job slows
    cores  3/4, 1/2      of what it uses, in a control group, where the job allows that
    pace   3/4, 1/2      of what each connection sends at most
    mode   asgd          or others: what it uses more

Each phase is an action of this process's session (see `journal`), with an end in the ranks themselves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starprof.control.actuators import cgroup, hand, orders
from starprof.control.actuators.base import Request, ordered
from starprof.control.actuators.change import Change, GoneError, RefusedError
from starprof.control.actuators.job import JobHere
from starprof.control.actuators.measure import Seen, Watch, heard
from starprof.control.actuators.modeknob import ModeKnob
from starprof.control.controlsocket import NobodyListensError, ask, folder_of
from starprof.errors import TransportError
from starprof.model.tables.calibration import BASE, CORES, DELAY, MODE, PACE

SLEEP_S = 1.0
DELAY_LEVELS = (0.25, 0.5)
THROTTLE_LEVELS = (0.75, 0.5)
FEWEST_STEPS = 3
"""Steps of a phase; it is made longer for them, up to `LONGEST`, since a job may have long ones."""
LONGEST = 4.0
SWITCH_S = 40.0
ACTUATOR = "calibrate"
_LEAST_CORES = 0.05
_LEAST_BYTES_PER_S = 1e4


@dataclass(frozen=True, slots=True)
class Phase:
    """One experiment, done.

    Attributes:
        kind: see `model.tables.calibration`.
        level: how much; None for a phase that has none.
        mode: synchronisation mode in it.
        options: of the mode.
        mono_ns: when it ended.
        seen: what the job did.
    """

    kind: str
    level: float | None
    mode: str
    options: dict[str, Any]
    mono_ns: int
    seen: Seen


@dataclass
class Calibrating:
    """One calibration.

    Attributes:
        job: that is measured.
        seconds: of a phase.
        modes: that are tried.
        on_phase: called before each with its name and how many there are done and in all.
        phases: done.
        skipped: what could not be measured, and why.
    """

    job: JobHere
    seconds: float
    modes: Sequence[tuple[str, dict[str, Any]]]
    on_phase: Callable[[str, int, int], None] = lambda _name, _done, _all: None
    phases: list[Phase] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def most_s(self) -> float:
        """The longest that it takes."""
        return self._count * (self.seconds * LONGEST + 15.0) + len(self.modes) * 2 * SWITCH_S

    @property
    def _count(self) -> int:
        return 2 + len(DELAY_LEVELS) + 2 * len(THROTTLE_LEVELS) + len(self.modes)

    def run(self) -> None:
        """All phases.

        Raises:
            RefusedError: ranks don't listen, or made no step.
        """
        with self._held([*self._order(orders.WATCH, True)]):
            base = self._phase(BASE, None, [])
            step_s = base.mean_iteration_s if base is not None else None
            if base is None or step_s is None:
                raise RefusedError("the job has made no step in the time of a phase: give a longer --seconds")
            for delay_s in (SLEEP_S, *(min(level * step_s, 10.0) for level in DELAY_LEVELS)):
                self._ordered(DELAY, delay_s, orders.DELAY)
            self._throttles(base)
            for name, options in self.modes:
                self._mode(name, options)

    def _throttles(self, base: Seen) -> None:
        for level in THROTTLE_LEVELS:
            cores = level * base.all_cores
            try:
                if cores < _LEAST_CORES:
                    raise RefusedError("it hardly uses any")
                plan = cgroup.plan(Request(self.job, f"cores={cores:.3f}"))
            except (RefusedError, OSError) as error:
                self._skip(f"a quota of {level:g} of its cores", str(error))
                continue
            self._phase(CORES, cores, plan)
        for level in THROTTLE_LEVELS:
            rate = level * max(base.bytes_per_s.values(), default=0.0) / 2  # half of it is sent
            if rate < _LEAST_BYTES_PER_S:
                self._skip(f"connections held back to {level:g}", "it hardly sends anything")
                continue
            self._ordered(PACE, rate, orders.PACE)

    def _ordered(self, kind: str, level: float, setting: str) -> None:
        try:
            self._phase(kind, level, self._order(setting, level))
        except RefusedError as error:
            self._skip(f"{kind} {level:.3g}", str(error))

    def _mode(self, name: str, options: dict[str, Any]) -> None:
        target = {"spool": self.job.key}
        try:
            old = ModeKnob().read(target)
        except (GoneError, RefusedError) as error:
            self._skip(f"mode {name}", str(error))
            return
        change = Change("mode", target, old, [name, options], f"mode {old[0]} -> {name}")
        try:
            self._phase(MODE, None, [change], name, options)
        except RefusedError as error:
            self._skip(f"mode {name}", str(error))
        self._until_mode(old[0])

    def _order(self, setting: str, value: Any) -> list[Change]:
        end_ns = time.monotonic_ns() + round((self.most_s if setting == orders.WATCH else self._phase_s) * 1e9)
        request = Request(self.job, "", end_ns=end_ns)
        return ordered(request, _ACTUATOR_OF.get(setting), setting, value, f"{setting} {value}")

    @property
    def _phase_s(self) -> float:
        return self.seconds * LONGEST + 15.0

    def _phase(
        self,
        kind: str,
        level: float | None,
        changes: list[Change],
        mode: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> Seen | None:
        name = " ".join([kind, *([f"{level:.3g}"] if level is not None else []), *([mode] if mode else [])])
        self.on_phase(name, len(self.phases) + len(self.skipped), self._count)
        try:
            with self._held(changes):
                if not heard(self.job):
                    raise RefusedError("not all ranks have heard of it")
                if mode is not None and not self._until_mode(mode):
                    raise RefusedError(f"the job did not get into it within {SWITCH_S:g} s")
                seen = self._watch()
                in_force, with_options = (mode, options or {}) if mode is not None else self._now()
                self.phases.append(Phase(kind, level, in_force, with_options, time.monotonic_ns(), seen))
                return seen
        except RefusedError as error:
            self._skip(name, str(error))
            return None

    def _skip(self, what: str, why: str) -> None:
        self.skipped.append(f"{what}: {why}")

    def _watch(self) -> Seen:
        watch = Watch(self.job)
        try:
            begun_s = time.monotonic()
            while True:
                time.sleep(min(0.2, self.seconds))
                passed_s = time.monotonic() - begun_s
                steps = watch.steps()
                enough = len(steps) and min(steps.values()) >= FEWEST_STEPS
                if passed_s >= self.seconds * (1.0 if enough else LONGEST):
                    return watch.end()
        finally:
            watch.close()

    @contextmanager
    def _held(self, changes: list[Change]) -> Iterator[None]:
        if not changes:
            yield
            return
        entry = hand.make(self.job, ACTUATOR, changes, standing=False)
        try:
            yield
        finally:
            left = [one.left for one in hand.take_back(self.job.key, [entry.number]) if one.left]
            for text in left:
                self._skip("not put back", text)

    def _until_mode(self, wanted: str) -> bool:
        deadline_s = time.monotonic() + SWITCH_S
        while time.monotonic() < deadline_s:
            if self._now()[0] == wanted:
                return True
            time.sleep(0.1)
        return False

    def _now(self) -> tuple[str, dict[str, Any]]:
        """Mode in force; native where no coordinator is."""
        try:
            told = ask(folder_of(Path(self.job.key)), {"do": "status"})
        except (NobodyListensError, TransportError):
            return "native", {}
        return str(told.get("mode", "native")), dict(told.get("options") or {})


_ACTUATOR_OF = {orders.DELAY: "delay", orders.PACE: "pace"}


def rows_of(phases: Sequence[Phase], node: int, attempt: int) -> list[dict[str, Any]]:
    """As table `calibration` keeps them: one for each rank and phase."""
    return [_row(phase, rank, node, attempt) for phase in phases for rank in _ranks(phase.seen)]


def _ranks(seen: Seen) -> list[int]:
    return sorted(seen.cores.keys() | seen.iteration_s.keys())


def _row(phase: Phase, rank: int, node: int, attempt: int) -> dict[str, Any]:
    seen = phase.seen
    return {
        "node": node,
        "mono_ns": phase.mono_ns,
        "attempt": attempt,
        "rank": rank,
        "kind": phase.kind,
        "level": phase.level,
        "mode": phase.mode,
        "options": json.dumps(phase.options, sort_keys=True) if phase.options else None,
        "took_us": round(seen.seconds * 1e6),
        "steps": seen.steps.get(rank, 0),
        "iteration_us": _us(seen.iteration_s.get(rank)),
        "own_us": _us(seen.own_s.get(rank)),
        "cores": seen.cores.get(rank),
        "bytes_per_s": seen.bytes_per_s.get(rank),
    }


def _us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)
