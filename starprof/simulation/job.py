"""One job in simulated time: workers compute, hand in and wait; its policy decides, and what it decides is done.

Decisions are carried out as the engines of running jobs carry them out (`starprof.sync.protocol`): a gradient is of
the version that its worker was released with, updates are made in order, and a wish to be woken stays until another
replaces it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from starprof.simulation.clock import Clock
from starprof.simulation.control import Controller, Predictor, View, Watch, mean_of_last
from starprof.simulation.history import Evaluation, Step
from starprof.simulation.places import Places
from starprof.simulation.recording import Recording
from starprof.simulation.setting import FREE, Change, Exchange, PolicyMaker, Until, Worker
from starprof.simulation.switching import Switching
from starprof.simulation.traffic import Network, traffic_of
from starprof.simulation.training.base import Training
from starprof.sync.policies import (
    Arrived,
    Decision,
    Event,
    Gradient,
    Joined,
    Left,
    Policy,
    Predicted,
    Scored,
    Update,
    Woken,
)
from starprof.sync.policies.ring_x import RingX


@dataclass(frozen=True)
class Job:
    """What is to be simulated; all of it may be used again.

    Attributes:
        mode: that it begins with, usually a `Mode`.
        workers: of it.
        training: what is trained.
        until: when it ends.
        exchange: how gradients travel.
        changes: workers that leave or come.
        predictor: tells modes that go by predictions, once an iteration.
        controller: changes the mode.
        name: for reports.
    """

    mode: PolicyMaker
    workers: tuple[Worker, ...]
    training: Training
    until: Until
    exchange: Exchange = FREE
    changes: tuple[Change, ...] = ()
    predictor: Predictor = mean_of_last
    controller: Controller | None = None
    name: str = "job"


class RunningJob:
    """A job at work.

    Attributes:
        stopped: why it has ended; empty: it goes on.
        end_s: when.
        record: what has happened.
        places: where its workers are.
        traffic: how its gradients travel.
    """

    def __init__(self, job: Job, clock: Clock, network: Network, seed: int, over: Callable[[], None]) -> None:
        """Plan the first iterations; `over` is called at the end.

        Raises:
            ValueError: two workers have the same index, or nobody is there at the start.
        """
        self.job, self.clock = job, clock
        self.workers = {worker.index: worker for worker in job.workers}
        first = [worker.index for worker in job.workers if worker.joins_s <= 0]
        if len(self.workers) < len(job.workers) or not first:
            raise ValueError("workers need an index each, and some of them must be there at the start")
        self.stopped, self.end_s = "", 0.0
        self._over = over
        self.record = Recording()
        self.places = Places(network, job.workers)
        self.traffic = traffic_of(job.exchange, clock, network, self.places.node)
        # Where nothing comes between computing and handing in, a thousand workers are spared two events each.
        self._at_once = not self.traffic.pushes and all(worker.cpu_s <= 0 for worker in job.workers)
        self._draw = {index: worker.source.start([seed, index]) for index, worker in self.workers.items()}
        self._samples = {index: worker.batch for index, worker in self.workers.items()}
        self._training = job.training.start(dict(self._samples), seed)
        self._policy = job.mode(first, 0)
        self._switching = Switching()
        watched = job.controller is not None or goes_by_predictions(self._policy)
        self._watch = Watch() if watched else None
        self._told = 0
        self._progress = self._learned = 0.0
        self._measure_next = 0.0
        self._accuracy: float | None = None
        self._stop_after_s: float | None = None
        self._wake_at_s: float | None = None
        self._number = dict.fromkeys(self.workers, -1)
        self._life = dict.fromkeys(self.workers, 0)
        self._gradient: dict[int, Gradient] = {}
        self._begun_s: dict[int, float] = {}
        self._steps: dict[int, float] = {}  # that workers have made on their own since all had one state
        self._plan(first)

    def _plan(self, first: Sequence[int]) -> None:
        changes = [Change(w.joins_s, w.index, True) for w in self.job.workers if w.joins_s > 0]
        for change in sorted([*changes, *self.job.changes], key=lambda change: change.at_s):
            self.clock.at(change.at_s, self._changed, change)
        if self.job.until.at_s is not None:
            self.clock.at(self.job.until.at_s, self._stop, "at_s")
        self._measure(0.0)
        # Modes that limit the time to compute say so with each decision: the first must come before anybody begins.
        begin = self._policy.decide(Woken(0.0))
        self._carry_out(replace(begin, release=(*begin.release, *first)))

    def _stop(self, why: str, at_s: float | None = None) -> None:
        if not self.stopped:
            self.stopped = why
            self.end_s = self.clock.now_s if at_s is None else at_s
            self._over()

    @property
    def mode(self) -> str:
        """That it is in."""
        return self._policy.name

    @property
    def members(self) -> tuple[int, ...]:
        """Workers that take part."""
        return tuple(self._policy.members)

    @property
    def progress(self) -> float:
        """Of the training so far, in iterations."""
        return self._progress

    # What workers do.

    def _released(self, worker: int, ready_s: float) -> None:
        """It goes on with the newest parameters, which are made at `ready_s`."""
        self.record.released(worker, ready_s)
        self._number[worker] += 1
        version = self._policy.version
        gradient = Gradient(worker, self._number[worker], version, self._samples[worker])
        self._gradient[worker] = gradient
        self._training.begin(gradient)
        self._begun_s[worker] = ready_s
        life = self._life[worker]
        if worker in self._steps:  # its parameters are its own
            self.clock.at(ready_s, self._computes, (worker, life))
        else:
            self.traffic.pull(worker, ready_s, lambda w: self._computes((w, life)))

    def _computes(self, of: tuple[int, int]) -> None:
        worker, life = of
        if self.stopped or life != self._life[worker]:
            return
        now_s = self.clock.now_s
        own_s, samples = self._own_time(worker, self._draw[worker](now_s))
        gradient = self._gradient[worker]
        if samples != gradient.samples:
            self._gradient[worker] = Gradient(worker, gradient.number, gradient.version, samples)
        own_s += self.places.held_up_s(worker)
        self.clock.at(now_s + own_s, self._handed_in if self._at_once else self._computed, of)

    def _own_time(self, worker: int, full_s: float) -> tuple[float, int]:
        """Own time of an iteration that would take so long with a whole batch, and the samples that it is made of."""
        described = self.workers[worker]
        samples = self._gradient[worker].samples
        if samples == described.batch and self._stop_after_s is None:
            return full_s, samples
        if samples != described.batch:
            fixed = described.fixed_share
            full_s *= fixed + (1 - fixed) * samples / described.batch
        limit_s, parts = self._stop_after_s, described.micro_batches
        if limit_s is None or full_s <= limit_s or parts == 1:
            return full_s, samples
        made = max(1, min(parts, math.ceil(limit_s / (full_s / parts))))
        return full_s * made / parts, max(1, samples * made // parts)

    def _computed(self, of: tuple[int, int]) -> None:
        """Its own time is over; what is left of the iteration needs its node's processor, and the network."""
        worker, life = of
        if self.stopped or life != self._life[worker]:
            return
        if self.places.scarce(worker):
            self.clock.at(self.places.computed(worker, self.clock.now_s), self._prepared, of)
        else:
            self._prepared(of)

    def _prepared(self, of: tuple[int, int]) -> None:
        worker, life = of
        if self.stopped or life != self._life[worker]:
            return
        if self.traffic.pushes and not self._policy.local_steps.period:
            self.traffic.push(worker, lambda w: self._handed_in((w, life)))
        else:
            self._handed_in(of)

    def _handed_in(self, of: tuple[int, int]) -> None:
        worker, life = of
        if self.stopped or life != self._life[worker]:
            return
        now_s = self.clock.now_s
        gradient = self._gradient.pop(worker)
        begun_s = self._begun_s[worker]
        self.record.handed_in(worker, gradient.number, begun_s, now_s - begun_s)
        if self._watch is not None:
            self._watch.saw(worker, now_s - begun_s, gradient.samples)
            self._look_around(self._watch)
        self._decide(Arrived(gradient, now_s))
        if self.record.gradients >= self.job.until.gradients:
            self._stop("gradients")

    # What is seen and decided.

    def _look_around(self, watch: Watch) -> None:
        """Once an iteration: predictions, and another mode."""
        self._told += 1
        if self._told < len(self._policy.members):
            return
        self._told = 0
        view = self._view(watch)
        if goes_by_predictions(self._policy):
            predicted = self.job.predictor(view)
            if predicted:
                self._decide(Predicted(predicted, self.clock.now_s))
        if self.job.controller is not None:
            wanted = self.job.controller(view)
            if wanted is not None:
                self.record.switches.append((self.clock.now_s, str(wanted)))
                self._switching.want(wanted)
                self._switch_when_possible()

    def _view(self, watch: Watch) -> View:
        members = tuple(self._policy.members)
        return View(
            self.clock.now_s,
            self._policy.version,
            self._progress,
            members,
            watch.recent,
            {worker: self._samples[worker] for worker in members},
            self._accuracy,
        )

    def _switch_when_possible(self) -> None:
        """What still waits goes over to the policy that follows, as in a running job."""
        follows = self._switching.next(self._policy, apart=bool(self._steps))
        if follows is None:
            return
        old = self._policy
        self._carry_out(old.wind_up())
        self._policy = follows(old.members, old.version)
        self._wake_at_s = None
        for gradient in old.waiting.values():
            self._decide(Arrived(gradient, self.clock.now_s))
        self._decide(Woken(self.clock.now_s))

    def _decide(self, event: Event) -> None:
        self._carry_out(self._policy.decide(event))

    def _carry_out(self, decision: Decision) -> None:
        ready_s = self.clock.now_s
        for update in decision.updates:
            ready_s = self._updated(update)
        for gradient in decision.step_locally:
            self._training.step_locally(gradient, self._progress)
            self._steps[gradient.worker] = self._steps.get(gradient.worker, 0.0) + 1.0
        for members in decision.average:
            ready_s = self._averaged(members)
        for gradient in decision.dropped:
            self.record.dropped += 1
            self._training.drop(gradient)
        if decision.batch_sizes is not None:
            self._samples.update(decision.batch_sizes)
        self._stop_after_s = decision.stop_after_s
        for worker in decision.release:
            self._released(worker, ready_s)
        if decision.wake_at_s is not None:
            self._wake_at_s = decision.wake_at_s
            self.clock.at(max(self.clock.now_s, decision.wake_at_s), self._woken, decision.wake_at_s)
        for gradient in decision.score:
            self._decide(Scored(gradient, self._training.score(gradient), self.clock.now_s))
        if decision.updates or decision.average:
            self._switch_when_possible()

    def _updated(self, update: Update) -> float:
        """Make an update; when it is made."""
        scale = sum(update.weights)
        self._learned += self._training.update(update, self._progress)
        if update.members is None:
            self._progress += scale
            contributors = tuple(dict.fromkeys(update.contributors))
            inside = self._policy.ring if isinstance(self._policy, RingX) else contributors
            ready_s = self.traffic.update(contributors, self._policy.members, inside)
        else:
            for worker in update.members:
                self._steps[worker] = self._steps.get(worker, 0.0) + 1.0
            ready_s = self.traffic.group_step(update.members)
        self._done(ready_s, update.onto, update.gradients, update.weights, update.members)
        return ready_s

    def _averaged(self, members: tuple[int, ...]) -> float:
        """Average states; when it is done."""
        steps = sum(self._steps.pop(worker, 0.0) for worker in members) / max(1, len(members))
        self._learned += self._training.average(members, steps)
        self._progress += steps
        ready_s = self.traffic.average(members)
        self._done(ready_s, self._policy.version - 1, (), (), members, averaged=True)
        return ready_s

    def _done(
        self,
        at_s: float,
        onto: int,
        gradients: tuple[Gradient, ...],
        weights: tuple[float, ...],
        members: tuple[int, ...] | None,
        averaged: bool = False,
    ) -> None:
        """Note a step, look at what it has brought, and end when that is enough."""
        self.record.steps.append(
            Step(
                self.clock.now_s,
                at_s,
                onto,
                gradients,
                weights,
                members,
                self._progress,
                self._learned,
                averaged,
                self._policy.name,
            )
        )
        self._measure(at_s)
        until = self.job.until
        for name, limit, there in (
            ("updates", until.updates, len(self.record.steps)),
            ("progress", until.progress, self._progress),
            ("learned", until.learned, self._learned),
            ("accuracy", until.accuracy, self._accuracy),
        ):
            if limit is not None and there is not None and there >= limit - 1e-9:
                self._stop(name, at_s)

    def _measure(self, at_s: float) -> None:
        """Evaluate, when it is time to."""
        if self._progress < self._measure_next - 1e-9:
            return
        every = self.job.training.evaluate_every
        self._measure_next = (math.floor(self._progress / every + 1e-9) + 1) * every
        measured = self._training.measure()
        if measured is None:
            return
        self._accuracy = measured.accuracy
        self.record.evaluations.append(
            Evaluation(at_s, self._policy.version, self._progress, measured.loss, measured.accuracy)
        )
        if not math.isfinite(measured.loss):
            self._stop("diverged", at_s)

    def _woken(self, asked_s: float) -> None:
        if not self.stopped and self._wake_at_s == asked_s:
            self._wake_at_s = None
            self._decide(Woken(max(asked_s, self.clock.now_s)))

    # Who takes part.

    def _changed(self, change: Change) -> None:
        if self.stopped:
            return
        worker, at_s = change.worker, self.clock.now_s
        if change.joins:
            self._decide(Joined(worker, at_s))
            return
        self._life[worker] += 1  # whatever it was doing is void
        lost = self._gradient.pop(worker, None)
        if lost is not None:
            self._training.drop(lost)
        self._steps.pop(worker, None)
        self.traffic.left(worker)
        self._decide(Left(worker, at_s))
        self._training.left(worker)


def goes_by_predictions(policy: Policy) -> bool:
    """Whether it does anything with them."""
    return type(policy)._predicted is not Policy._predicted
