"""Random schedules of the advisor's and the coordinator's faults, in virtual time: the real state machines of both.

Advisors are killed and start anew, two are at work at once, answers and questions are lost, late or come again, the
coordinator is replaced, an advisor's clock jumps, the operator freezes, overrules and gives back, faults of ranks come
and go, and losses diverge. `play` raises AssertionError where something happens that must not.
"""

from starprof.advisor import Advisor, Authority, Denied, Gain, Job, Limits, Loss, Move, Proposal, Ranks, StepTime, Tick
from starprof.advisor import machine as module
from starprof.control.coordinator.advised import MAX_LEASE_S, TAKEN_OVER_S, Advised, Word
from starprof.control.modes import NATIVE, Mode
from starprof.errors import StarprofError
from starprof.model.rundata import RankInfo

RANKS = tuple(RankInfo(rank=r, node=0, host="one", local_rank=r) for r in range(4))
LIMITS = Limits(hold_s=5.0, lease_s=5.0, actions_per_hour=4, canary_steps=5, expiry_s=20.0)
TICK_S = 0.5


class Coordinator:
    """The lease's keeper, and the mode: with the rules of `coordinator.service`."""

    def __init__(self, mode=NATIVE, by="user", frozen="", operator="", now_s=0.0):
        self.advised = Advised(self.want)
        self.mode, self.by, self.frozen = mode, by, frozen
        self.history = []
        self.now_s = now_s
        self.advised.taken_over(by, operator, mode, now_s)

    def want(self, mode, by, _reason):
        if self.frozen:
            raise StarprofError("frozen")
        if mode != self.mode:
            self.history.append((self.now_s, mode, by))
        self.mode, self.by = mode, by

    def tick(self, now_s):
        self.now_s = now_s
        if not self.frozen:
            self.advised.tick(now_s)

    def job(self):
        options = dict(self.mode.options)
        return Job(self.mode.name, options, self.by, self.frozen, self.advised.operator)


class Process:
    """An advisor; `skew_s` is how far its clock is from the world's."""

    def __init__(self, name, now_s):
        self.name, self.serial, self.skew_s = name, 0, 0.0
        self.advisor = Advisor(Authority.APPLY, LIMITS)
        self.move = None
        self.hear(Ranks(RANKS), now_s)

    def hear(self, event, now_s):
        for action in self.advisor.handle(event, now_s + self.skew_s):
            if isinstance(action, Move):
                self.move = action

    def word(self):
        self.serial += 1
        move, self.move = self.move, None
        mode = None if move is None else Mode(move.mode, dict(move.options)) if move.mode != "native" else NATIVE
        return Word(self.name, self.serial, LIMITS.lease_s, mode, "" if move is None else move.reason)


def proposal_of(ranks):
    """Stands for the chooser, which is slow and tested elsewhere."""
    gain = Gain(2.0, 1.8, 2.2)
    return Proposal("m-sync", {"m": 3}, ranks, ("one/3",), gain, 2.0, 0.75, 0.5, 2.0, 0.1, 0, 20, "one is late")


def play(rng, length_s=90.0):
    """One schedule."""
    world = _World(rng)
    while world.now_s < length_s:
        world.turn()
    world.end()


