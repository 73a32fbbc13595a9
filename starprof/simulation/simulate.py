"""Simulate one job, or several that share a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from starprof.simulation.clock import Clock
from starprof.simulation.control import Controller, Predictor, mean_of_last
from starprof.simulation.history import History
from starprof.simulation.job import Job, RunningJob
from starprof.simulation.managing import Managed
from starprof.simulation.orders import Manager
from starprof.simulation.setting import FREE, NOTHING_SCARCE, Change, Cluster, Exchange, PolicyMaker, Until, Worker
from starprof.simulation.traffic import Network
from starprof.simulation.training.base import Training


def simulate(
    mode: PolicyMaker,
    workers: Sequence[Worker],
    training: Training,
    *,
    until: Until,
    exchange: Exchange = FREE,
    cluster: Cluster = NOTHING_SCARCE,
    changes: Sequence[Change] = (),
    predictor: Predictor = mean_of_last,
    controller: Controller | None = None,
    seed: int = 0,
) -> History:
    """Train in simulated time; equal arguments give equal histories.

    Args:
        mode: usually a `Mode`; anything that makes a policy.
        workers: and where their own times come from.
        training: `NoiseScale`, or `RealTraining`.
        until: when to end.
        exchange: how gradients travel: `Free`, `ParameterServer` or `AllReduce`.
        cluster: what that takes on nodes and links.
        changes: workers that leave or come.
        predictor: for modes that go by predictions.
        controller: may change the mode once an iteration.
        seed: of all that is drawn.

    Raises:
        ValueError: the description contradicts itself, or nothing would end the simulation.
        UsageError: the mode can't be had for these workers.
    """
    job = Job(mode, tuple(workers), training, until, exchange, tuple(changes), predictor, controller)
    return simulate_jobs([job], cluster, seed=seed)[0]


def simulate_jobs(
    jobs: Sequence[Job], cluster: Cluster = NOTHING_SCARCE, *, manager: Manager | None = None, seed: int = 0
) -> tuple[History, ...]:
    """Several jobs at once on the same nodes and links, until all that have an end have come to it.

    Args:
        jobs: of which one at least has an end.
        cluster: what they share.
        manager: moves and delays them while they run.
        seed: of all that is drawn.

    Raises:
        ValueError: a description contradicts itself, nothing would end the simulation, or an order can't be done.
        UsageError: a mode can't be had for its workers.
    """
    ending = sum(not job.until.open for job in jobs)
    if not ending:
        raise ValueError("nothing would end the simulation: say until when")
    clock, network, left = Clock(), Network(cluster), [ending]

    def over() -> None:
        left[0] -= 1
        clock.stopped = left[0] == 0

    running = [RunningJob(job, clock, network, seed + place, over) for place, job in enumerate(jobs)]
    if manager is not None:
        Managed(manager, clock, running)
    clock.run()
    end_s = max(job.end_s for job in running) if clock.stopped else clock.now_s
    busy = {queue.name: min(1.0, queue.busy_s / end_s) if end_s else 0.0 for queue in network.queues()}
    return tuple(
        job.record.history(
            job.job.name,
            str(job.job.mode),
            job.end_s if job.stopped else end_s,
            job.stopped or ("others" if job.job.until.open and clock.stopped else "stands still"),
            busy,
        )
        for job in running
    )
