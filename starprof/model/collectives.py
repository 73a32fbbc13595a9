"""What the many names of collective operations mean."""

from __future__ import annotations

import re

ALL_REDUCE = "all_reduce"
ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"
ALL_TO_ALL = "all_to_all"
BARRIER = "barrier"
BROADCAST = "broadcast"
REDUCE = "reduce"
GATHER = "gather"
SCATTER = "scatter"
SEND_RECV = "send_recv"
COLLECTIVE = "collective"
"""Some collective that is neither a broadcast nor a send; which one is not told."""
UNKNOWN = "unknown"

MUTUAL = frozenset({ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER, COLLECTIVE})
"""Kinds in which every member waits for every other one: the last to arrive waits least. In the others (a broadcast, a
send) a root or a sender goes on without waiting, and a short call says nothing."""

# Most specific first: "all_reduce" holds "reduce", "reduce_scatter" both.
_KINDS = (
    (re.compile(r"reduce_?scatter"), REDUCE_SCATTER),
    (re.compile(r"all_?reduce"), ALL_REDUCE),
    (re.compile(r"all_?gather"), ALL_GATHER),
    (re.compile(r"all_?to_?all"), ALL_TO_ALL),
    (re.compile(r"send|recv|receive"), SEND_RECV),
    (re.compile(r"broadcast"), BROADCAST),
    (re.compile(r"barrier"), BARRIER),
    (re.compile(r"reduce"), REDUCE),
    (re.compile(r"scatter"), SCATTER),
    (re.compile(r"gather"), GATHER),
)


def kind(name: str) -> str:
    """The kind of call behind a kernel's, an annotation's or a library's name for it, `UNKNOWN` if there is none."""
    plain = name.lower().partition("(")[0]
    # Kernel names tell the reduction and the algorithm after the kind: `..._AllReduce_Sum_f32_RING_LL`.
    return next((what for pattern, what in _KINDS if pattern.search(plain)), UNKNOWN)
