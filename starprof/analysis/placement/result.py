"""What the regression of runs on nodes tells; its JSON form is versioned and documented in docs/verdict.md."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

PLACEMENT_SCHEMA = 1

Status = Literal["slow", "undecidable", "cleared", "unsure", "not-compared"]
Answer = Literal["slow-nodes", "undecidable", "none", "inconclusive"]


@dataclass(frozen=True, slots=True)
class NodeEffect:
    """One node.

    Attributes:
        node: its name.
        runs: how many it took part in.
        slowdown: time of a run with it over one without it, the other slow nodes accounted for; None where nothing
            was compared.
        low, high: interval of it; all nodes' intervals hold together with 95 %.
        p: probability that chance alone makes any node look as slow; None where it was not asked.
        status: `slow`, `undecidable` (slow, or another one that ran with it), `cleared` (the interval ends below what
            matters), `unsure`, or `not-compared`.
    """

    node: str
    runs: int
    slowdown: float | None
    low: float | None
    high: float | None
    p: float | None
    status: Status


@dataclass(frozen=True, slots=True)
class Together:
    """Nodes of which some are slow, and nothing tells which.

    Attributes:
        nodes: the candidates.
        always: they were in exactly the same runs.
        next_placements: runs that would tell, as lists of nodes.
    """

    nodes: tuple[str, ...]
    always: bool
    next_placements: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """The whole answer.

    Attributes:
        answer: whether nodes are slow, some can't be told apart, none is, or the runs don't tell.
        runs: that were compared.
        groups: of comparable runs among them.
        nodes: all of them, the slowest first.
        undecidable: nodes that can't be told apart.
        reason: one or two sentences.
    """

    answer: Answer
    runs: int
    groups: int
    nodes: tuple[NodeEffect, ...]
    undecidable: tuple[Together, ...]
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form."""
        return {"schema": PLACEMENT_SCHEMA, **_plain(asdict(self))}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return round(value, 6) if isinstance(value, float) else value
