"""Where a simulated job's workers are, what they use there, and what they are told to wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from starprof.simulation.setting import Worker
from starprof.simulation.traffic import Network


class Places:
    """Of one job.

    Attributes:
        node: of each worker.
        cpu_s: used by the workers so far, by node.
    """

    def __init__(self, network: Network, workers: Iterable[Worker]) -> None:
        """Where they begin."""
        self._network = network
        self._work_s = {worker.index: worker.cpu_s for worker in workers}
        self.node = {worker.index: worker.node for worker in workers}
        self.cpu_s: dict[str, float] = defaultdict(float)
        self._delay_s: dict[str, float] = {}
        self._pause_s: dict[int, float] = {}
        self._held_up = False

    def scarce(self, worker: int) -> bool:
        """Whether it competes for its node's processor."""
        return self._work_s[worker] > 0 and self.node[worker] in self._network.cpu

    def computed(self, worker: int, now_s: float) -> float:
        """When an iteration's work for the node's processor is done."""
        node, work_s = self.node[worker], self._work_s[worker]
        self.cpu_s[node] += work_s
        return self._network.cpu[node].serve(now_s, work_s)

    def held_up_s(self, worker: int) -> float:
        """By which its iteration takes longer, as it was told to."""
        if not self._held_up:
            return 0.0
        return self._delay_s.get(self.node[worker], 0.0) + self._pause_s.pop(worker, 0.0)

    def delay(self, node: str, delay_s: float) -> None:
        """All that are on a node, from their next iteration on."""
        self._held_up = True
        self._delay_s[node] = delay_s

    def move(self, worker: int, node: str, pause_s: float) -> None:
        """From its next iteration on."""
        self._held_up = True
        self.node[worker] = node
        self._pause_s[worker] = self._pause_s.get(worker, 0.0) + pause_s
