"""Where a mode's need of a node comes from: grant, harvest, deprive, or refuse (arXiv 2512.09685).

A mode such as asynchronous SGD needs more processor time and bandwidth on a node than synchronous SGD did. In this
order:

1. Grant: what is free on the node (capacity minus use).
2. Harvest: workers of other synchronous jobs may be delayed up to their own job's slowest worker, which costs that
   job nothing. A worker delayed by `slack_s` in every iteration frees `slack_s * freed_per_s`.
3. Deprive: the other jobs give up the rest. Job j frees the share `weight_j = (1 / sensitivity_j) (1 + step_j /
   10,000)` of the sum of all weights, by delaying each of its `w_j` workers here by `share_j * need / (w_j *
   freed_per_s)`.
4. Refuse: what would be lost by staying with synchronous SGD is no more than what others would lose.

Corrections of our own, which the source does not have: the weights of step 3 add up to 1 with the factor for late
stages inside (as a factor behind it, jobs would free more than is needed); no job is delayed beyond its bound, and
what it can't give the others give; delays are compared in step 4 as shares of time, since a second in an iteration of
one second is not a second in one of ten. The proportional rule is fair, not cheapest: the least that any sharing
could cost is told beside.

What step 2 frees it frees at other times, not in the mean: a worker that waits for its job's slowest anyway does as
much in each iteration when it hands in later. In simulation (`benchmarks/star run --shared`) it changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from starprof.decision.resources.amounts import NOTHING, TINY, Amount, share_words, time_words

LATE_STAGE_STEPS = 10_000
SLACK_USED = 0.9
"""Share of a worker's slack that is harvested: the slowest worker of its job is not as slow in every iteration."""
MOST_DELAYED = 1.0
"""A job's iteration is made longer by at most this share of itself."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another job's part of a node.

    Attributes:
        job: its name.
        workers: of it on this node.
        iteration_s: how long one of its iterations takes.
        slack_s: how much earlier than its job's slowest worker these workers are done, in every iteration.
        freed_per_s: what one worker frees for each second by which each of its iterations is delayed; measured.
        sensitivity: seconds by which an iteration of its job gets longer for each second of such a delay beyond the
            slack; measured, above 0.
        step: updates that its training has made.
        synchronous: whether its workers wait for each other; others have no slack.
    """

    job: str
    workers: int
    iteration_s: float
    freed_per_s: Amount
    slack_s: float = 0.0
    sensitivity: float = 1.0
    step: int = 0
    synchronous: bool = True

    def __post_init__(self) -> None:
        ranges = {
            "workers": self.workers >= 1,
            "iteration_s": 0.0 < self.iteration_s < math.inf,
            "slack_s": 0.0 <= self.slack_s < math.inf,
            "sensitivity": 0.0 < self.sensitivity < math.inf,
            "step": self.step >= 0,
            "freed_per_s": self.freed_per_s.cores >= 0.0 and self.freed_per_s.bytes_per_s >= 0.0,
        }
        wrong = [name for name, holds in ranges.items() if not holds]
        if wrong:
            raise ValueError(f"job {self.job}: {', '.join(wrong)} out of range")

    @property
    def weight(self) -> float:
        """Of its share of what jobs give up."""
        return (1.0 + self.step / LATE_STAGE_STEPS) / self.sensitivity

    @property
    def all_free_per_s(self) -> Amount:
        """What all its workers here free together."""
        return self.freed_per_s.times(self.workers)


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node as it stands.

    Attributes:
        node: its name.
        capacity: what it has.
        used: what is used of it, by whomever.
        neighbours: jobs that may be asked to give something up.
    """

    node: str
    capacity: Amount
    used: Amount
    neighbours: tuple[Neighbour, ...] = ()

    @property
    def free(self) -> Amount:
        """What nobody uses."""
        return (self.capacity - self.used).positive()


@dataclass(frozen=True, slots=True)
class Need:
    """What a job asks of a node for another mode.

    Attributes:
        job: its name.
        extra: beyond what it uses in synchronous SGD.
        delay_share: what synchronous SGD costs it: share of its time that the other mode would save.
    """

    job: str
    extra: Amount
    delay_share: float


@dataclass(frozen=True, slots=True)
class Delay:
    """What a neighbour's workers are asked for.

    Attributes:
        job: whose they are.
        harvested_s: delay of each of its iterations that costs the job nothing.
        deprived_s: further delay.
        frees: what both free together.
        cost_share: by which share the job's iterations get longer.
    """

    job: str
    harvested_s: float
    deprived_s: float
    frees: Amount
    cost_share: float

    @property
    def delay_s(self) -> float:
        """By which each iteration of these workers is delayed."""
        return self.harvested_s + self.deprived_s


@dataclass(frozen=True, slots=True)
class Reallocation:
    """Where the need of a job comes from, or why it is refused.

    Attributes:
        node: which.
        need: what was asked for.
        granted: of what is free.
        harvested: by delays within slack.
        deprived: by delays that cost others time.
        delays: of each neighbour that gives something.
        cost_share: sum of what they lose, as shares of their time.
        least_cost_share: the least that any sharing of the same need would cost; NaN when nobody can cover it.
        refused: why it is not done; "" when it is.
        steps: the arithmetic of each step, in words.
    """

    node: str
    need: Need
    granted: Amount
    harvested: Amount
    deprived: Amount
    delays: tuple[Delay, ...]
    cost_share: float
    least_cost_share: float
    refused: str
    steps: tuple[str, ...]


def reallocate(node: NodeUse, need: Need, *, most_delayed: float = MOST_DELAYED) -> Reallocation:
    """Cover a need on a node: grant, harvest, deprive, or refuse.

    Args:
        node: as it stands.
        need: what is asked for.
        most_delayed: share by which no job's iterations get longer, whatever is asked for.
    """
    granted = need.extra.positive().at_most(node.free)
    missing = (need.extra - granted).positive()
    steps = [f"grant: {node.free.words} are free of {node.capacity.words}; {granted.words} of the {need.extra.words}"]
    others = [n for n in node.neighbours if n.job != need.job]
    part, harvested = _harvest(others, missing)
    left = _left(missing, harvested)
    if not missing.nothing:
        steps.append(_harvest_words(others, part, harvested, left))
    deprived = [0.0] * len(others)
    least = 0.0
    if not left.nothing:
        found = _deprived(others, left, most_delayed)
        if found is None:
            return _refused(node, need, steps, _uncovered(others, left, most_delayed))
        deprived, least = found, _least_cost(others, left, most_delayed)
        steps += [_deprive_words(n, d) for n, d in zip(others, deprived, strict=True) if d > 0.0]
    delays = tuple(
        d for n, s in zip(others, deprived, strict=True) if (d := _delay(n, _lent_s(n, part), s)).delay_s > 0.0
    )
    cost = sum(delay.cost_share for delay in delays)
    why = _cost_test(need, cost)
    steps.append(_cost_words(need, cost, least))
    if why:
        return _refused(node, need, steps, why, cost, least)
    return Reallocation(node.node, need, granted, harvested, left, delays, cost, least, "", tuple(steps))


def _lent_s(neighbour: Neighbour, part: float) -> float:
    """By how much a neighbour's workers are delayed when that part of what can be harvested is."""
    return part * SLACK_USED * neighbour.slack_s if neighbour.synchronous else 0.0


