"""A job of ranks and their coordinator without sockets or tensors: every event that can happen is a choice.

The production state machines run here as they are. Results of reductions are names: which gradients went in, with
which weights. Whoever plays it picks one enabled event after the other; `check` says what must hold at any time, and
`check_end` what must hold when nothing can happen any more.
"""

import math
from dataclasses import dataclass, field, replace

from starprof.sync.policies import MODES, create
from starprof.sync.protocol.coordinator import Coordinator
from starprof.sync.protocol.member import (
    Apply,
    At,
    Begin,
    Deliver,
    Fetch,
    Member,
    PullState,
    Reduce,
    Resume,
    Send,
    SkipLimit,
)
from starprof.sync.protocol.messages import Close, Go


@dataclass
class Group:
    """One attempt at a reduction."""

    close: Close
    entered: set = field(default_factory=set)
    ended: set = field(default_factory=set)


@dataclass
class Place:
    """Where a rank's loop is; batches are skipped as the training goes on without it."""

    iterations: int = 0
    epoch: int = 0
    progress: float = 0.0


@dataclass(frozen=True)
class Epochs:
    """All ranks come together after every `iterations`; `last`: after the last epoch too."""

    count: int
    iterations: int
    last: bool = True
    skip_at_once: bool = True  # to where others have paused, else only as far as the training has gone on


