"""Resources while a job runs, by the plans of `starprof.decision.resources`: prevention, and reallocation for a mode.

What nodes have, what each job uses there and how long its iterations take is measured; what a gradient takes of the
server, what a delay frees and how much a job suffers by one is calibrated once, as `starprof calibrate` does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

from scenarios import TYPICAL_S
from sharing import MAIN, NODE_CORES, SHARDS, SharedPlace

from starprof.decision.choice.situation import Resources
from starprof.decision.resources import (
    LIMIT,
    Amount,
    Host,
    Loans,
    Need,
    Neighbour,
    NodeUse,
    Room,
    Sender,
    ServerLoad,
    TreeCosts,
    TreeWorker,
    communication_tree,
    pace,
    reallocate,
    relieve,
    relocate,
)
from starprof.decision.resources import Worker as Placed
from starprof.simulation import (
    ClusterSeen,
    Delay,
    Group,
    JobSeen,
    MoveShard,
    MoveWorker,
    Order,
    Pace,
    ParameterServer,
)

RESTART_S = 5.0
"""That a worker is away when it changes its node."""
SLOTS = 2
"""Workers of ours that a node takes."""


@dataclass
class Desk:
    """Manages the cluster (`Manager`), and answers what a mode may use.

    Attributes:
        place: what is managed.
        prevents: shards and workers are moved off nodes that are too full, or what is sent there is grouped and paced.
        reallocates: jobs beside ours are delayed for what a mode needs.
        every_s: from one look to the next.
        moves: that were ordered.
        delays: likewise.
        refusals: that `reallocate` gave.
    """

    place: SharedPlace
    prevents: bool
    reallocates: bool
    every_s: float = 2.0
    moves: int = 0
    delays: int = 0
    refusals: list[str] = field(default_factory=list)
    _seen: ClusterSeen | None = None
    _loans: Loans = field(default_factory=Loans)
    _is_shaped: bool = False
    _barred: dict[str, str] = field(default_factory=dict)

    def __call__(self, seen: ClusterSeen) -> Sequence[Order]:
        """See `Manager`."""
        self._seen = seen
        self._barred.clear()
        ours = seen.jobs.get(MAIN)
        if ours is None or len(ours.own_s) < len(ours.nodes):
            return []
        orders: list[Order] = []
        if self.prevents:
            orders += self._relocated(seen, ours) or self._relieved(seen, ours) or self._shaped(seen, ours)
            self.moves += len(orders)
        if ours.mode == "ssgd" and self._loans.held:
            self._loans, changes, _ = self._loans.without(MAIN)
            orders += [Delay(change.job, change.node, change.delay_s) for change in changes]
        return [*orders, *self._asked()]

    # What the chooser asks.

    @property
    def barred(self) -> Mapping[str, str]:
        """Modes that were refused what they need."""
        return self._barred

    def resources(self) -> Resources | None:
        """What is free where the server is; with reallocation, what others could give too."""
        seen = self._seen
        if seen is None or MAIN not in seen.jobs:
            return None
        cost, nodes = self.place.exchange, set(seen.jobs[MAIN].shards)
        free = [self._capacity(node) - self._used_in_ssgd(seen, node) for node in nodes]
        if self.reallocates:
            free = [
                one + given
                for one, node in zip(free, nodes, strict=True)
                for given in [self._could_be_given(seen, node)]
            ]
        # Each node has its part of every gradient; the fullest one decides.
        return Resources(
            max(0.0, min(one.cores for one in free) * len(nodes)),
            max(0.0, min(one.bytes_per_s for one in free) * len(nodes)),
            cost.push_cpu_s + cost.apply_cpu_s + cost.pull_cpu_s,
            2.0 * cost.model_bytes,
        )

    def wants(self, mode: str, more_per_s: float, saves: float) -> str:
        """Make room for a mode that makes so many more gradients a second; why it is refused, or "".

        Args:
            mode: that is wanted.
            more_per_s: than synchronous steps.
            saves: share of our time.
        """
        seen = self._seen
        if seen is None or MAIN not in seen.jobs or more_per_s <= 0 or not self.reallocates:
            return ""
        cost, nodes = self.place.exchange, sorted(set(seen.jobs[MAIN].shards))
        whole = Amount(
            more_per_s * (cost.push_cpu_s + cost.apply_cpu_s + cost.pull_cpu_s), more_per_s * 2.0 * cost.model_bytes
        )
        plans = [
            reallocate(self._node_use(seen, node), Need(MAIN, whole.times(1.0 / len(nodes)), saves)) for node in nodes
        ]
        refused = next((plan.refused for plan in plans if plan.refused), "")
        if refused:
            self.refusals.append(refused)
            self._barred[mode] = refused
            return refused
        for plan in plans:
            self._loans, changes = self._loans.with_plan(plan)
            self._pending += [Delay(change.job, change.node, change.delay_s) for change in changes]
        return ""

    _pending: list[Order] = field(default_factory=list)

    def _asked(self) -> list[Order]:
        orders, self._pending = self._pending, []
        self.delays += len(orders)
        return orders

    # What is measured.

    def _capacity(self, node: str) -> Amount:
        found = next(one for one in self.place.cluster.nodes if one.name == node)
        return Amount(found.cores, 2.0 * found.nic_bytes_per_s)

    def _used(self, seen: ClusterSeen, node: str) -> Amount:
        whole = Amount()
        for job in seen.jobs.values():
            whole = whole + _of(job.compute, node, seen.period_s) + _of(job.serve, node, seen.period_s)
        return whole

    def _node_use(self, seen: ClusterSeen, node: str) -> NodeUse:
        beside = [self._neighbour(seen, job, node) for job in seen.jobs.values() if job.name != MAIN]
        used = self._used_in_ssgd(seen, node)
        return NodeUse(node, self._capacity(node), used, tuple(n for n in beside if n is not None))

    def _used_in_ssgd(self, seen: ClusterSeen, node: str) -> Amount:
        """What would be used if ours made synchronous steps: what modes need more is told against that."""
        ours, cost = seen.jobs[MAIN], self.place.exchange
        per_s = len(ours.nodes) / max(ours.own_s.values(), default=TYPICAL_S)
        part = sum(at == node for at in ours.shards) / SHARDS
        served = Amount(
            per_s * (cost.push_cpu_s + cost.pull_cpu_s + cost.apply_cpu_s / len(ours.nodes)),
            per_s * 2.0 * cost.model_bytes,
        )
        others = self._used(seen, node) - _of(ours.serve, node, seen.period_s)
        return (others + served.times(part)).positive()

    def _neighbour(self, seen: ClusterSeen, job: JobSeen, node: str) -> Neighbour | None:
        here = [worker for worker, at in job.nodes.items() if at == node and worker in job.own_s]
        if not here or not all(job.iterations[worker] for worker in here):
            return None
        iteration_s = seen.period_s / max(1.0, mean(job.iterations[worker] for worker in here))
        used = _of(job.compute, node, seen.period_s) + _of(job.serve, node, seen.period_s)
        # A worker that is delayed by a second in each iteration makes so much less of everything.
        freed = used.times(1.0 / (len(here) * iteration_s))
        slack = max(job.own_s.values()) - max(job.own_s[worker] for worker in here)
        return Neighbour(
            job.name,
            len(here),
            iteration_s,
            freed,
            slack_s=max(0.0, slack),
            step=int(job.progress),
            synchronous=job.mode == "ssgd",
        )

    def _could_be_given(self, seen: ClusterSeen, node: str) -> Amount:
        given = Amount()
        for n in self._node_use(seen, node).neighbours:
            given = given + n.all_free_per_s.times(n.slack_s + n.iteration_s)
        return given

    # Prevention.

    def _shaped(self, seen: ClusterSeen, ours: JobSeen) -> list[Order]:
        """What spares a node that the server can't leave: a tree of ours, and neighbours that send no faster than need.

        Both are ordered once: what is measured afterwards is with them.
        """
        node = ours.shards[0]
        if self._is_shaped or len(set(ours.shards)) > 1:
            return []
        orders = [*self._tree(seen, ours, node), *self._paced(seen, ours, node)]
        self._is_shaped = bool(orders)
        return orders

    def _tree(self, seen: ClusterSeen, ours: JobSeen, node: str) -> list[Order]:
        cost, per_s = self.place.exchange, mean(ours.iterations.values()) / seen.period_s
        each = Amount(cost.push_cpu_s * per_s, cost.model_bytes * per_s)
        rest = (self._used(seen, node) - each.times(len(ours.nodes))).positive()
        # Until a gradient is there: what the server's queue adds comes later, and is what the tree is against.
        compute_s = {w.index: w.source.typical_s + w.cpu_s / NODE_CORES for w in self.place.workers}
        workers = [TreeWorker(str(worker), at, compute_s[worker]) for worker, at in ours.nodes.items()]
        tree = communication_tree(workers, TreeCosts(each), self._capacity(node), used=rest)
        parents = {int(child): int(parent) for child, parent in tree.parents.items()}
        return [Group(MAIN, parents)] if parents else []

    def _paced(self, seen: ClusterSeen, ours: JobSeen, node: str) -> list[Order]:
        """Of one direction: that in which the neighbours push."""
        capacity = self._capacity(node).times(0.5)
        used = _of(ours.serve, node, seen.period_s).times(0.5)
        senders = [
            Sender(f"{job.name} {worker}", beside.exchange.model_bytes, 0.0, job.own_s[worker])
            for beside in self.place.neighbours
            if isinstance(beside.exchange, ParameterServer) and (job := seen.jobs[beside.name])
            for worker, at in job.nodes.items()
            if at == node and worker in job.own_s
        ]
        whole = self._used(seen, node).bytes_per_s / self._capacity(node).bytes_per_s
        if not senders or whole <= LIMIT:
            return []
        rates = pace(senders, Amount(bytes_per_s=capacity.bytes_per_s), Amount(bytes_per_s=used.bytes_per_s))
        named = {name.rpartition(" ")[::2]: rate for name, rate in rates.bytes_per_s.items()}
        return [Pace(job, int(worker), rate) for (job, worker), rate in named.items()]

    def _relocated(self, seen: ClusterSeen, ours: JobSeen) -> list[Order]:
        if self.place.fixed:
            return []
        rooms = [
            Room(
                node.name,
                self._capacity(node.name),
                (self._used(seen, node.name) - _of(ours.serve, node.name, seen.period_s)).positive()
                if node.name in ours.shards
                else self._used(seen, node.name),
            )
            for node in self.place.cluster.nodes
        ]
        cores = sum(use.cpu_s for use in ours.serve.values()) / seen.period_s
        size = self.place.exchange.model_bytes / SHARDS
        sizes = {str(shard): size for shard in range(SHARDS)}
        iteration_s = seen.period_s / max(1.0, mean(ours.iterations.values()))
        load = ServerLoad(sizes, len(ours.nodes), iteration_s, cores)
        plan = relocate(rooms, load, {str(at): node for at, node in enumerate(ours.shards)}, state_factor=2.0)
        return [MoveShard(MAIN, int(move.parameter), move.target, move.size_bytes) for move in plan.moves]

    def _relieved(self, seen: ClusterSeen, ours: JobSeen) -> list[Order]:
        quickest = min(ours.own_s.values())
        needs = {
            worker: Amount(
                self.place.workers[worker].cpu_s / quickest, 2.0 * self.place.exchange.model_bytes / quickest
            )
            for worker in ours.nodes
        }
        hosts = [
            Host(
                node.name,
                self._capacity(node.name),
                (self._used(seen, node.name) - _of(ours.compute, node.name, seen.period_s)).positive(),
                SLOTS,
            )
            for node in self.place.cluster.nodes
            if node.name not in ours.shards
        ]
        workers = [Placed(str(worker), need) for worker, need in needs.items()]
        plan = relieve(workers, hosts, {str(worker): node for worker, node in ours.nodes.items()})
        return [MoveWorker(MAIN, int(name), plan.node[name], RESTART_S) for name in plan.moved]


def _of(uses: Mapping[str, object], node: str, period_s: float) -> Amount:
    use = uses.get(node)
    return Amount() if use is None else Amount(use.cpu_s / period_s, use.bytes / period_s)
