"""The advisor itself: a state machine that hears of steps, losses and the job's mode, and says what is to be done.

It has no clock, no thread and no file: whoever feeds it tells the time. An action lives like this:

    watching -> a rank is late, surely and lastingly; a mode pays, by prediction and by a dry run on what was recorded
    asked    -> the job is on its way to it
    canary   -> its first steps, after which the gain that was measured decides
    kept     -> while the rank stays late, the mode pays and the training is well
    back     -> on the way to native steps, after which the host is left alone for a time that doubles

At every place a divergence of the training, a verdict that nothing confirms any more, or the mode not paying leads
back to native steps. The operator comes first: what is frozen, or was his own choice, is not touched.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Any

import numpy as np

from starprof.advisor.events import (
    NATIVE,
    Action,
    Denied,
    Event,
    Job,
    Loss,
    Move,
    Note,
    Proposal,
    Ranks,
    StepTime,
    Tick,
)
from starprof.advisor.guard import DivergenceGuard
from starprof.advisor.limits import Authority, Limits
from starprof.advisor.measure import gain_of
from starprof.advisor.memory import HostMemory
from starprof.advisor.proposal import Question, propose
from starprof.advisor.scene import Scene

LEAST_STEPS, LEAST_SPAN_S = 8, 0.8
"""A move is not thought of before it has this to go by."""

LOOK_EVERY_S = 0.5
ASKED_PATIENCE_S = 30.0
CANARY_PATIENCE_S = 60.0
LONGEST_CANARY = 4
"""Times `Limits.canary_steps`, where the first ones don't tell."""

KEEP_LOW = 1.02
NOTES_KEPT = 20
RETHINK_S, MOST_RETHINK_S = 1.0, 16.0
"""To think it through takes a good part of a second: of the same ranks it is done ever more seldom."""

QUIET_AFTER_SAID_S = 30.0
"""The same thing is not said again before."""


class Phase(enum.StrEnum):
    """See the module."""

    WATCHING = "watching"
    ASKED = "asked"
    CANARY = "canary"
    KEPT = "kept"
    BACK = "back"


