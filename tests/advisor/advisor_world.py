"""A job in simulated time for the advisor's state machine: native steps, rounds, faults, and who moves the mode."""

import numpy as np

from starprof.advisor import Advisor, Authority, Job, Limits, Loss, Move, Note, Ranks, StepTime, Tick
from starprof.model.rundata import RankInfo

USUAL_S = 0.1
TRANSFER_S = 0.002


def infos(world, hosts=None):
    return tuple(
        RankInfo(rank=r, node=0 if hosts is None else r, host="one" if hosts is None else hosts[r], local_rank=r)
        for r in range(world)
    )


class World:
    """Advances in ticks; `slow(now_s)` tells by which factor each rank is slow."""

    def __init__(self, slow, *, world=4, seed=0, noise=0.05, authority=Authority.APPLY, limits=None, obey=True):
        self.world, self.slow, self.obey = world, slow, obey
        self.rng = np.random.default_rng(seed)
        self.noise = noise
        self.advisor = Advisor(authority, limits or Limits())
        self.job = Job()
        self.now_s = 0.0
        self.step = 0
        self.busy_until = [0.0] * world
        self.begun = [0.0] * world
        self.actions = []
        self.losses = None
        self.times = []
        self.native_at = 0.0
        self.say(Ranks(infos(world)))

    def say(self, event):
        for action in self.advisor.handle(event, self.now_s):
            self.actions.append((self.now_s, action))
            if isinstance(action, Move) and self.obey and not self.job.frozen and not self.job.operator:
                self.job = Job(action.mode, action.options, asked_by="advisor")
                self.busy_until = [self.now_s] * self.world

    @property
    def moves(self):
        return [(at, a) for at, a in self.actions if isinstance(a, Move)]

    def stages(self):
        return [a.stage for _, a in self.actions if isinstance(a, Note)]

    def run(self, until_s):
        while self.now_s < until_s:
            begun = self.now_s
            records = self._native() if self.job.mode == "native" else self._round()
            for record in records:
                self.say(record)
            self.say(self.job)
            if self.losses is not None:
                self.say(self.losses(self.now_s, self.job.mode))
            self.say(Tick())
            self.times.append((begun, self.now_s - begun, self.job.mode))

    def _own(self):
        return USUAL_S * self.slow(self.now_s) * self.rng.lognormal(0, self.noise, self.world)

    def _native(self):
        own = self._own()
        took = own.max() + TRANSFER_S
        self.now_s += took
        self.step += 1
        return [StepTime(r, self.step, own[r], took - own[r], took, self.now_s) for r in range(self.world)]

    def _round(self):
        """The first m contribute; who is late ends what it began, and passes over what it missed."""
        m = self.world - 1 if "m" not in self.job.options else self.job.options["m"]
        own = self._own()
        free = [r for r in range(self.world) if self.busy_until[r] <= self.now_s]
        ready = sorted((self.now_s + own[r] if r in free else self.busy_until[r], r) for r in range(self.world))
        end = ready[min(m, self.world) - 1][0] + TRANSFER_S
        records = []
        self.step += 1
        for at, r in ready:
            if r in free:
                self.begun[r], self.busy_until[r] = self.now_s, at
            if at <= end:
                dur = end - self.begun[r]
                mine = at - self.begun[r]
                records.append(StepTime(r, self.step, mine, dur - mine, dur, end))
                self.busy_until[r] = end
        self.now_s = end
        return records


def steady(*factors):
    return lambda _now_s: np.array(factors, dtype=float)


def between(rank, factor, begin_s, end_s, world=4):
    def slow(now_s):
        factors = np.ones(world)
        if begin_s <= now_s < end_s:
            factors[rank] = factor
        return factors

    return slow


__all__ = ["Loss", "World", "between", "infos", "steady"]