def _delay(neighbour: Neighbour, harvested_s: float, deprived_s: float) -> Delay:
    n, whole_s = neighbour, harvested_s + deprived_s
    cost = n.sensitivity * deprived_s / n.iteration_s
    return Delay(n.job, harvested_s, deprived_s, n.all_free_per_s.times(whole_s), cost)


def _left(missing: Amount, harvested: Amount) -> Amount:
    """What the harvest leaves open; rounding is nothing."""
    left = missing - harvested
    return Amount(
        left.cores if left.cores > TINY * missing.cores else 0.0,
        left.bytes_per_s if left.bytes_per_s > TINY * missing.bytes_per_s else 0.0,
    )


def _harvest(others: Sequence[Neighbour], missing: Amount) -> tuple[float, Amount]:
    """The part of everybody's slack that covers what is missing, all of it if that is not enough; and what it frees."""
    whole = NOTHING
    for n in others:
        whole = whole + n.all_free_per_s.times(_lent_s(n, 1.0))
    if missing.nothing or whole.nothing:
        return 0.0, NOTHING
    pairs = [(m, w) for m, w in zip(_both(missing), _both(whole), strict=True) if m > 0.0]
    if not any(w > 0.0 for _, w in pairs):
        return 0.0, NOTHING
    part = min(1.0, max(m / w if w > 0.0 else 1.0 for m, w in pairs))
    return part, whole.times(part).at_most(missing)


def _both(amount: Amount) -> tuple[float, float]:
    return amount.cores, amount.bytes_per_s


def _deprived(others: Sequence[Neighbour], left: Amount, most_delayed: float) -> list[float] | None:
    """Delay of each neighbour that frees what is left, by weights; None when all of them together can't."""
    delays = [0.0] * len(others)
    for freed, wanted in zip(_freed(others, left), _both(left), strict=True):
        if wanted <= 0.0:
            continue
        part = _by_weight(
            wanted,
            weights=[n.weight if f > 0.0 else 0.0 for n, f in zip(others, freed, strict=True)],
            most=[f * _most_s(n, most_delayed) for n, f in zip(others, freed, strict=True)],
        )
        if part is None:
            return None
        delays = [max(d, p / f if f > 0.0 else 0.0) for d, p, f in zip(delays, part, freed, strict=True)]
    return delays


