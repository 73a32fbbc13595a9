"""A job of ranks and their coordinator without sockets or tensors: every event that can happen is a choice.

The production state machines run here as they are. Results of reductions are names: which gradients went in, with
which weights. Whoever plays it picks one enabled event after the other; `check` says what must hold at any time, and
`check_end` what must hold when nothing can happen any more.
"""

from dataclasses import dataclass, field

from world_checks import Checks
from world_choices import Choices
from world_loops import Loops, Place

from starprof.sync.policies import create
from starprof.sync.protocol.coordinator import Coordinator
from starprof.sync.protocol.member import (
    Apply,
    Begin,
    Deliver,
    Fetch,
    GiveUp,
    Member,
    PullState,
    Reduce,
    Resume,
    Send,
    SkipLimit,
)
from starprof.sync.protocol.messages import Close, Go
from starprof.sync.transfers import ENOUGH, Sent

SLOW_US, USUAL_US = 300_000, 1_000


@dataclass
class Group:
    """One attempt at a reduction."""

    close: Close
    entered: set = field(default_factory=set)
    ended: set = field(default_factory=set)


class World(Choices, Loops, Checks):
    def __init__(
        self,
        ranks,
        updates,
        mode,
        options=None,
        *,
        faults=(),
        switches=(),
        epochs=None,
        predictions=(),
        tick_s=0.0,
        lag=None,
        slow=(),
    ):
        """Training ends at version `updates`, or after some epochs.

        `faults`, each a kind and a rank or None for any, and `switches` may happen at any time, once each. Between two
        messages to the coordinator `tick_s` pass. `lag`: how far a rank may be behind. `slow`: ranks whose part in a
        reduction takes `SLOW_US`, which every coordinator has heard of often enough.
        """
        self.names = tuple(range(ranks))
        self.updates = updates
        self.epochs = epochs
        self.faultless = not faults
        self.place = {r: Place() for r in self.names}
        self.own = dict.fromkeys(self.names, 0)  # steps since the version, where ranks step on their own
        self.limit = dict.fromkeys(self.names)
        self.met = {r: {} for r in self.names}
        self.ended_rounds = 0
        self.given_up = set()
        self.at_barrier = set()
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
        self.lag = lag
        self.slow = set(slow)
        self.coordinator = self._coordinator(1)
        self.alive = set(self.names)
        self.cut = set()
        self.silent = set()  # crashed, and the launcher has not said so yet
        self.to_rank = {r: [] for r in self.names}
        self.to_coordinator = {r: [] for r in self.names}
        self.groups = {}
        self.torn = set()  # attempts at whose reduction a connection is lost: it fails for some of its ranks, or all
        self.mail = []
        self.pulls = {}
        self.applied = {r: [] for r in self.names}
        self.computing = {}
        self.native_begun = dict.fromkeys(self.names, -1)
        self.void = set()
        self.behind = set()
        for r in self.names:
            self._connect(r)
            self._do(r, self._member(r).boundary())
        self._wanted = self._maker(mode, self.options)
        self._say(self._chief().switch(self._wanted))

    def _coordinator(self, epoch):
        coordinator = Coordinator(self.names, epoch, self.lag)
        for _ in range(ENOUGH if self.slow else 0):
            for r in self.names:
                coordinator.transfers.told(r, self._sent(r), self.now_s)
        return coordinator

    def _sent(self, r):
        if not self.slow:
            return ()
        return (Sent((r - 1) % len(self.names), SLOW_US if r in self.slow else USUAL_US),)

    @staticmethod
    def _maker(mode, options):
        return None if mode is None else lambda ranks, version: create(mode, ranks, options, version)

    def _member(self, r):
        """A rank's member, to which something is about to happen."""
        return self.members[r]

    def _chief(self):
        """The coordinator, to which something is about to happen."""
        return self.coordinator

    def _renewed(self, coordinator):
        """Another coordinator."""
        self.coordinator = coordinator

    def happen(self, event):
        kind, what = event[0], event[1]
        if kind == "to coordinator":
            self.now_s += self.tick_s
            self._say(self._chief().told(self.to_coordinator[what].pop(0), self.now_s))
        elif kind == "to rank":
            message = self.to_rank[what].pop(0)
            if isinstance(message, Go) and not message.kept:
                assert self._policy_drops(), "a gradient is dropped in a mode that promises not to"
                self.dropped[what].add(message.number)
            self._do(what, self._member(what).told(message))
        elif kind == "compute":
            self._computed(what)
        elif kind == "reduced":
            self.groups[what].ended.add(event[2])
            self._do(event[2], self._member(event[2]).reduced(self.groups[what].close))
        elif kind == "failed":
            self.groups[what].ended.add(event[2])
            self._do(event[2], self._member(event[2]).reduction_failed(*what[:2]))
        elif kind == "mail":
            to, close = self.mail.pop(what)
            self._do(to, self._member(to).received(close))
        elif kind == "pull":
            self._pulled(what)
        elif kind == "gone":
            self.silent.discard(what)
            self.to_coordinator[what].clear()
            self._say(self._chief().gone(what))
        elif kind == "heal":
            self.cut.discard(what)
            self._connect(what)
        elif kind == "lease":
            if self.coordinator.can_spare(what):
                self.void.add(what)
            self._say(self._chief().lease_over(what))
        elif kind == "wake":
            self.now_s = max(self.now_s, self.coordinator.wake_at_s)
            self._say(self._chief().woken(self.now_s))
        elif kind == "predict":
            self._say(self._chief().predicted(self.predictions.pop(0)))
        elif kind == "switch":
            mode, options = self.switches.pop(0)
            self._wanted = self._maker(mode, options)
            self._say(self._chief().switch(self._wanted))
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
            self._say(self._chief().disconnected(r))
        elif kind == "tear":
            self.torn |= self._reducing(r)
        elif kind == "refuse":
            self._do(r, self._member(r).refuse("its loop"))
        else:
            epoch = self.coordinator.epoch + 1
            dead = [r for r in self.names if r not in self.alive]
            self._renewed(self._coordinator(epoch))
            for r in self.names:
                self.to_rank[r].clear()
                self.to_coordinator[r].clear()
            self._say(self._chief().switch(self._wanted))
            for r in dead:
                self.silent.add(r)
            for r in sorted(self.alive - self.cut):
                self._connect(r)

    # What follows from them

    def _connect(self, r):
        self.to_coordinator[r].append(self.members[r].hello())

    def _say(self, messages):
        behind = {r for r, known in self.coordinator.ranks.items() if known.behind}
        self.void |= behind - self.behind
        self.behind = behind
        if not self.coordinator._gathering:  # a new one may not have heard of a loss, and nobody else then
            self.void &= {r for r, known in self.coordinator.ranks.items() if known.lost}
        for r, message in messages:
            if r in self.alive and r not in self.cut:
                self.to_rank[r].append(message)

    def _do(self, r, actions):
        for action in actions:
            match action:
                case Send(message):
                    if r not in self.cut:
                        self.to_coordinator[r].append(message)
                case Reduce(close):
                    # With another rank's state it may reduce another round of that number.
                    key = (close.round, close.attempt, tuple((g.worker, g.number) for g in close.gradients))
                    self.groups.setdefault(key, Group(close)).entered.add(r)
                case Deliver(to, close):
                    self.mail.append((to, close))
                case Fetch(holder, number, _):
                    if holder in self.alive:
                        self._do(holder, self._member(holder).asked(r, number))
                case Apply(close):
                    self.applied[r].append((close.round, close.gradients, close.weights))
                    self._applied(r, close)
                case Begin(version, _):
                    assert version == len(self.applied[r]), "begins on parameters that it does not have"
                    self._goes_on(r, action)
                case Resume(version, _):
                    assert version == len(self.applied[r]), "goes on from parameters that it does not have"
                    self._resumed(r, action)
                case SkipLimit(index):
                    self.limit[r] = index
                case GiveUp():
                    self.given_up.add(r)
                case PullState(holder, version):
                    self.computing.pop(r, None)
                    self.pulls[r] = (holder, version)
