"""Slowness that is nobody's fault: the program's own work, what all share, what goes round, and uneven work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from draws.drawn import Draw, Drawn, Maker, Need
from draws.gpu_faults import HELD_DOWN, thermal
from starprof.analysis.synthetic import Dealt, Slow, Trouble
from starprof.analysis.synthetic.faults import CPU_PHASES
from starprof.model import causes

ONSET = ("onset",)
CHRONIC = ("chronic",)


def _own_us(draw: Draw) -> float:
    return sum(draw.run.phases_us.values())


def _special(span: str, cause: str, least: float, most: float) -> Maker:
    def make(draw: Draw) -> Drawn:
        """Work of rank 0, or of all ranks, every so many steps."""
        every = int(draw.rng.integers(15, 60))
        who = (0,) if draw.often(0.7) else None
        work = Slow(span, who, us=draw.between(least, most) * _own_us(draw), every=every, start=every // 2)
        return Drawn((work,), causes=frozenset({cause}), verdicts=frozenset({"none"}))

    return make


def logging(draw: Draw) -> Drawn:
    """Rank 0 writes its logs every so many steps, without a span of its own."""
    every = int(draw.rng.integers(8, 40))
    work = Slow("unaccounted", (0,), us=draw.between(1.0, 4.0) * _own_us(draw), every=every, start=every // 2)
    named = frozenset({causes.USER_CODE, causes.LOGGING})
    return Drawn((work,), causes=named, verdicts=frozenset({"none"}))


def everybody(draw: Draw) -> Drawn:
    """All ranks take longer from a step on."""
    phase, cause = {
        0: ("forward", causes.FORWARD_COMPUTE),
        1: ("backward", causes.BACKWARD_COMPUTE),
        2: ("data_wait", causes.DATA_LOADING),
        3: ("unaccounted", causes.USER_CODE),
    }[int(draw.rng.integers(4))]
    slower = Slow(phase, None, us=draw.between(0.2, 1.5) * _own_us(draw), start=draw.when.start)
    return Drawn(
        (slower,),
        causes=frozenset({cause}),
        places=frozenset({causes.UNKNOWN}),
        verdicts=frozenset({"uniform"}),
        when=draw.when,
    )


def all_hot(draw: Draw) -> Drawn:
    """All GPUs get hot together: the room."""
    crowd = replace(draw, hit=tuple(range(draw.run.ranks)), slowdown=max(1.3, draw.slowdown))
    found = thermal(crowd)
    return replace(found, ranks=frozenset(), verdicts=frozenset({"uniform"}), places=HELD_DOWN, slowdown=crowd.slowdown)


def stalls(draw: Draw) -> Drawn:
    """Another rank each time stands still for a while."""
    moving = Slow("unaccounted", None, us=draw.between(1.0, 3.0) * _own_us(draw), share=0.5, rotating=True)
    return Drawn((moving,), verdicts=frozenset({"rotating", "inconclusive"}))


def pauses(draw: Draw) -> Drawn:
    """Changing processes stop as a whole, in whatever phase they are."""
    usual = {name: draw.run.phases_us[name] for name in CPU_PHASES}
    us = draw.between(1.2, 3.0) * _own_us(draw)
    adds = {name: us * part / sum(usual.values()) for name, part in usual.items()}
    fault = Trouble(tuple(range(draw.run.ranks)), adds, share=draw.between(0.1, 0.25), rotating=True)
    return Drawn(
        (fault,),
        causes=frozenset({causes.HOST_PAUSE}),
        places=frozenset({causes.UNKNOWN}),
        verdicts=frozenset({"rotating"}),
    )


def collections(draw: Draw) -> Drawn:
    """The garbage collector runs on changing ranks."""
    moving = Slow("gc", None, us=draw.between(1.0, 3.0) * _own_us(draw), share=0.3, rotating=True)
    return Drawn((moving,), causes=frozenset({causes.GC}), verdicts=frozenset({"rotating", "none"}))


def heavy_stage(draw: Draw) -> Drawn:
    """One pipeline stage has more to compute."""
    stage_of = np.arange(draw.run.ranks) * draw.run.stages // draw.run.ranks
    stage = int(draw.rng.integers(draw.run.stages))
    members = tuple(int(rank) for rank in np.flatnonzero(stage_of == stage))
    more = draw.between(0.15, 0.8)
    adds = {name: more * draw.run.phases_us[name] for name in ("forward", "backward")}
    return Drawn(
        (Trouble(members, adds),),
        causes=frozenset({causes.PIPELINE_STAGE}),
        verdicts=frozenset({"structural"}),
    )


def long_sequences(draw: Draw) -> Drawn:
    """Another rank draws the longest sequence in each step."""
    dealt = Dealt("tokens", spread=draw.between(0.1, 0.5))
    return Drawn((dealt,), causes=frozenset({causes.SEQUENCE_LENGTH}), verdicts=frozenset({"workload-skew"}))


def larger_batches(draw: Draw) -> Drawn:
    """Some ranks always have larger batches."""
    few = tuple(int(r) for r in draw.rng.choice(draw.run.ranks, max(1, draw.run.ranks // 8), replace=False))
    column = str(draw.rng.choice(["samples", "micro_batches"]))
    dealt = Dealt(column, few, factor=draw.between(1.25, 2.0))
    return Drawn((dealt,), causes=frozenset({causes.BATCH_IMBALANCE}), verdicts=frozenset({"workload-skew"}))


def all_limited(draw: Draw) -> Drawn:
    """A quota stops all ranks from the first step on."""
    usual = {name: draw.run.phases_us[name] for name in CPU_PHASES}
    us = draw.between(0.5, 1.2) * _own_us(draw)
    limit = Trouble(
        tuple(range(draw.run.ranks)),
        {name: us * part / sum(usual.values()) for name, part in usual.items()},
        shows={"cgroup_sample.quota_us": 60_000.0},
        counts={"cgroup_sample.throttled_us": draw.between(0.85, 1.1)},
        share=0.9,
    )
    return Drawn(
        (limit,),
        causes=frozenset({causes.CGROUP_THROTTLING}),
        places=frozenset({causes.UNKNOWN}),
        evidence=("cgroup_sample", "cgroup"),
        verdicts=frozenset({"uniform", "rotating"}),
        blind=frozenset({"none", "rotating", "inconclusive"}),
    )


FAULTS: dict[str, tuple[Need, Maker]] = {
    "checkpoint": (Need(shapes=CHRONIC), _special("checkpoint", causes.CHECKPOINT, 2.0, 10.0)),
    "evaluation": (Need(shapes=CHRONIC), _special("eval", causes.EVALUATION, 2.0, 10.0)),
    "compile": (Need(shapes=CHRONIC), _special("compile", causes.COMPILE, 3.0, 20.0)),
    "logging": (Need(shapes=CHRONIC), logging),
    "all ranks slower": (Need(shapes=ONSET), everybody),
    "all GPUs hot": (Need(gpus=True, shapes=ONSET), all_hot),
    "stalls that go round": (Need(shapes=CHRONIC), stalls),
    "host-pause": (Need(shapes=CHRONIC), pauses),
    "gc, going round": (Need(shapes=CHRONIC), collections),
    "pipeline-stage": (Need(shapes=CHRONIC, stages=4), heavy_stage),
    "sequence-length": (Need(shapes=CHRONIC), long_sequences),
    "batch-imbalance": (Need(shapes=CHRONIC), larger_batches),
    "cgroup-throttling, all": (Need(shapes=CHRONIC), all_limited),
}