class World:
    def __init__(
        self, ranks, updates, mode, options=None, *, faults=(), switches=(), epochs=None, predictions=(), tick_s=0.0
    ):
        """Training ends at version `updates`, or after some epochs.

        `faults`, each a kind and a rank or None for any, and `switches` may happen at any time, once each. Between two
        messages to the coordinator `tick_s` pass.
        """
        self.names = tuple(range(ranks))
        self.updates = updates
        self.epochs = epochs
        self.faultless = not faults
        self.place = {r: Place() for r in self.names}
        self.limit = dict.fromkeys(self.names)
        self.met = {r: {} for r in self.names}
        self.ended_rounds = 0
        self.has_pulled = set()
        self.counted, self.history, self.checked = [], [], {}
        self.dropped = {r: set() for r in self.names}
        self.modes = {mode, *(m for m, _ in switches)}
        self.mode, self.options = mode, options or {}
        self.faults = list(faults)
        self.switches = list(switches)
        self.predictions = list(predictions)
        self.tick_s, self.now_s = tick_s, 0.0
        self.members = {r: Member(r, self.names) for r in self.names}
        self.coordinator = Coordinator(self.names)
        self.alive = set(self.names)
        self.cut = set()
        self.silent = set()  # crashed, and the launcher has not said so yet
        self.to_rank = {r: [] for r in self.names}
        self.to_coordinator = {r: [] for r in self.names}
        self.groups = {}
        self.mail = []
        self.pulls = {}
        self.applied = {r: [] for r in self.names}
        self.computing = {}
        self.native_begun = dict.fromkeys(self.names, -1)
        self.void = set()
        for r in self.names:
            self._connect(r)
            self._do(r, self.members[r].boundary())
        self._wanted = self._maker(mode, self.options)
        self._say(self.coordinator.switch(self._wanted))

    @staticmethod
    def _maker(mode, options):
        return None if mode is None else lambda ranks, version: create(mode, ranks, options, version)

    # Choices

    def enabled(self):
        events = []
        for r in self.names:
            if r not in self.cut:
                if self.to_coordinator[r] and (r in self.alive or r in self.silent):
                    events.append(("to coordinator", r))
                if self.to_rank[r] and r in self.alive:
                    events.append(("to rank", r))
            if r in self.alive and r in self.computing and self._can_end(self.computing[r]):
                events.append(("compute", r))
            if r in self.pulls and r in self.alive and self.pulls[r][0] in self.alive:
                holder, version = self.pulls[r]
                if self.members[holder].version >= version:
                    events.append(("pull", r))
        for key in sorted(self.groups):
            group = self.groups[key]
            everybody = group.entered >= set(group.close.members)
            broken = any(
                m not in self.alive or (m not in group.entered and self._refuses(m, *key)) or m in group.ended
                for m in group.close.members
            )
            for r in sorted(group.entered - group.ended):
                if r in self.alive:
                    if everybody:
                        events.append(("reduced", key, r))
                    if broken and not (everybody and group.close.members and self.alive >= set(group.close.members)):
                        events.append(("failed", key, r))
        events += [("mail", i) for i, (to, _) in enumerate(self.mail) if to in self.alive]
        events += [("gone", r) for r in sorted(self.silent)]
        events += [("heal", r) for r in sorted(self.cut)]
        events += [("lease", r) for r in sorted(self.cut) if self._impatient(r)]
        events += [
            ("fault", i, rank)
            for i, (kind, named) in enumerate(self.faults)
            for rank in ([named] if named is not None else self.names if kind != "coordinator" else [0])
            if self._can(kind, rank)
        ]
        events += [("switch", 0)] if self.switches else []
        events += [("predict", 0)] if self.predictions else []
        if self.coordinator.wake_at_s is not None:
            events.append(("wake", 0))
        return events

    def _policy_drops(self):
        return any(mode is not None and MODES[mode].drops for mode in self.modes)

    def _can_end(self, begin):
        """A native step has a collective of all ranks in it."""
        return not begin.native or all(self.native_begun[o] >= begin.version for o in self.names)

    def _refuses(self, r, number, attempt):
        member = self.members[r]
        return attempt <= member._log.refused.get(number, -1) or r in self.void or number < member._log.held

    def _impatient(self, r):
        return self.coordinator.can_spare(r) or self.coordinator.preparing

    def _can(self, kind, r):
        if kind == "crash":
            # A crash in native steps ends the job: its collectives are the job's own.
            return r in self.alive and all(not self.members[o].native for o in self.alive) and len(self.alive) > 1
        if kind == "cut":
            return r in self.alive and r not in self.cut
        return kind == "coordinator"

    def happen(self, event):
        kind, what = event[0], event[1]
        if kind == "to coordinator":
            self.now_s += self.tick_s
            self._say(self.coordinator.told(self.to_coordinator[what].pop(0), self.now_s))
        elif kind == "to rank":
            message = self.to_rank[what].pop(0)
            if isinstance(message, Go) and not message.kept:
                assert self._policy_drops(), "a gradient is dropped in a mode that promises not to"
                self.dropped[what].add(message.number)
            self._do(what, self.members[what].told(message))
        elif kind == "compute":
            self._computed(what)
        elif kind == "reduced":
            self.groups[what].ended.add(event[2])
            self._do(event[2], self.members[event[2]].reduced(*what))
        elif kind == "failed":
            self.groups[what].ended.add(event[2])
            self._do(event[2], self.members[event[2]].reduction_failed(*what))
        elif kind == "mail":
            to, close = self.mail.pop(what)
            self._do(to, self.members[to].received(close))
        elif kind == "pull":
            self._pulled(what)
        elif kind == "gone":
            self.silent.discard(what)
            self.to_coordinator[what].clear()
            self._say(self.coordinator.gone(what))
        elif kind == "heal":
            self.cut.discard(what)
            self._connect(what)
        elif kind == "lease":
            if self.coordinator.can_spare(what):
                self.void.add(what)
            self._say(self.coordinator.lease_over(what))
        elif kind == "wake":
            self.now_s = max(self.now_s, self.coordinator.wake_at_s)
            self._say(self.coordinator.woken(self.now_s))
        elif kind == "predict":
            self._say(self.coordinator.predicted(self.predictions.pop(0)))
        elif kind == "switch":
            mode, options = self.switches.pop(0)
            self._wanted = self._maker(mode, options)
            self._say(self.coordinator.switch(self._wanted))
        else:
            self._fault(self.faults.pop(what)[0], event[2])

    def _fault(self, kind, r):
        if kind == "crash":
            self.alive.discard(r)
            self.silent.add(r)
            self.cut.discard(r)
            self.computing.pop(r, None)
            self.pulls.pop(r, None)
            self.mail = [m for m in self.mail if m[0] != r]
        elif kind == "cut":
            self.cut.add(r)
            self.to_rank[r].clear()
            self.to_coordinator[r].clear()
            self._say(self.coordinator.disconnected(r))
        else:
            epoch = self.coordinator.epoch + 1
            dead = [r for r in self.names if r not in self.alive]
            self.coordinator = Coordinator(self.names, epoch)
            for r in self.names:
                self.to_rank[r].clear()
                self.to_coordinator[r].clear()
            self._say(self.coordinator.switch(self._wanted))
            for r in dead:
                self.silent.add(r)
            for r in sorted(self.alive - self.cut):
                self._connect(r)

    # What follows from them

    def _connect(self, r):
        self.to_coordinator[r].append(self.members[r].hello())

    def _say(self, messages):
        for r, message in messages:
            if r in self.alive and r not in self.cut:
                self.to_rank[r].append(message)

    def _computed(self, r):
        begin = self.computing.pop(r)
        member, place = self.members[r], self.place[r]
        place.iterations += 1
        if begin.native:
            # A native step is an update of everybody's gradients.
            self.applied[r].append((begin.version, "native"))
            place.progress += 1.0
            self._do(r, member.native_done())
        else:
            self._do(r, member.gradient(iterations=place.iterations))

    def _goes_on(self, r, begin):
        """The training thread may compute; or it has come to the end of an epoch, or of everything."""
        place = self.place[r]
        if self.epochs is None:
            over = begin.version >= self.updates
        elif place.epoch == self.epochs.count:
            over = True  # the state that it has pulled is a finished rank's
        else:
            end = (place.epoch + 1) * self.epochs.iterations
            if not begin.native:
                limit = self.limit[r] if self.epochs.skip_at_once else None
                there = max(math.floor(place.progress + 1e-9), limit or 0)
                place.iterations = max(place.iterations, min(there, end))
            if place.iterations == end and (self.epochs.last or place.epoch + 1 < self.epochs.count):
                self._do(r, self.members[r].pause(end))
                return
            over = place.iterations >= end
        if over:
            self._do(r, self.members[r].done())
            return
        self.computing[r] = begin
        if begin.native:
            self.native_begun[r] = begin.version

    def _resumed(self, r, resume):
        place = self.place[r]
        self.ended_rounds += resume.native and self.applied[r][-1][1] != "native"
        self.met[r][place.epoch] = resume.version
        place.epoch += 1
        place.progress = float(place.iterations)
        if place.epoch == self.epochs.count:
            self._do(r, self.members[r].done())
        else:
            self._goes_on(r, Begin(resume.version, resume.native))

    def _pulled(self, r):
        holder = self.members[self.pulls.pop(r)[0]]
        self.has_pulled.add(r)
        self.place[r] = replace(self.place[holder.rank])
        log = [e.close for k, e in sorted(holder._log.entries.items()) if k >= holder.version and e.held]
        self.applied[r] = list(self.applied[holder.rank])
        self.counted = []
        self.void.discard(r)
        self._do(r, self.members[r].pulled(holder.version, log, holder.meetings))

    def _do(self, r, actions):
        for action in actions:
            match action:
                case Send(message):
                    if r not in self.cut:
                        self.to_coordinator[r].append(message)
                case Reduce(close):
                    key = (close.round, close.attempt)
                    self.groups.setdefault(key, Group(close)).entered.add(r)
                case Deliver(to, close):
                    self.mail.append((to, close))
                case Fetch(holder, number, _):
                    if holder in self.alive and (close := self.members[holder].can_deliver(number)) is not None:
                        self.mail.append((r, close))
                case Apply(close):
                    self.applied[r].append((close.round, close.gradients, close.weights))
                    self.place[r].progress += sum(close.weights)
                case Begin(version, _):
                    assert version == len(self.applied[r]), "begins on parameters that it does not have"
                    self._goes_on(r, action)
                case Resume(version, _):
                    assert version == len(self.applied[r]), "goes on from parameters that it does not have"
                    self._resumed(r, action)
                case SkipLimit(index):
                    self.limit[r] = index
                case PullState(holder, version):
                    self.computing.pop(r, None)
                    self.pulls[r] = (holder, version)

    # What must hold

    def check(self):
        """No two ranks whose state counts have applied different results as the same round."""
        counting = [r for r in self.alive if r not in self.void]
        if counting != self.counted:
            self.counted, self.history, self.checked = counting, [], dict.fromkeys(counting, 0)
        for r in counting:
            for number in range(self.checked[r], len(self.applied[r])):
                if number == len(self.history):
                    self.history.append(self.applied[r][number])
                there = (self.applied[r][number], self.history[number])
                assert there[0] == there[1], f"round {number} is not the same everywhere: {there}"
            self.checked[r] = len(self.applied[r])
            for epoch, version in self.met[r].items():
                versions = {self.met[o].get(epoch, version) for o in counting if o not in self.has_pulled}
                assert r in self.has_pulled or versions == {version}, f"a meeting ended at several versions: {versions}"

    def check_end(self):
        """Everybody who lives has finished, with the same history, in which no gradient counts twice."""
        self.check()
        let_in = [r for r in self.alive if not self.coordinator.ranks[r].lost]
        counting = [r for r in let_in if r not in self.void]
        if not counting:
            assert len(self.alive) < len(self.names)
            return  # whoever held the history is gone: the job starts again from its checkpoint
        if len(self.alive) < len(self.names) and any(self.members[r].native for r in counting):
            return  # a rank was lost on the way back to native steps: their own collectives end the job
        for r in counting:
            assert self.members[r].at is At.DONE, f"rank {r} stands still: {self.members[r].at}"
        for r in counting:
            used = [(g.worker, g.number) for entry in self.applied[r] if entry[1] != "native" for g in entry[1]]
            assert len(used) == len(set(used)), "a gradient counts twice"
            assert [entry[0] for entry in self.applied[r]] == list(range(len(self.applied[r])))
            if self.faultless and self.epochs is not None and self.epochs.last:
                told = {(g.worker, g.number) for g in self.members[r]._own.open}
                assert told == set(), "what became of a gradient is not known"
                kept = {number for worker, number in used if worker == r} | self.dropped[r]
                assert kept == set(range(self.members[r]._own.number)), "a gradient is lost"
