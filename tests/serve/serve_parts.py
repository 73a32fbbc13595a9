"""Records as agents bring them, made by hand."""

import numpy as np

from starprof.model.columns import INT_NULL
from starprof.model.schema import BY_NAME, row
from starprof.spool.frame import json_frame, packed_frame
from starprof.spool.layout import Spool

STEP, RANK, NODE = BY_NAME["step"], BY_NAME["rank"], BY_NAME["node"]
MS = 1000


def spool_in(folder, name="run"):
    spool = Spool(folder / f"{name}.starprof.spool")
    spool.create()
    return spool


def describe_ranks(world, *, per_node=2, attempt=0, host="host{}"):
    """The frames with which nodes and ranks introduce themselves."""
    nodes = sorted({rank // per_node for rank in range(world)})
    frames = [json_frame(NODE, f"n{n}-1/node", 0, [row(NODE, node=n, host=host.format(n), boot_id="b")]) for n in nodes]
    for rank in range(world):
        node = rank // per_node
        cells = row(RANK, attempt=attempt, rank=rank, node=node, world_size=world)
        frames.append(json_frame(RANK, f"n{node}-{rank}-{attempt}/rank", 0, [cells]))
    return frames


def step_cells(rank, step, own_us, *, dur_us=None, attempt=0, start_ns=None):
    """A row of table `step`: `own_us` of work, the rest of the step spent waiting."""
    dur_us = own_us + MS if dur_us is None else dur_us
    known = {
        "attempt": attempt,
        "rank": rank,
        "step": step,
        "start_mono_ns": step * dur_us * 1000 if start_ns is None else start_ns,
        "dur_us": dur_us,
        "forward_us": own_us,
        "blocked_us": dur_us - own_us,
        "optimizer_us": 0,
        "gpu_blocked_us": INT_NULL,
    }
    return [known.get(name, INT_NULL if name.startswith("gpu_") else 0) for name in STEP.names]


def step_frame(rank, first, own_us, *, per_node=2, attempt=0, **more):
    """Consecutive steps of one rank, in its own ring's stream."""
    rows = [step_cells(rank, first + i, own, attempt=attempt, **more) for i, own in enumerate(own_us)]
    return packed_frame(STEP, f"n{rank // per_node}-{rank}-{attempt}/slots", first, rows)


def own_times(steps, *, slow_from=None, factor=2.0, seed=0):
    """Own times of one rank in us: 10 ms with a little noise, slower from a step on."""
    noise = np.random.default_rng(seed).normal(0, 60, steps)
    own = 10 * MS + noise
    if slow_from is not None:
        own[slow_from:] *= factor
    return [round(value) for value in own]
