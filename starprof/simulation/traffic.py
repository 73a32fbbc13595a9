"""How gradients and parameters travel in simulated time, over queues that all jobs of a cluster share.

A transfer takes its place in the queues of all interfaces and links that it goes over at once, and is through when the
slowest of them is: data flow, they are not stored and forwarded.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from starprof.simulation.clock import Clock
from starprof.simulation.queues import Queue
from starprof.simulation.setting import AllReduce, Cluster, Exchange, Free, ParameterServer

PIECES = 8
"""In which a paced push is sent: what others send goes between them."""

Then = Callable[[int], None]
"""What is to happen with the worker when its transfer is through."""


class Network:
    """The queues of a cluster: every node's processor and interface, and the shared links."""

    def __init__(self, cluster: Cluster) -> None:
        """All idle."""
        self.cpu = {node.name: Queue(f"{node.name} cpu", node.cores) for node in cluster.nodes}
        self.out = {node.name: Queue(f"{node.name} nic out", node.nic_bytes_per_s) for node in cluster.nodes}
        self.into = {node.name: Queue(f"{node.name} nic in", node.nic_bytes_per_s) for node in cluster.nodes}
        self.links = [(link.nodes, Queue(link.name, link.bytes_per_s)) for link in cluster.links]
        self._paths: dict[tuple[str, str], list[Queue]] = {}

    def queues(self) -> list[Queue]:
        """All of them."""
        return [*self.cpu.values(), *self.out.values(), *self.into.values(), *(queue for _, queue in self.links)]

    def path(self, source: str, target: str) -> list[Queue]:
        """What a transfer between two nodes goes over; nothing within one node."""
        key = (source, target)
        if key not in self._paths:
            ends = [self.out.get(source), self.into.get(target)] if source != target else []
            between = [queue for nodes, queue in self.links if (source in nodes) is not (target in nodes)]
            self._paths[key] = [queue for queue in [*ends, *between] if queue is not None]
        return self._paths[key]

    def send(self, now_s: float, source: str, target: str, size: float) -> float:
        """When so many bytes will be there."""
        return max((queue.serve(now_s, size) for queue in self.path(source, target)), default=now_s)


class Traffic(ABC):
    """One job's exchange at work.

    Attributes:
        pushes: a gradient takes time to get to where it is handed in.
        cpu_s: work of servers so far, by node.
        bytes: through the interfaces of each node so far, in both directions together.
    """

    pushes = False

    def __init__(self, clock: Clock, network: Network, node: Mapping[int, str]) -> None:
        """Of workers on these nodes, which may become others."""
        self.clock = clock
        self.network = network
        self.node = node
        self.cpu_s: dict[str, float] = defaultdict(float)
        self.bytes: dict[str, float] = defaultdict(float)

    def send(self, now_s: float, source: str, target: str, size: float) -> float:
        """When so many bytes will be there."""
        if source != target:
            self.bytes[source] += size
            self.bytes[target] += size
        return self.network.send(now_s, source, target, size)

    def push(self, worker: int, then: Then) -> None:
        """A gradient goes to where it is handed in."""
        then(worker)

    def left(self, worker: int) -> None:  # noqa: B027 - most keep nothing of it
        """A worker is gone."""

    def update(self, contributors: Sequence[int], members: Iterable[int], ring: Sequence[int]) -> float:  # noqa: ARG002
        """An update of the parameters of these members begins now; when it is made.

        `ring`: who reduces, where others have handed their gradients to those before.
        """
        return self.clock.now_s

    def average(self, members: Sequence[int]) -> float:
        """These members' parameters are averaged from now on; when they have been."""
        return self.update(members, members, members)

    def group_step(self, members: Sequence[int]) -> float:  # noqa: ARG002
        """A group reduces its gradients, on its own; when it has."""
        return self.clock.now_s

    @abstractmethod
    def pull(self, worker: int, ready_s: float, then: Then) -> None:
        """The newest parameters, which are made at `ready_s`, go to a worker."""


class NoTraffic(Traffic):
    """Nothing takes any time."""

    def pull(self, worker: int, ready_s: float, then: Then) -> None:
        """See `Traffic`."""
        if ready_s <= self.clock.now_s:
            then(worker)
        else:
            self.clock.at(ready_s, then, worker)


