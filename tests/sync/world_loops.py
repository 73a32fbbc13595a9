"""The training loops of a world of the round protocol: iterations, epochs, and what is applied to parameters."""

import math
from dataclasses import dataclass, replace

import pytest

from starprof.sync.protocol.member import Begin


@dataclass
class Place:
    """Where a rank's loop is; batches are skipped as the training goes on without it."""

    iterations: int = 0
    epoch: int = 0
    progress: float = 0.0


@dataclass(frozen=True)
class Epochs:
    """All ranks come together after every `iterations`; `last`: after the last epoch too.

    With `early`, ranks and when they leave their loops, all end with a barrier, which those wait at from then on.
    """

    count: int
    iterations: int
    last: bool = True
    skip_at_once: bool = True  # to where others have paused, else only as far as the training has gone on
    early: tuple = ()


class Loops:
    """The part of a world in which ranks train."""

    def _computed(self, r):
        begin = self.computing.pop(r)
        member, place = self._member(r), self.place[r]
        place.iterations += 1
        if begin.native:
            # A native step is an update of everybody's gradients.
            self.applied[r].append((begin.version, "native"))
            place.progress += 1.0
            self._do(r, member.native_done())
        elif member.local.period:
            self.own[r] += 1
            self._hand_in_state(r) if self.own[r] >= member.local.period else self._goes_on(r, begin)
        else:
            self._do(r, member.gradient(iterations=place.iterations, sent=self._sent(r)))

    def _hand_in_state(self, r):
        its = {"iterations": self.place[r].iterations, "steps": self.own[r], "sent": self._sent(r)}
        self._do(r, self._member(r).gradient(**its))

    def _goes_on(self, r, begin):
        """The training thread may compute; or it has come to the end of an epoch, or of everything."""
        place = self.place[r]
        if self._leaves_early(r, begin):
            self._do(r, self._member(r).pause(place.iterations, "barrier"))
            return
        if self.epochs is None:
            over = begin.version >= self.updates
        elif place.epoch == self.epochs.count:
            over = True  # the state that it has pulled is a finished rank's
        else:
            end = (place.epoch + 1) * self.epochs.iterations
            if not begin.native and not self.own[r]:
                limit = self.limit[r] if self.epochs.skip_at_once else None
                there = max(math.floor(place.progress + 1e-9), limit or 0)
                place.iterations = max(place.iterations, min(there, end))
            if place.iterations == end and (self.epochs.last or place.epoch + 1 < self.epochs.count):
                self._hand_in_state(r) if self.own[r] else self._do(r, self._member(r).pause(end))
                return
            over = place.iterations >= end
        if over:
            self._finish(r)
            return
        self.computing[r] = begin
        if begin.native:
            self.native_begun[r] = begin.version

    def _leaves_early(self, r, begin):
        early = dict(self.epochs.early if self.epochs is not None else ())
        if not begin.native and not self.own[r] and self.place[r].iterations >= early.get(r, math.inf):
            self.at_barrier.add(r)
        return r in self.at_barrier

    def _finish(self, r):
        if self.epochs is not None and self.epochs.early:
            self.at_barrier.add(r)
            self._do(r, self._member(r).pause(self.place[r].iterations, "barrier"))
        else:
            self._do(r, self._member(r).done())

    def _resumed(self, r, resume):
        place = self.place[r]
        if r in self.at_barrier:
            self._do(r, self._member(r).done())
            return
        self.ended_rounds += resume.native and self.applied[r][-1][1] != "native"
        self.met[r][place.epoch] = resume.version
        place.epoch += 1
        place.progress = float(place.iterations)
        if place.epoch == self.epochs.count:
            self._finish(r)
        else:
            self._goes_on(r, Begin(resume.version, resume.native))

    def _pulled(self, r):
        holder = self.members[self.pulls.pop(r)[0]]
        self.has_pulled.add(r)
        self.at_barrier.discard(r)
        self.place[r] = replace(self.place[holder.rank])
        self.own[r] = 0
        log = [e.close for k, e in sorted(holder._log.entries.items()) if k >= holder.version and e.held]
        self.applied[r] = list(self.applied[holder.rank])
        self.counted = []
        (self.void.add if holder.rank in self.void else self.void.discard)(r)
        self._do(r, self._member(r).pulled(holder.version, log, holder.meetings, holder.local))

    def _applied(self, r, close):
        assert len({g.steps > 0 for g in close.gradients}) < 2, "gradients and states in one round"
        if close.steps:
            assert {g.version for g in close.gradients} == {close.round}, "a mean of states of several versions"
            assert sum(close.weights) == pytest.approx(1.0), "no mean of states"
            self.own[r] = 0
        assert not self.own[r] or not close.gradients, "a gradient is applied where steps of its own are"
        self.place[r].progress += close.steps or sum(close.weights)
