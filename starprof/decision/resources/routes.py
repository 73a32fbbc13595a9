"""Who sends through whom, and how fast: a tree and paced pushes together, as orders to each worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starprof.decision.resources.amounts import LIMIT, NOTHING, Amount
from starprof.decision.resources.pacing import Pacing, Sender, pace
from starprof.decision.resources.tree import Tree, TreeCosts, TreeWorker, communication_tree


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """What is known of a worker.

    Attributes:
        rank: of it.
        node: that it is on.
        compute_s: of an iteration, until its gradient is there.
        push_bytes: of its gradient, as it is sent.
    """

    rank: int
    node: str
    compute_s: float
    push_bytes: float


@dataclass(frozen=True, slots=True)
class Route:
    """An order to a worker.

    Attributes:
        parent: that it hands its gradients to; None: it sends them itself.
        children: that hand theirs to it.
        bytes_per_s: that it pushes at; None: as fast as possible.
    """

    parent: int | None = None
    children: tuple[int, ...] = ()
    bytes_per_s: float | None = None


@dataclass(frozen=True)
class Routes:
    """Orders to all workers.

    Attributes:
        orders: by rank.
        refused: why something that was wanted is not done; "" if all is.
        steps: how they were found.
    """

    orders: Mapping[int, Route]
    refused: str
    steps: tuple[str, ...]


def routes(
    workers: Sequence[WorkerUse],
    costs: TreeCosts,
    server: Amount,
    nodes: Mapping[str, Amount],
    *,
    used: Amount = NOTHING,
    busy: Mapping[str, Amount] | None = None,
    limit: float = LIMIT,
    paced: bool = True,
) -> Routes:
    """Keep the server below its limit with a tree, and the nodes' interfaces with paced pushes.

    Args:
        workers: all of the job.
        costs: what sending and adding take.
        server: capacity of the server's node.
        nodes: capacity of the workers' nodes.
        used: of the server's node, by everything else.
        busy: of the workers' nodes, the same.
        limit: share of a capacity that may be used.
        paced: whether pushes are to be paced at all.
    """
    tree = communication_tree(
        [TreeWorker(str(worker.rank), worker.node, worker.compute_s) for worker in workers],
        costs,
        server,
        used=used,
        limit=limit,
    )
    parents = {int(child): int(parent) for child, parent in tree.parents.items()}
    steps, refused = list(tree.steps), [tree.refused] if tree.refused else []
    rates: dict[int, float] = {}
    if paced:
        for node in dict.fromkeys(worker.node for worker in workers):
            own = [worker for worker in workers if worker.node == node and worker.rank not in parents]
            found = _rates(own, workers, tree, nodes[node], (busy or {}).get(node, NOTHING), limit)
            rates.update({int(rank): rate for rank, rate in found.bytes_per_s.items()})
            steps += [f"{node}: {step}" for step in found.steps]
            refused += [f"{node}: {found.refused}"] if found.refused else []
    children: dict[int, list[int]] = {}
    for child, parent in sorted(parents.items()):
        children.setdefault(parent, []).append(child)
    orders = {
        worker.rank: Route(parents.get(worker.rank), tuple(children.get(worker.rank, ())), rates.get(worker.rank))
        for worker in workers
    }
    return Routes(orders, "; ".join(refused), tuple(steps))


def _rates(
    own: Sequence[WorkerUse],
    workers: Sequence[WorkerUse],
    tree: Tree,
    capacity: Amount,
    busy: Amount,
    limit: float,
) -> Pacing:
    """Rates of the workers of one node that send: just in time for the slowest of all."""
    done = {worker.rank: tree.done_s.get(str(worker.rank), worker.compute_s) for worker in workers}
    sending_s = {worker.rank: worker.push_bytes / capacity.bytes_per_s for worker in workers}
    last_s = max(done[worker.rank] + sending_s[worker.rank] for worker in workers)
    senders = [Sender(str(worker.rank), worker.push_bytes, done[worker.rank], last_s) for worker in own]
    return pace(senders, capacity, busy, limit)