class Advisor:
    """Of one job, over its restarts.

    Attributes:
        phase: see the module.
        proposal: that the job is moved by, or was last.
        job: how it synchronises; None: nobody controls it, its steps are native.
    """

    def __init__(self, authority: Authority = Authority.OBSERVE, limits: Limits | None = None) -> None:
        """Watch; `authority`: what to do about what is found."""
        self.authority = authority
        self.limits = limits or Limits()
        self.phase = Phase.WATCHING
        self.proposal: Proposal | None = None
        self.job: Job | None = None
        self._scene: Scene | None = None
        self._guard = DivergenceGuard()
        self._memory = HostMemory(self.limits.hold_s)
        self._action = 0
        self._away: deque[float] = deque()
        self._phase_since_s = 0.0
        self._native_since_s = -np.inf
        self._looked_s = -np.inf
        self._said: dict[str, float] = {}
        self._bad: dict[str, str] = {}
        self._notes: deque[dict[str, Any]] = deque(maxlen=NOTES_KEPT)
        self._measured: Any = None
        self._standing_by = ""
        self._thought: tuple[tuple[int, ...], float, float] = ((), -np.inf, 0.0)

    def handle(self, event: Event, now_s: float) -> tuple[Action, ...]:
        """Hear something, and say what is to be done.

        Args:
            event: what has happened.
            now_s: by a clock that never goes back; a jump of it forward makes verdicts expire, and nothing worse.
        """
        out: list[Action] = []
        match event:
            case StepTime():
                if self._scene is not None:
                    self._scene.step(event, native=self._native)
            case Ranks():
                self._begin(event, now_s, out)
            case Job():
                self._heard_job(event, now_s, out)
            case Denied(reason=reason):
                self._denied(reason, now_s, out)
            case Loss():
                self._guard.heard(event, native=self._native and self.phase is not Phase.ASKED)
            case Tick():
                self._tick(now_s, out)
        for action in out:
            if isinstance(action, Note):
                self._notes.append({"at_s": now_s, "stage": action.stage, "mode": action.mode, "reason": action.reason})
        return tuple(out)

    def state(self, now_s: float) -> dict[str, Any]:
        """What it is doing, as plain values, for whoever looks."""
        made = self.proposal if self.phase is not Phase.WATCHING else None
        return {
            "authority": self.authority.value,
            "phase": self.phase.value,
            "since_s": round(now_s - self._phase_since_s, 1),
            "mode": "native" if made is None else made.name,
            "ranks": [] if made is None else list(made.ranks),
            "hosts": [] if made is None else list(made.hosts),
            "predicted": None if made is None else str(made.predicted),
            "measured": None if made is None or self._measured is None else str(self._measured),
            "standing_by": self._standing_by or None,
            "actions_last_hour": len(self._away),
            "memory": self._memory.to_json(),
            "notes": [{**note, "at_s": round(now_s - note["at_s"], 1)} for note in list(self._notes)[-5:]],
        }

    # What is heard.

    @property
    def _native(self) -> bool:
        return self.job is None or (self.job.mode == NATIVE and self.job.settled)

    def _begin(self, event: Ranks, now_s: float, out: list[Action]) -> None:
        """New processes: hosts are remembered, ranks are not."""
        self._scene = Scene(event.ranks)
        if self.phase is not Phase.WATCHING:
            out.append(self._note("rolled-back", "the job was started anew"))
        self._guard = DivergenceGuard()
        self._enter(Phase.WATCHING, now_s)
        self._native_since_s = -np.inf

    def _heard_job(self, event: Job, now_s: float, out: list[Action]) -> None:
        before, self.job = self.job, event
        if self._native and before is not None and before.mode != NATIVE:
            self._native_since_s = now_s
        self._look_at_operator(event, now_s, out)
        made = self.proposal
        if self.phase is Phase.ASKED and made is not None and self._is_in(made):
            self._enter(Phase.CANARY, now_s)
            self._guard.begin()
            out.append(self._note("canary", f"{made.name} is in force; {self.limits.canary_steps} steps of it decide"))
        elif self.phase is Phase.BACK and self._native:
            self._returned(now_s, out)
        elif self.phase in (Phase.CANARY, Phase.KEPT) and made is not None and event.settled and not self._is_in(made):
            out.append(self._note("rolled-back", f"the job was moved to {event.mode} by {event.asked_by or 'another'}"))
            self._memory.came_back(made.hosts, now_s)
            self._enter(Phase.WATCHING, now_s)

    def _look_at_operator(self, event: Job, now_s: float, out: list[Action]) -> None:
        why = f"frozen by {event.frozen}" if event.frozen else f"{event.operator}'s choice" if event.operator else ""
        if why and why != self._standing_by:
            out.append(Note("declined", 0, f"the mode is {why}: it is not touched until `starprof ctl JOB unfreeze`"))
        self._standing_by = why
        if event.operator and self.phase in (Phase.ASKED, Phase.BACK):
            self._enter(Phase.WATCHING, now_s)

    def _is_in(self, made: Proposal) -> bool:
        job = self.job
        return job is not None and job.mode == made.mode and dict(job.options) == dict(made.options)

    def _denied(self, reason: str, now_s: float, out: list[Action]) -> None:
        if self.phase is Phase.ASKED:
            out.append(self._note("declined", f"the coordinator says: {reason}"))
            if self.proposal is not None:
                self._memory.came_back(self.proposal.hosts, now_s)
            self._enter(Phase.WATCHING, now_s)
        elif self.phase is Phase.BACK:
            # It is asked for again, unless the operator has his way.
            self._enter(Phase.WATCHING if self.proposal is None else Phase.KEPT, now_s)

    # Time.

    def _tick(self, now_s: float, out: list[Action]) -> None:
        if self._scene is None or now_s - self._looked_s < LOOK_EVERY_S:
            return
        since_s, self._looked_s = self._looked_s, now_s
        while self._away and now_s - self._away[0] > 3600.0:
            self._away.popleft()
        self._memory.forget(now_s)
        self._look_at_hosts(now_s, min(now_s - since_s, 2 * LOOK_EVERY_S), out)
        if not self._standing_by:
            self._look(self._scene, now_s, out)

    def _look(self, scene: Scene, now_s: float, out: list[Action]) -> None:
        match self.phase:
            case Phase.WATCHING:
                self._watch(scene, now_s, out)
            case Phase.ASKED:
                if now_s - self._phase_since_s > ASKED_PATIENCE_S:
                    self._back("rolled-back", "the job does not get there", now_s, out)
            case Phase.CANARY:
                if not self._unwell(scene, now_s, out):
                    self._judge_canary(scene, now_s, out)
            case Phase.KEPT:
                if not self._unwell(scene, now_s, out):
                    self._keep(scene, now_s, out)
            case Phase.BACK:
                if now_s - self._phase_since_s > ASKED_PATIENCE_S:
                    self._enter(Phase.BACK, now_s)
                    out.append(Move(NATIVE, {}, "back to native steps, asked for again"))

    def _look_at_hosts(self, now_s: float, for_s: float, out: list[Action]) -> None:
        assert self._scene is not None
        late = self.proposal.ranks if self.phase is Phase.KEPT and self.proposal is not None else self._scene.late()
        self._memory.late({self._scene.place(rank) for rank in late}, for_s, now_s)
        for host, late_s in self._memory.to_drain(self.limits.drain_s, now_s):
            told = f"{host} was late for {late_s:.0f} s in all: consider to drain it (docs/advisor.md)"
            out.append(Note("drain", 0, told, hosts=(host,)))

    # Watching.

    def _watch(self, scene: Scene, now_s: float, out: list[Action]) -> None:
        if not self._native:
            if self.job is not None and self.job.settled and self.job.asked_by == "advisor" and self.proposal is None:
                self._back("rolled-back", "another advisor has left the job in this mode", now_s, out)
            return
        late = scene.late()
        if not late or not self._think_again(late, now_s):
            return
        times = scene.window.native(max(self._native_since_s, scene.late_since_s(late)))
        if len(times) < LEAST_STEPS or times.max(axis=1).sum() < LEAST_SPAN_S:
            return
        self._has_thought(late, now_s)
        where = tuple(scene.place(rank) for rank in scene.window.ranks)
        noise = None if self.job is None else self.job.noise
        found = propose(Question(times, scene.window.ranks, where, late, noise), self.limits, self._bad)
        if isinstance(found, str):
            self._say_once(Note("declined", 0, found, hosts=tuple(scene.place(r) for r in late)), now_s, out)
            return
        if set(found.ranks) != set(late):
            return
        self._act(scene, found, now_s, out)

    def _think_again(self, late: tuple[int, ...], now_s: float) -> bool:
        """Whether it is time to; others being late is always new."""
        before, due_s, _ = self._thought
        return late != before or now_s >= due_s

    def _has_thought(self, late: tuple[int, ...], now_s: float) -> None:
        before, _, wait_s = self._thought
        wait_s = min(2.0 * wait_s, MOST_RETHINK_S) if late == before else RETHINK_S
        self._thought = (late, now_s + wait_s, wait_s)

    def _act(self, scene: Scene, found: Proposal, now_s: float, out: list[Action]) -> None:
        if self.authority is Authority.APPLY and self.job is None:
            return  # its coordinator is not there yet
        held = self._held_back(scene, found, now_s)
        if held:
            self._say_once(Note("declined", 0, held, found.mode, self._mode, found), now_s, out)
            return
        if self.authority is not Authority.APPLY:
            stage = "would" if self.authority is Authority.OBSERVE else "suggested"
            self._say_once(Note(stage, 0, found.reason, found.mode, self._mode, found), now_s, out)
            return
        self._action += 1
        self.proposal, self._measured = found, None
        self._away.append(now_s)
        out.append(self._note("proposed", found.reason))
        self._enter(Phase.ASKED, now_s)
        out.append(Move(found.mode, found.options, f"action {self._action}: {found.reason}", found))

    def _held_back(self, scene: Scene, found: Proposal, now_s: float) -> str:
        job = self.job
        if job is not None and job.refused:
            return f"the loop stays with native steps: {job.refused}"
        left_s = self._memory.hold_until_s(found.hosts) - now_s
        if left_s > 0:
            return f"{', '.join(found.hosts)} was moved for before: nothing happens for another {left_s:.0f} s"
        if len(self._away) >= self.limits.actions_per_hour:
            return f"{len(self._away)} actions in the last hour are as many as the user allows"
        return scene.not_quiet(found.ranks, now_s)

    # After the job was moved.

    def _unwell(self, scene: Scene, now_s: float, out: list[Action]) -> bool:
        """Whether the job has to go back whatever the mode brings."""
        alarm = self._guard.alarm()
        made = self.proposal
        assert made is not None
        if alarm:
            self._bad[made.mode] = f"with it {alarm}"
            self._back("guard", alarm, now_s, out)
            return True
        if now_s - max(scene.window.newest_s, self._phase_since_s) > self.limits.expiry_s:
            self._back("rolled-back", "nothing is heard of the ranks any more: the verdict has expired", now_s, out)
            return True
        return False

    def _judge_canary(self, scene: Scene, now_s: float, out: list[Action]) -> None:
        made = self.proposal
        assert made is not None
        after = scene.window.pace(self._phase_since_s, made.ranks)[1:]
        waited_s = now_s - self._phase_since_s
        if len(after) < self.limits.canary_steps and waited_s < CANARY_PATIENCE_S:
            return
        if len(after) < 2:
            self._back("rolled-back", "no steps are made in it", now_s, out)
            return
        gain = self._measured = gain_of(self._before(scene, made), after, made.progress)
        undecided = len(after) < LONGEST_CANARY * self.limits.canary_steps and waited_s < CANARY_PATIENCE_S
        if gain.low >= KEEP_LOW or (not undecided and gain.middle >= 1.0 + self.limits.gain / 2):
            out.append(self._note("kept", f"measured {gain}, expected {made.predicted}", len(after)))
            self._enter(Phase.KEPT, now_s)
        elif gain.high < 1.0 or not undecided:
            self._back("rolled-back", f"measured {gain}, expected {made.predicted}", now_s, out)

    def _before(self, scene: Scene, made: Proposal) -> Any:
        """Native steps with the fault, as long as they are remembered."""
        until = [d for d in scene.before_s if d > 0]
        return np.array(until[-made.steps :]) if len(until) >= 2 else np.array([made.native_s] * 2)

    def _keep(self, scene: Scene, now_s: float, out: list[Action]) -> None:
        made = self.proposal
        assert made is not None
        if scene.recovered(made.ranks, self._phase_since_s, now_s):
            self._back("returned", f"{', '.join(made.hosts)} is as quick as the others again", now_s, out)
            return
        lost = scene.not_paying(made, self._phase_since_s)
        if lost:
            self._back("returned", lost, now_s, out)

    def _back(self, stage: str, reason: str, now_s: float, out: list[Action]) -> None:
        """To native steps, for good reasons always at once."""
        out.append(self._note(stage, reason, to=NATIVE))
        out.append(Move(NATIVE, {}, f"action {self._action}: {reason}"))
        self._enter(Phase.BACK, now_s)

    def _returned(self, now_s: float, out: list[Action]) -> None:
        made = self.proposal
        if made is not None:
            self._memory.came_back(made.hosts, now_s)
        out.append(self._note("native", "the job is in native steps again", to=NATIVE))
        self._enter(Phase.WATCHING, now_s)

    # Small things.

    @property
    def _mode(self) -> str:
        return NATIVE if self.job is None else self.job.mode

    def _enter(self, phase: Phase, now_s: float) -> None:
        if phase is Phase.ASKED and self._scene is not None:
            late = self._scene.late_since_s(self._scene.late())
            self._scene.before_s = self._scene.window.durations(max(self._native_since_s, late)).tolist()
        if phase is Phase.WATCHING:
            self.proposal = None
            self._thought = ((), -np.inf, 0.0)
            self._native_since_s = now_s
        self.phase, self._phase_since_s = phase, now_s

    def _note(self, stage: str, reason: str, steps: int | None = None, to: str | None = None) -> Note:
        made = self.proposal
        mode = to or (made.mode if made is not None else None)
        return Note(stage, self._action, reason, mode, self._mode, made, self._measured, steps)

    def _say_once(self, note: Note, now_s: float, out: list[Action]) -> None:
        """The same kind of word about the same ranks now and then only."""
        key = f"{note.stage} {note.mode} {note.proposal.ranks if note.proposal else note.hosts}"
        if now_s - self._said.get(key, -np.inf) >= QUIET_AFTER_SAID_S:
            self._said[key] = now_s
            out.append(note)
