"""Workers that compute for as long as they are told, driven by a policy; what must never happen is checked."""

import heapq
from dataclasses import dataclass, field

from starprof.sync.policies import Arrived, Gradient, Joined, Left, Predicted, Scored, Update, Woken


@dataclass
class Played:
    """What happened, gradient by gradient."""

    updates: list[Update] = field(default_factory=list)
    update_times_s: list[float] = field(default_factory=list)
    local: list[Gradient] = field(default_factory=list)
    averagings: list[tuple[int, ...]] = field(default_factory=list)
    dropped: list[Gradient] = field(default_factory=list)
    lost: list[Gradient] = field(default_factory=list)
    handed_in: list[Gradient] = field(default_factory=list)
    events: list = field(default_factory=list)
    decisions: list = field(default_factory=list)
    end_s: float = 0.0

    @property
    def used(self):
        return [g for update in self.updates for g in update.gradients] + self.local


def play(policy, duration_s, gradients, changes=(), score=lambda g: 1.0):
    """Let the workers compute until `gradients` have been handed in.

    duration_s(worker, number) says how long a gradient takes. `changes` are (time, event) pairs of membership and
    prediction. Fails when nobody computes any more.
    """
    out = Played()
    queue, order = [], 0
    version, number, computing, sizes = {}, {}, set(), {}

    def push(at_s, kind, what):
        nonlocal order
        order += 1
        heapq.heappush(queue, (at_s, order, kind, what))

    def start(worker, at_s):
        assert worker not in computing, "released twice"
        computing.add(worker)
        version[worker] = policy.version
        push(at_s + duration_s(worker, number.setdefault(worker, 0)), "gradient", worker)

    def tell(event):
        decision = policy.decide(event)
        out.events.append(event)
        out.decisions.append(decision)
        at_s = event.at_s
        for update in decision.updates:
            out.updates.append(update)
            out.update_times_s.append(at_s)
        out.local += decision.step_locally
        out.averagings += decision.average
        (out.lost if isinstance(event, Left) else out.dropped).extend(decision.dropped)
        sizes.update(decision.batch_sizes or {})
        for worker in decision.release:
            if worker in policy.members:
                start(worker, at_s)
        for gradient in decision.score:
            tell(Scored(gradient, score(gradient), at_s))
        if decision.wake_at_s is not None:
            push(decision.wake_at_s, "timer", None)

    for worker in policy.members:
        start(worker, 0.0)
    for at_s, event in changes:
        push(at_s, "change", event)
    while len(out.handed_in) < gradients:
        assert queue, "deadlock: everybody waits"
        at_s, _, kind, what = heapq.heappop(queue)
        out.end_s = at_s
        if kind == "timer":
            tell(Woken(at_s))
        elif kind == "change":
            if isinstance(what, Left):
                computing.discard(what.worker)
                queue[:] = [q for q in queue if q[2:] != ("gradient", what.worker)]
                heapq.heapify(queue)
            tell(what)
        else:
            computing.discard(what)
            gradient = Gradient(what, number[what], version[what], sizes.get(what, 1))
            number[what] += 1
            out.handed_in.append(gradient)
            tell(Arrived(gradient, at_s))
    return out


__all__ = ["Joined", "Left", "Played", "Predicted", "play"]
