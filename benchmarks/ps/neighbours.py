"""What a mode costs those beside the server, and what the plans promise and keep."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import astuple

from lab import Lab, Sample

from starprof.decision.resources import Amount, Need, Neighbour, NodeUse, reallocate

COMPUTE_MS = (60.0, 60.0, 60.0, 180.0)
MODEL_MB = 4.0
SETTLE_S = 0.7
RATE_MBIT = 160.0
LEFT_OVERS = 15
"""Niceness with which the server takes the time that the neighbour was asked to leave, and hardly any other."""


def _median(samples: list[Sample]) -> Sample:
    return Sample(*(statistics.median(values) for values in zip(*map(astuple, samples), strict=True)))


def _phases(lab: Lab, phases: dict[str, Callable[[], None]], rounds: int, seconds: float) -> dict[str, Sample]:
    """All phases in turn, so often; the median of each."""
    found: dict[str, list[Sample]] = {name: [] for name in phases}
    for _ in range(rounds):
        for name, begin in phases.items():
            begin()
            time.sleep(SETTLE_S)
            found[name].append(lab.sample(seconds))
    return {name: _median(samples) for name, samples in found.items()}


def _row(name: str, one: Sample, alone: Sample | None = None) -> str:
    slower = "" if alone is None else f"{100.0 * (one.neighbour_s / alone.neighbour_s - 1.0):6.1f} %"
    return (
        f"{name:34} {one.updates_per_s:9.1f} {one.pushes_per_s:9.1f} {one.server_cores:9.3f} "
        f"{1e-6 * one.server_bytes_per_s:9.1f} {1e3 * one.neighbour_s:12.1f}  {slower}"
    )


HEAD = f"{'':34} {'updates/s':>9} {'pushes/s':>9} {'cores':>9} {'MB/s':>9} {'neighbour ms':>12}  slower than alone"


def modes(rounds: int, seconds: float) -> None:
    """SSGD, then ASGD: what the server takes and what its neighbour loses; then the plan, and whether it holds."""
    with Lab(COMPUTE_MS, MODEL_MB, neighbour_ms=10.0) as lab:

        def go(mode: str, delay_s: float = 0.0, niceness: int = 0) -> Callable[[], None]:
            def begin() -> None:
                lab.delay(delay_s)
                lab.yields(niceness)
                lab.rest(False)
                lab.switch(mode)

            return begin

        calm = {"the neighbour alone": lambda: (lab.delay(0.0), lab.rest(True)), "SSGD": go("ssgd"), "ASGD": go("asgd")}
        found = _phases(lab, calm, rounds, seconds)
        alone, ssgd, asgd = found.values()
        print(HEAD)
        for name, one in found.items():
            print(_row(name, one, alone), flush=True)
        delay_s = 0.01
        delayed = _phases(lab, {"delayed": go("ssgd", delay_s)}, 1, seconds)["delayed"]
        freed = max(1e-3, (ssgd.neighbour_cores - delayed.neighbour_cores) / delay_s)
        sensitivity = max(1e-3, (delayed.neighbour_s - ssgd.neighbour_s) / delay_s)
        extra = Amount(max(0.0, asgd.server_cores - ssgd.server_cores), 0.0)
        beside = Neighbour("neighbour", 1, ssgd.neighbour_s, Amount(freed, 0.0), sensitivity=sensitivity)
        node = NodeUse("host 0", Amount(1.0, 1.25e9), Amount(1.0, 0.0), (beside,))
        share = 1.0 - ssgd.pushes_per_s / asgd.pushes_per_s
        plan = reallocate(node, Need("job", extra, share))
        print("\n".join(f"plan: {step}" for step in plan.steps))
        if plan.refused:
            return
        asked_s = sum(one.delay_s for one in plan.delays)
        kept = _phases(lab, {"SSGD": go("ssgd"), "ASGD, as planned": go("asgd", asked_s, LEFT_OVERS)}, rounds, seconds)
        for name, one in kept.items():
            print(_row(name, one, alone))
        ssgd, planned = kept.values()
        slower = 100.0 * (planned.neighbour_s / ssgd.neighbour_s - 1.0)
        without = 100.0 * (asgd.neighbour_s / found["SSGD"].neighbour_s - 1.0)
        print(
            f"promised to the neighbour: at most {100.0 * plan.cost_share:.1f} % slower than beside SSGD; "
            f"measured {slower:.1f} %; without the plan {without:.1f} %"
        )


def grant(rounds: int, seconds: float) -> None:
    """A neighbour that leaves the node half free: everything is granted, and it loses nothing."""
    with Lab(COMPUTE_MS, MODEL_MB, neighbour_ms=10.0) as lab:
        busy_s = 0.025  # it waits for its job's slowest worker, elsewhere

        def go(mode: str, niceness: int = 0) -> Callable[[], None]:
            def begin() -> None:
                lab.delay(busy_s)
                lab.yields(niceness)
                lab.switch(mode)

            return begin

        found = _phases(
            lab, {"SSGD": go("ssgd"), "ASGD": go("asgd"), "ASGD, as planned": go("asgd", LEFT_OVERS)}, rounds, seconds
        )
        ssgd, asgd, planned = found.values()
        print(HEAD)
        for name, one in found.items():
            print(_row(name, one))
        extra = Amount(max(0.0, asgd.server_cores - ssgd.server_cores), 0.0)
        used = Amount(ssgd.server_cores + ssgd.neighbour_cores, 0.0)
        plan = reallocate(
            NodeUse("host 0", Amount(1.0, 1.25e9), used),
            Need("job", extra, 1.0 - ssgd.pushes_per_s / asgd.pushes_per_s),
        )
        print("\n".join(f"plan: {step}" for step in plan.steps))
        slower, without = (100.0 * (one.neighbour_s / ssgd.neighbour_s - 1.0) for one in (planned, asgd))
        print(f"promised: {100.0 * plan.cost_share:.1f} %; measured {slower:.1f} %; without the plan {without:.1f} %")


def relocation(_rounds: int, seconds: float) -> None:
    """A server whose interface is full: one of its two shards moves, then the other, while training goes on."""
    with Lab((20.0,) * 3, MODEL_MB / 2.0, shards=2) as lab:
        for host in (0, 2):
            lab.net.shape(host, RATE_MBIT)
        lab.spare(2, 1)
        lab.spare(3, 2)
        phases: list[tuple[str, Callable[[], object]]] = [
            ("both shards on one full node", lambda: None),
            ("one of them on another such node", lambda: lab.move(1, 2)),
            ("both on a node with a free one", lambda: (lab.move(0, 3), lab.move(1, 3))),
        ]
        first = 0.0
        for name, begin in phases:
            begin()
            time.sleep(SETTLE_S)
            speed = lab.sample(seconds).updates_per_s
            first = first or speed
            print(f"{name:34} {speed:6.2f} updates/s  {speed / first:.2f}x", flush=True)
