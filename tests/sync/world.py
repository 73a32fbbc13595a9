"""A job of ranks and their coordinator without sockets or tensors: every event that can happen is a choice.

The production state machines run here as they are. Results of reductions are names: which gradients went in, with
which weights. Whoever plays it picks one enabled event after the other; `check` says what must hold at any time, and
`check_end` what must hold when nothing can happen any more.
"""

from dataclasses import dataclass, field

from starprof.sync.policies import create
from starprof.sync.protocol.coordinator import Coordinator
from starprof.sync.protocol.member import Apply, At, Begin, Deliver, Fetch, Member, PullState, Reduce, Send
from starprof.sync.protocol.messages import Close


@dataclass
class Group:
    """One attempt at a reduction."""

    close: Close
    entered: set = field(default_factory=set)
    ended: set = field(default_factory=set)


class World:
    def __init__(self, ranks, updates, mode, options=None, *, faults=(), switches=()):
        """Training ends at version `updates`; `faults` and `switches` may happen at any time, once each."""
        self.names = tuple(range(ranks))
        self.updates = updates
        self.mode, self.options = mode, options or {}
        self.faults = list(faults)
        self.switches = list(switches)
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
        events += [("fault", i) for i, f in enumerate(self.faults) if self._can(f)]
        events += [("switch", 0)] if self.switches else []
        if self.coordinator.wake_at_s is not None:
            events.append(("wake", 0))
        return events

    def _can_end(self, begin):
        """A native step has a collective of all ranks in it."""
        return not begin.native or all(self.native_begun[o] >= begin.version for o in self.names)

    def _refuses(self, r, number, attempt):
        member = self.members[r]
        return attempt <= member._log.refused.get(number, -1) or r in self.void or number < member._log.held

    def _impatient(self, r):
        return self.coordinator.can_spare(r) or self.coordinator.preparing

    def _can(self, fault):
        kind, r = fault
        if kind == "crash":
            # A crash in native steps ends the job: its collectives are the job's own.
            return r in self.alive and all(not self.members[o].native for o in self.alive) and len(self.alive) > 1
        if kind == "cut":
            return r in self.alive and r not in self.cut
        return kind == "coordinator"

    def happen(self, event):
        kind, what = event[0], event[1]
        if kind == "to coordinator":
            self._say(self.coordinator.told(self.to_coordinator[what].pop(0)))
        elif kind == "to rank":
            self._do(what, self.members[what].told(self.to_rank[what].pop(0)))
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
            self._say(self.coordinator.woken(self.coordinator.wake_at_s))
        elif kind == "switch":
            mode, options = self.switches.pop(0)
            self._wanted = self._maker(mode, options)
            self._say(self.coordinator.switch(self._wanted))
        else:
            self._fault(*self.faults.pop(what))

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
        member = self.members[r]
        if begin.native:
            # A native step is an update of everybody's gradients.
            self.applied[r].append((begin.version, "native"))
            self._do(r, member.native_done())
        else:
            self._do(r, member.gradient())

    def _pulled(self, r):
        holder = self.members[self.pulls.pop(r)[0]]
        log = [e.close for k, e in sorted(holder._log.entries.items()) if k >= holder.version and e.held]
        self.applied[r] = list(self.applied[holder.rank])
        self.void.discard(r)
        self._do(r, self.members[r].pulled(holder.version, log))

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
                case Begin(version, native):
                    assert version == len(self.applied[r]), "begins on parameters that it does not have"
                    if version >= self.updates:
                        self._do(r, self.members[r].done())
                        continue
                    self.computing[r] = action
                    if native:
                        self.native_begun[r] = version
                case PullState(holder, version):
                    self.computing.pop(r, None)
                    self.pulls[r] = (holder, version)

    # What must hold

    def check(self):
        """No two ranks whose state counts have applied different results as the same round."""
        counting = [r for r in self.alive if r not in self.void]
        for number in range(max((len(self.applied[r]) for r in counting), default=0)):
            there = {repr(self.applied[r][number]) for r in counting if len(self.applied[r]) > number}
            assert len(there) <= 1, f"round {number} is not the same everywhere: {there}"

    def check_end(self):
        """Everybody who lives has finished, with the same history, in which no gradient counts twice."""
        self.check()
        counting = [r for r in self.alive if r not in self.void]
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
