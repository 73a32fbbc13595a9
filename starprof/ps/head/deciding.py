"""The head's state machine: what the policy decides becomes entries of the log that all shards carry out.

No clock, no connection and no thread is in here: what happens is told, and what follows is in `out`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starprof.control.modes import Mode
from starprof.ps.messages import Entry, Named, Part, Seen
from starprof.sync.policies import Arrived, Decision, Event, Gradient, Joined, Left, Policy, Predicted, Update, Woken

NONE_YET = -1


class Deciding:
    """See the module.

    Attributes:
        policy: that decides; None before all is there.
        serial: of the next entry.
        version: after all entries.
        clip: norm that updates are clipped to; 0: not at all.
        entries: that some shard may not have done yet, by serial.
        out: entries that no shard has been told of yet; whoever tells them clears it.
        updates: what was decided since they were last looked at, with the mode that did; whoever looks clears it.
        dropped: how many gradients were thrown away.
        staleness: how many gradients of each staleness went into updates.
        wake_at_s: when `woken` is to be called; None: not at all.
        number: of each worker, of the newest gradient that it has handed in, or that it was let in with.
    """

    def __init__(self, shards: int, clip: float = 0.0) -> None:
        self.policy: Policy | None = None
        self.serial = self.version = 0
        self.clip = clip
        self.entries: dict[int, Entry] = {}
        self.out: list[Entry] = []
        self.updates: list[tuple[Update, Mode, tuple[int, ...]]] = []
        self.dropped = 0
        self.staleness: dict[int, int] = {}
        self.wake_at_s: float | None = None
        self.number: dict[int, int] = {}
        self._shards = shards
        self._done = [0] * shards
        self._mode = Mode("ssgd")
        self._hyper: dict[tuple[int, int], tuple[float, ...]] = {}
        self._last_hyper: tuple[float, ...] = ()
        self._squares: dict[int, dict[int, float]] = {}

    # What is known of the log.

    @property
    def floor(self) -> int:
        """Entries before this one are done on all shards."""
        return min(self._done)

    def done(self, shard: int, serial: int) -> None:
        """A shard has done all entries up to `serial`."""
        self._done[shard] = max(self._done[shard], serial + 1)
        for old in [number for number in self.entries if number < self.floor]:
            del self.entries[old]
            self._squares.pop(old, None)

    def done_by(self, shard: int) -> int:
        """Serial of the next entry that a shard has to do, as far as is known."""
        return self._done[shard] if shard < len(self._done) else 0

    def missing(self, shard: int) -> list[Entry]:
        """Entries that a shard has not done."""
        return [self.entries[serial] for serial in sorted(self.entries) if serial >= self._done[shard]]

    def norm(self, shard: int, serial: int, square: float) -> float | None:
        """A shard's part of an update's squared norm; the factor to clip it with, once all are known."""
        entry = self.entries.get(serial)
        if entry is None or not entry.clip:
            return None
        of_all = self._squares.setdefault(serial, {})
        of_all[shard] = square
        if len(of_all) < self._shards:
            return None
        norm = sum(of_all[one] for one in sorted(of_all)) ** 0.5
        return min(1.0, entry.clip / (norm + 1e-6)) if norm == norm else 1.0  # not a number stays so

    def recover(self, tails: Sequence[Sequence[Seen]], done: Sequence[int], versions: Sequence[int]) -> None:
        """Another head was here before: this is what it had the shards do."""
        self._done = list(done)
        self.serial, self.version = max(done, default=0), max(versions, default=0)
        for shard, tail in enumerate(tails):
            for seen in tail:
                self.entries[seen.entry.serial] = seen.entry
                if seen.square >= 0.0:
                    self._squares.setdefault(seen.entry.serial, {})[shard] = seen.square
        for entry in self.entries.values():
            if entry.serial >= self.serial:
                self.serial, self.version = entry.serial + 1, entry.after
            if entry.hyper:
                self._last_hyper = entry.hyper
        self.done(0, done[0] - 1 if done else -1)

    # What happens.

    def begin(
        self, mode: Mode, workers: Iterable[int], kept: Sequence[Gradient], iteration_s: dict[int, float]
    ) -> None:
        """All shards are there, and these workers take part; `kept` was taken from workers that have gone on."""
        self._mode = mode
        self.policy = mode.policy(workers, self.version)
        if iteration_s:
            self._decide(Predicted(iteration_s))
        if kept:
            usable = [gradient for gradient in kept if gradient.version <= self.version]
            self._carry_out(Decision(dropped=tuple(usable)) if self.policy.drops else self.policy.inherit(usable))

    def arrived(self, gradient: Gradient, hyper: tuple[float, ...], at_s: float) -> None:
        """All shards hold a gradient. Raises ValueError where that can't be."""
        worker = gradient.worker
        if self.policy is None or worker not in self.policy.members or gradient.number <= self.number[worker]:
            return
        self.number[worker] = gradient.number
        self._hyper[worker, gradient.number] = hyper
        self._decide(Arrived(gradient, at_s))

    def joined(self, worker: int, number: int, at_s: float) -> None:
        """A worker takes part from now on, and gets the parameters as the answer to `number`."""
        assert self.policy is not None
        self.number[worker] = number
        self._decide(Joined(worker, at_s))

    def left(self, worker: int, at_s: float) -> None:
        """A worker is gone."""
        assert self.policy is not None
        if worker in self.policy.members:
            forget = Named(worker, self.number[worker] + 2)
            self._carry_out(self.policy.decide(Left(worker, at_s)), forget=(forget,))
            self._hyper = {key: value for key, value in self._hyper.items() if key[0] != worker}

    def wanted(self, worker: int, number: int) -> None:
        """A worker wants the parameters without a gradient, as the answer to `number`."""
        if self.policy is not None and worker in self.policy.members and number > self.number[worker]:
            self.release(worker, number)

    def release(self, worker: int, number: int) -> None:
        """A worker goes on from what it waits with."""
        self.number[worker] = max(number, self.number.get(worker, NONE_YET))
        self._carry_out(Decision(release=(worker,)))

    def woken(self, at_s: float) -> None:
        """The time has come that the policy wanted to be woken at."""
        self.wake_at_s = None
        if self.policy is not None:
            self._decide(Woken(at_s))

    def predicted(self, iteration_s: dict[int, float], at_s: float) -> None:
        """How long each worker's iterations take by themselves."""
        if self.policy is not None:
            self._decide(Predicted(iteration_s, at_s))

    def switch(self, mode: Mode, iteration_s: dict[int, float], at_s: float) -> None:
        """Another mode from the next update on; what has been handed in goes over to it."""
        old = self.policy
        if old is None:
            return
        self._carry_out(old.wind_up())
        self._mode = mode
        self.policy = mode.policy(old.members, old.version)
        if iteration_s:
            self._decide(Predicted(iteration_s))
        for gradient in old.waiting.values():
            self._decide(Arrived(gradient, at_s))

    # What follows.

    def _decide(self, event: Event) -> None:
        assert self.policy is not None
        self._carry_out(self.policy.decide(event))

    def _carry_out(self, decision: Decision, forget: tuple[Named, ...] = ()) -> None:
        assert self.policy is not None
        if decision.wake_at_s is not None:
            self.wake_at_s = decision.wake_at_s
        members = set(self.policy.members)
        release = tuple(Named(worker, self.number[worker]) for worker in decision.release if worker in members)
        drop = tuple(Named(gradient.worker, gradient.number) for gradient in decision.dropped)
        self.dropped += len(drop)
        last = len(decision.updates) - 1
        for place, update in enumerate(decision.updates):
            parts = tuple(
                Part(g.worker, g.number, weight) for g, weight in zip(update.gradients, update.weights, strict=True)
            )
            for staleness in update.staleness:
                self.staleness[staleness] = self.staleness.get(staleness, 0) + 1
            end = (drop, forget, release) if place == last else ((), (), ())
            self._write(parts, self._hyper_for(update), *end)
            self.updates.append((update, self._mode, tuple(one.worker for one in end[2])))
        if not decision.updates and (drop or forget or release):
            self._write((), (), drop, forget, release)
        for one in drop:
            self._hyper.pop((one.worker, one.number), None)

    def _hyper_for(self, update: Update) -> tuple[float, ...]:
        """Of the contributor that is furthest: schedules move on with each worker's own iterations."""
        told = [self._hyper.pop((g.worker, g.number), None) for g in update.gradients]
        newest = max(zip(update.gradients, told, strict=True), key=lambda pair: (pair[0].number, -pair[0].worker))
        self._last_hyper = newest[1] or self._last_hyper
        return self._last_hyper

    def _write(
        self,
        parts: tuple[Part, ...],
        hyper: tuple[float, ...],
        drop: tuple[Named, ...],
        forget: tuple[Named, ...],
        release: tuple[Named, ...],
    ) -> None:
        clip = self.clip if parts else 0.0
        entry = Entry(self.serial, self.version, parts, hyper, clip, drop, forget, release, self.floor)
        self.entries[entry.serial] = entry
        self.out.append(entry)
        self.serial, self.version = entry.serial + 1, entry.after