class ToServers(Traffic):
    """Parameter servers, each with a part of everything."""

    pushes = True

    def __init__(self, clock: Clock, network: Network, node: Mapping[int, str], exchange: ParameterServer) -> None:
        """See `ParameterServer`."""
        super().__init__(clock, network, node)
        shards = len(exchange.nodes)
        self.nodes = list(exchange.nodes)
        self.size = exchange.model_bytes / shards
        self.push_s, self.apply_s, self.pull_s = (
            work / shards for work in (exchange.push_cpu_s, exchange.apply_cpu_s, exchange.pull_cpu_s)
        )
        self.latency_s = exchange.latency_s
        # A server's own threads, inside of the processor that it shares with others on its node.
        self.threads = [Queue(f"{node} server {shard}", exchange.threads) for shard, node in enumerate(self.nodes)]
        self._parents: dict[int, int] = {}
        self._held: dict[int, dict[int, Then]] = defaultdict(dict)
        self._pace: dict[int, float] = {}
        self._computing: set[int] = set()  # or on their way to it

    def _work(self, shard: int, work_s: float) -> float:
        now_s = self.clock.now_s
        self.cpu_s[self.nodes[shard]] += work_s
        own_s = self.threads[shard].serve(now_s, work_s)
        cpu = self.network.cpu.get(self.nodes[shard])
        return own_s if cpu is None else max(own_s, cpu.serve(now_s, work_s))

    def move(self, shard: int, node: str, size: float) -> None:
        """Send a shard to another node; the old one serves it until it is there."""

        def there(_: object) -> None:
            self.nodes[shard] = node

        self.clock.at(self.send(self.clock.now_s, self.nodes[shard], node, size) + self.latency_s, there, None)

    def _when_all(self, then: Then) -> Then:
        """Goes on when all shards are through."""
        left = [len(self.nodes)]

        def through(worker: int) -> None:
            left[0] -= 1
            if left[0] == 0:
                then(worker)

        return through

    def group(self, parents: Mapping[int, int]) -> None:
        """Who sends through whom from now on; what was waiting for others goes by itself."""
        held, self._held = self._held, defaultdict(dict)
        self._parents = dict(parents)
        for waiting in held.values():
            for worker, then in waiting.items():
                self._push(worker, then)

    def pace(self, worker: int, bytes_per_s: float) -> None:
        """A worker pushes no faster from now on."""
        self._pace[worker] = bytes_per_s

    def left(self, worker: int) -> None:
        """See `Traffic`: nobody waits for it, or sends through it, any more."""
        self._computing.discard(worker)
        self._held[self._parents.get(worker, worker)].pop(worker, None)
        if worker in self._parents or worker in self._parents.values():
            self.group({c: p for c, p in self._parents.items() if worker not in (c, p)})

    def push(self, worker: int, then: Then) -> None:
        """See `Traffic`: over the network to every shard, then through its processor; of a group when all are there."""
        self._computing.discard(worker)
        sender = self._parents.get(worker, worker)
        group = [sender, *(child for child, parent in self._parents.items() if parent == sender)]
        if len(group) == 1:
            self._push(worker, then)
            return
        waiting = self._held[sender]
        waiting[worker] = then
        if any(member in self._computing for member in group):
            return  # those who compute will come; those who wait for an update will not before it is made
        del self._held[sender]

        def for_all(_: int) -> None:
            for member, its in waiting.items():
                its(member)

        self._push(sender, for_all)

    def _push(self, worker: int, then: Then) -> None:
        through = self._when_all(then)

        def there(shard: int) -> None:
            self.clock.at(self._work(shard, self.push_s), through, worker)

        rate = self._pace.get(worker, math.inf)
        pieces = 1 if rate == math.inf else PIECES
        apart_s = self.size * len(self.nodes) / pieces / rate

        def sends(of: tuple[int, int]) -> None:
            shard, left = of
            node = self.nodes[shard]
            there_s = self.send(self.clock.now_s, self.node[worker], node, self.size / pieces) + self.latency_s
            if left:
                self.clock.at(self.clock.now_s + apart_s, sends, (shard, left - 1))
            else:
                self.clock.at(there_s, there, shard)

        for shard in range(len(self.nodes)):
            sends((shard, pieces - 1))

    def update(self, contributors: Sequence[int], members: Iterable[int], ring: Sequence[int]) -> float:  # noqa: ARG002
        """See `Traffic`: the step of the optimizer on every shard."""
        return max(self._work(shard, self.apply_s) for shard in range(len(self.nodes)))

    def average(self, members: Sequence[int]) -> float:
        """See `Traffic`: all states come in one after the other, the mean is made, and goes out when it is pulled."""
        done_s = self.clock.now_s
        for shard, node in enumerate(self.nodes):
            for worker in members:
                done_s = max(done_s, self.send(self.clock.now_s, self.node[worker], node, self.size))
                done_s = max(done_s, self._work(shard, self.push_s))
        return max(done_s + self.latency_s, self.update(members, members, members))

    def pull(self, worker: int, ready_s: float, then: Then) -> None:
        """See `Traffic`: through every shard's processor, then over the network."""
        self._computing.add(worker)
        through = self._when_all(then)

        def prepared(shard: int) -> None:
            node = self.nodes[shard]
            there_s = self.send(self.clock.now_s, node, self.node[worker], self.size) + self.latency_s
            self.clock.at(there_s, through, worker)

        def asked(shard: int) -> None:
            self.clock.at(self._work(shard, self.pull_s), prepared, shard)

        for shard in range(len(self.nodes)):
            self.clock.at(ready_s, asked, shard)


