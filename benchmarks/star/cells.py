"""Runs one cell: a training in simulated time with real gradients, and what it has come to."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from design import Cell
from methods import CHOOSERS, LIMITED, Controlling, mode_of
from scenarios import BATCH, NoTraceError, place_of
from tasks import phi_of, task_of, training_of

from starprof.decision.choice.situation import NoiseScale
from starprof.simulation import Until, simulate

LONGEST = 15.0
"""Times what the training takes where nobody is slow; then a cell is over."""
GRADIENTS = 4
"""Times what synchronous steps need; then it is over too: there are modes that throw nearly all away."""
NOISE_INTERVAL = 1.5
"""A noise scale is told with an interval of this factor around it, as a running job would know it."""


def run(cell: Cell) -> dict[str, Any]:
    """Its record; with `cannot` where something that it needs is not there."""
    began_s = time.process_time()
    record: dict[str, Any] = {"cell": cell.name, **{name: getattr(cell, name) for name in Cell.__slots__}}
    try:
        place = place_of(cell.scenario, cell.exchange, cell.seed)
    except NoTraceError as error:
        return {**record, "cannot": str(error)}
    task, count = task_of(cell.task), len(place.workers)
    controller = None
    chooser = CHOOSERS.get(cell.method) or LIMITED.get(cell.method)
    if chooser is not None:
        phi = phi_of(cell.task, BATCH)
        noise = NoiseScale(phi / NOISE_INTERVAL, phi * NOISE_INTERVAL)
        controller = Controlling(chooser, cell.exchange, noise, BATCH, task.momentum)
    history = simulate(
        mode_of(cell.method, count, place.typical_s, task.progress),
        place.workers,
        training_of(cell.task),
        until=Until(
            progress=task.progress,
            at_s=LONGEST * task.progress * place.typical_s,
            gradients=GRADIENTS * count * task.progress,
        ),
        exchange=place.exchange,
        cluster=place.cluster,
        controller=controller,
        seed=cell.seed,
    )
    stale = history.staleness
    return {
        **record,
        "end_s": round(history.end_s, 4),
        "stopped": history.stopped,
        "progress": round(history.steps[-1].progress, 3) if history.steps else 0.0,
        "updates": len(history.steps),
        "dropped": history.dropped,
        "stale_mean": round(float(stale.mean()), 3) if len(stale) else 0.0,
        "stale_max": int(stale.max()) if len(stale) else 0,
        "straggling": round(history.straggler_share, 5),
        "waiting": round(history.waiting_share, 5),
        "server_busy": round(history.busy.get("server cpu", 0.0), 4),
        "curve": [[round(e.at_s, 3), round(e.accuracy, 4)] for e in history.evaluations],
        "switches": [[round(at_s, 2), mode] for at_s, mode in history.switches],
        "choice_ms": round(1e3 * median(controller.cost_s), 3) if controller and controller.cost_s else None,
        "took_s": round(time.process_time() - began_s, 2),
    }