class _World:
    def __init__(self, rng):
        self.rng = rng
        self.now_s = 0.0
        self.coordinator = Coordinator()
        self.processes = [Process("p0", 0.0)]
        self.names = 0
        self.in_flight = []
        self.slow = False
        self.bad_loss = False
        self.step = 0
        self.silent_s = 0.0
        self.moves_by_holder = {}
        module_propose = module.propose
        self._restore = lambda: setattr(module, "propose", module_propose)

    def turn(self):
        rng = self.rng
        self.now_s += TICK_S
        self._trouble(rng.random())
        self.coordinator.tick(self.now_s)
        self._check()
        self._feed()
        for process in list(self.processes):
            self._talk(process)
        self._deliver_late()

    def _trouble(self, dice):
        rng, coordinator = self.rng, self.coordinator
        if dice < 0.02 and self.processes:
            self.processes.remove(rng.choice(self.processes))
        elif dice < 0.05 and len(self.processes) < 2:
            self.names += 1
            self.processes.append(Process(f"p{self.names}", self.now_s))
        elif dice < 0.07:
            self.slow = not self.slow
        elif dice < 0.08:
            coordinator.frozen = "" if coordinator.frozen else "user"
            if not coordinator.frozen:
                coordinator.advised.overruled("")
        elif dice < 0.09 and not coordinator.frozen:
            coordinator.want(rng.choice([NATIVE, Mode("lgc", {"k": 3})]), "user", "")
            coordinator.advised.overruled("user")
        elif dice < 0.10:
            coordinator.advised.overruled("")
        elif dice < 0.11:
            history = coordinator.history
            self.coordinator = Coordinator(
                coordinator.mode, coordinator.by, coordinator.frozen, coordinator.advised.operator, self.now_s
            )
            self.coordinator.history = history
            self.silent_s = 0.0  # whoever takes over gives the advisor TAKEN_OVER_S to come
        elif dice < 0.12 and self.processes:
            rng.choice(self.processes).skew_s += rng.choice([3600.0, 30.0])
        elif dice < 0.14:
            self.bad_loss = not self.bad_loss

    def _feed(self):
        native = self.coordinator.mode.native
        self.step += 1
        late_s = 0.4 if self.slow else 0.1
        took_s = max(late_s, 0.1) if native else 0.1
        for process in self.processes:
            if self.rng.random() < 0.1:
                continue  # it is slow, or the spool is
            for rank in range(4):
                own = late_s if rank == 3 else 0.1
                at_s = self.now_s + process.skew_s
                process.hear(StepTime(rank, self.step, own, max(0.0, took_s - own), took_s, at_s), self.now_s)
            process.hear(Loss(loss=9.0 if self.bad_loss and not native else 1.0), self.now_s)

    def _talk(self, process):
        rng = self.rng
        scene = process.advisor._scene
        scene._detector = None
        scene.late = lambda: (3,) if self.slow else ()
        scene.late_since_s = lambda _ranks: float("-inf")
        module.propose = lambda asked, _limits, barred: "barred" if "m-sync" in barred else proposal_of(asked.late)
        try:
            process.hear(Tick(), self.now_s)
        finally:
            self._restore()
        word = process.word()
        dice = rng.random()
        if dice < 0.05:
            if word.mode is not None:
                process.hear(Denied("the coordinator does not answer"), self.now_s)
            return
        if dice < 0.12:
            self.in_flight.append((self.now_s + rng.uniform(0.5, 10.0), word))  # slow, or it comes again
            if dice < 0.08:
                return
        denied = self._said(word)
        process.hear(self.coordinator.job(), self.now_s)
        if word.mode is not None and denied:
            process.hear(Denied(denied), self.now_s)

    def _deliver_late(self):
        due = [word for at_s, word in self.in_flight if at_s <= self.now_s]
        self.in_flight = [(at_s, word) for at_s, word in self.in_flight if at_s > self.now_s]
        for word in due:
            self._said(word)

    def _said(self, word):
        coordinator = self.coordinator
        frozen, operator = coordinator.frozen, coordinator.advised.operator
        before = coordinator.mode
        try:
            coordinator.advised.said(word, self.now_s)
        except StarprofError as error:
            assert coordinator.mode == before, "it was refused, and done all the same"
            return str(error)
        if word.mode is not None:
            assert not frozen, "a frozen job was touched"
            assert not operator, "the operator's job was touched"
            if word.mode != before and not word.mode.native:
                self.moves_by_holder[word.holder] = self.moves_by_holder.get(word.holder, 0) + 1
        self.silent_s = 0.0
        return ""

    def _check(self):
        coordinator = self.coordinator
        self.silent_s = 0.0 if self.processes else self.silent_s + TICK_S
        ours = coordinator.by == "advisor" and not coordinator.mode.native
        left_alone = coordinator.frozen or coordinator.advised.operator
        longest_s = max(LIMITS.lease_s, TAKEN_OVER_S) + 10.0 + TICK_S  # and what was still on its way
        assert longest_s < MAX_LEASE_S
        if ours and not left_alone:
            assert self.silent_s <= longest_s + TICK_S, "an advisor is gone, and the job still where it was moved"
        assert all(count <= LIMITS.actions_per_hour + 1 for count in self.moves_by_holder.values())

    def end(self):
        """All advisors die, the operator lets go: the job must come home."""
        self.processes, self.in_flight = [], []
        self.coordinator.frozen = ""
        self.coordinator.advised.overruled("")
        mine = self.coordinator.by == "advisor"
        until_s = self.now_s + TAKEN_OVER_S + LIMITS.lease_s + 1.0
        while self.now_s < until_s:
            self.now_s += TICK_S
            self.coordinator.tick(self.now_s)
        if mine and self.coordinator.by != "user":
            assert self.coordinator.mode.native or not self.coordinator.advised._moved