class InRings(Traffic):
    """All-reduce among the contributors of each update, one update after the other."""

    def __init__(self, clock: Clock, network: Network, node: Mapping[int, str], exchange: AllReduce) -> None:
        """See `AllReduce`."""
        super().__init__(clock, network, node)
        self.size = exchange.model_bytes
        self.latency_s = exchange.latency_s
        self.done_s = 0.0
        self.has_all_s: dict[int, float] = {}

    def update(self, contributors: Sequence[int], members: Iterable[int], ring: Sequence[int]) -> float:
        """See `Traffic`: children's gradients to their parents first, then the ring, then the result to the others."""
        inside = set(ring)
        children = [worker for worker in contributors if worker not in inside]
        handed_s = [
            self.send(self.clock.now_s, self.node[child], self.node[ring[place % len(ring)]], self.size)
            for place, child in enumerate(children)
        ]
        done_s = self._reduce(max([self.clock.now_s, *handed_s]), ring)
        for worker in members:
            first = self.node[ring[0]]
            self.has_all_s[worker] = (
                done_s if worker in inside else self.send(done_s, first, self.node[worker], self.size)
            )
        self.done_s = max(self.done_s, done_s)
        return done_s

    def _reduce(self, ready_s: float, ring: Sequence[int]) -> float:
        """A ring over the members' nodes: all of them move at the pace of the slowest."""
        nodes = list(dict.fromkeys(self.node[worker] for worker in ring))
        if len(nodes) < 2:
            return ready_s
        queues = {
            id(queue): queue
            for place, node in enumerate(nodes)
            for queue in self.network.path(node, nodes[(place + 1) % len(nodes)])
        }.values()
        share = 2 * (len(nodes) - 1) / len(nodes) * self.size
        for node in nodes:
            self.bytes[node] += 2 * share
        busy_s = [share / queue.capacity for queue in queues]
        start_s = max([ready_s, *(queue.free_s for queue in queues)])
        done_s = start_s + max(busy_s, default=0.0) + 2 * (len(nodes) - 1) * self.latency_s
        for queue, taken_s in zip(queues, busy_s, strict=True):
            queue.hold(done_s, taken_s)
        return done_s

    def group_step(self, members: Sequence[int]) -> float:
        """See `Traffic`."""
        return self._reduce(self.clock.now_s, members)

    def pull(self, worker: int, ready_s: float, then: Then) -> None:
        """See `Traffic`: a worker goes on when it has all updates."""
        there_s = max(ready_s, self.has_all_s.get(worker, 0.0))
        if there_s <= self.clock.now_s:
            then(worker)
        else:
            self.clock.at(there_s, then, worker)


def traffic_of(exchange: Exchange, clock: Clock, network: Network, node: Mapping[int, str]) -> Traffic:
    """The exchange at work."""
    match exchange:
        case Free():
            return NoTraffic(clock, network, node)
        case ParameterServer():
            return ToServers(clock, network, node, exchange)
        case AllReduce():
            return InRings(clock, network, node, exchange)