def _freed(others: Sequence[Neighbour], left: Amount) -> tuple[list[float], list[float]]:
    """Cores, and bytes per second, that each neighbour frees per second of delay; next to nothing is nothing."""
    cores = [n.all_free_per_s.cores for n in others]
    rates = [n.all_free_per_s.bytes_per_s for n in others]
    return (
        [c if c > TINY * left.cores else 0.0 for c in cores],
        [r if r > TINY * left.bytes_per_s else 0.0 for r in rates],
    )


def _most_s(neighbour: Neighbour, most_delayed: float) -> float:
    """The longest delay that a neighbour is asked for, beyond its slack."""
    return most_delayed * neighbour.iteration_s / neighbour.sensitivity


def _by_weight(wanted: float, weights: Sequence[float], most: Sequence[float]) -> list[float] | None:
    """Divide an amount by weights, none above its bound: what one can't give, the others do."""
    if sum(m for w, m in zip(weights, most, strict=True) if w > 0.0) < wanted * (1.0 - TINY):
        return None
    given = [0.0] * len(weights)
    open_ = [at for at, weight in enumerate(weights) if weight > 0.0]
    left = wanted
    while open_:
        whole = sum(weights[at] for at in open_)
        full = [at for at in open_ if left * weights[at] / whole >= most[at]]
        if not full:
            for at in open_:
                given[at] = left * weights[at] / whole
            break
        for at in full:
            given[at] = most[at]
        left = max(left - sum(most[at] for at in full), 0.0)
        open_ = [at for at in open_ if at not in full]
    return given


def _least_cost(others: Sequence[Neighbour], left: Amount, most_delayed: float) -> float:
    """A lower bound of what the same need costs however it is shared: each resource by itself, the cheapest job first.

    Exact when only one of the two is missing.
    """
    bounds = []
    for freed, wanted in zip(_freed(others, left), _both(left), strict=True):
        offers = sorted(
            (n.sensitivity / n.iteration_s / f, f * _most_s(n, most_delayed))
            for n, f in zip(others, freed, strict=True)
            if f > 0.0
        )
        cost = 0.0
        for price, most in offers:
            if wanted <= 0.0:
                break  # of an endless price nothing costs nothing
            taken = min(most, wanted)
            cost += price * taken
            wanted -= taken
        bounds.append(cost)
    return max(bounds)


def _cost_test(need: Need, cost_share: float) -> str:
    """Why it is not worth it; "" when it is."""
    if need.delay_share <= cost_share:
        return (
            f"staying in synchronous SGD costs {need.job} {share_words(need.delay_share)} of its time, and what it "
            f"needs would cost the jobs beside it {share_words(cost_share)} of theirs"
        )
    return ""


def _refused(
    node: NodeUse, need: Need, steps: list[str], why: str, cost: float = 0.0, least: float = math.nan
) -> Reallocation:
    told = (*steps, f"refuse: {why}")
    return Reallocation(node.node, need, NOTHING, NOTHING, NOTHING, (), cost, least, why, told)


def _uncovered(others: Sequence[Neighbour], left: Amount, most_delayed: float) -> str:
    most = NOTHING
    for n in others:
        most = most + n.all_free_per_s.times(_most_s(n, most_delayed))
    bound = f"delayed by at most {share_words(most_delayed)} of an iteration"
    return f"{left.words} are still missing, and the {len(others)} jobs beside it, {bound}, free {most.words}"


def _harvest_words(others: Sequence[Neighbour], part: float, harvested: Amount, left: Amount) -> str:
    if part <= 0.0:
        return "harvest: no synchronous job beside it has slack that would free what is missing"
    lent = ", ".join(
        f"{n.job} {n.workers} x {time_words(_lent_s(n, part))} x {n.freed_per_s.words} per second"
        for n in others
        if _lent_s(n, part) > 0.0
    )
    taken = share_words(part * SLACK_USED)
    return f"harvest: {taken} of the slack frees {harvested.words} ({lent}); {left.words} still missing"


def _deprive_words(neighbour: Neighbour, delay_s: float) -> str:
    n = neighbour
    cost = share_words(n.sensitivity * delay_s / n.iteration_s)
    return (
        f"deprive: {n.job} (sensitivity {n.sensitivity:.3g}, step {n.step:,}, weight {n.weight:.3g}) delays "
        f"{n.workers} workers by {time_words(delay_s)} an iteration, which frees "
        f"{n.all_free_per_s.times(delay_s).words} and costs it {cost} of its time"
    )


def _cost_words(need: Need, cost: float, least: float) -> str:
    told = f"; any other sharing would cost at least {share_words(least)}" if cost > 0.0 else ""
    return f"cost: others lose {share_words(cost)} of their time, {need.job} wins {share_words(need.delay_share)}{told}"
