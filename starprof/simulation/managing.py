"""Shows a manager the cluster from time to time, and carries out what it orders (`orders`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from starprof.simulation.clock import Clock
from starprof.simulation.job import RunningJob
from starprof.simulation.orders import (
    ClusterSeen,
    Delay,
    Group,
    JobSeen,
    Manager,
    MoveShard,
    MoveWorker,
    Order,
    Pace,
    Use,
)
from starprof.simulation.traffic import ToServers


class Managed:
    """A manager at work in one simulation."""

    def __init__(self, manager: Manager, clock: Clock, jobs: Sequence[RunningJob]) -> None:
        """Look for the first time after one period.

        Raises:
            ValueError: two jobs have one name, or it never looks.
        """
        self._jobs = {job.job.name: job for job in jobs}
        if len(self._jobs) < len(jobs):
            raise ValueError("whoever manages jobs needs a name for each of them")
        if not manager.every_s > 0:
            raise ValueError(f"a manager looks every so many seconds, not {manager.every_s}")
        self._manager, self._clock = manager, clock
        self._before = {name: _Totals(job) for name, job in self._jobs.items()}
        clock.at(manager.every_s, self._look, None)

    def _look(self, _: object) -> None:
        every_s = self._manager.every_s
        seen = {}
        for name, job in self._jobs.items():
            now = _Totals(job)
            if not job.stopped:
                seen[name] = _seen(job, self._before[name], now)
            self._before[name] = now
        for order in self._manager(ClusterSeen(self._clock.now_s, every_s, seen)):
            self._carry_out(order)
        if not self._clock.idle:  # else the jobs stand still, and looking at them would never end
            self._clock.at(self._clock.now_s + every_s, self._look, None)

    def _carry_out(self, order: Order) -> None:
        job = self._jobs[order.job]
        match order:
            case Delay():
                job.places.delay(order.node, order.delay_s)
            case MoveWorker():
                job.places.move(order.worker, order.node, order.pause_s)
            case _ if not isinstance(job.traffic, ToServers):
                raise ValueError(f"{order.job} has no parameter server: {order} can't be carried out")
            case MoveShard():
                job.traffic.move(order.shard, order.node, order.size_bytes)
            case Group():
                job.traffic.group(order.parents)
            case Pace():
                job.traffic.pace(order.worker, order.bytes_per_s)


class _Totals:
    """What a job has used and done so far."""

    def __init__(self, job: RunningJob) -> None:
        self.compute_s = dict(job.places.cpu_s)
        self.serve_s = dict(job.traffic.cpu_s)
        self.bytes = dict(job.traffic.bytes)
        self.gradients = job.record.gradients


def _seen(job: RunningJob, before: _Totals, now: _Totals) -> JobSeen:
    worker, own_s = job.record.since(before.gradients)
    members = job.members
    count = {one: int((worker == one).sum()) for one in members}
    return JobSeen(
        name=job.job.name,
        mode=job.mode,
        nodes={one: job.places.node[one] for one in members},
        shards=tuple(job.traffic.nodes) if isinstance(job.traffic, ToServers) else (),
        own_s={one: float(np.mean(own_s[worker == one])) for one in members if count[one]},
        iterations=count,
        progress=job.progress,
        compute={node: Use(cpu_s=value) for node, value in _grown(before.compute_s, now.compute_s).items()},
        serve=_both(_grown(before.serve_s, now.serve_s), _grown(before.bytes, now.bytes)),
    )


def _grown(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    return {node: value - before.get(node, 0.0) for node, value in now.items()}


def _both(cpu_s: Mapping[str, float], size: Mapping[str, float]) -> dict[str, Use]:
    found: dict[str, Use] = defaultdict(Use)
    for node in {**cpu_s, **size}:
        found[node] = Use(cpu_s.get(node, 0.0), size.get(node, 0.0))
    return dict(found)
