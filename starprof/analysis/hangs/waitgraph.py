"""The graph of who waits for whom: ranks wait at calls, calls wait for ranks; who is at the bottom of it.

Calls are nodes of their own, so that a group of thousands needs no edge per pair of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components


@dataclass(frozen=True)
class Bottom:
    """What all waiting comes down to.

    Attributes:
        ranks: ranks that are waited for, and that wait for nobody.
        circles: sets of ranks that wait for one another and for nobody else.
        opaque: calls that wait for nobody who is told.
    """

    ranks: tuple[int, ...] = ()
    circles: tuple[tuple[int, ...], ...] = ()
    opaque: tuple[str, ...] = ()


@dataclass
class WaitGraph:
    """Collects edges, then finds the bottom."""

    _calls: dict[str, int] = field(default_factory=dict)
    _waits: list[tuple[int, int, float]] = field(default_factory=list)
    """(rank, call, when the rank joined it, NaN unknown)."""
    _holds: list[tuple[int, int]] = field(default_factory=list)
    """(call, rank for which it waits)."""
    _stuck: dict[int, float] = field(default_factory=dict)
    """Ranks that can't get further by themselves, and since which call."""

    def add(self, call: str, waiting: Iterable[tuple[int, float]], held_by: Iterable[int]) -> None:
        """Ranks, each with the time at which it joined the call, that wait for other ranks at it."""
        node = self._calls.setdefault(call, len(self._calls))
        self._waits += [(rank, node, start) for rank, start in waiting]
        self._holds += [(node, rank) for rank in held_by]

    def stuck(self, ranks: Iterable[tuple[int, float]]) -> None:
        """Ranks that stand still for a reason of their own from a time on: later calls are not what they wait for."""
        for rank, start in ranks:
            self._stuck[rank] = min(start, self._stuck.get(rank, float("inf")))

    def bottom(self) -> Bottom:
        """Ranks and circles without an edge out of them."""
        waits = [(r, c) for r, c, start in self._waits if r not in self._stuck or start < self._stuck[r]]
        ranks = np.unique(np.array([r for r, _ in waits] + [r for _, r in self._holds], np.int64))
        count = len(ranks) + len(self._calls)
        if not len(ranks):
            return Bottom()
        from_rank = np.searchsorted(ranks, [r for r, _ in waits]).astype(np.int64)
        to_rank = np.searchsorted(ranks, [r for _, r in self._holds]).astype(np.int64)
        at = len(ranks) + np.array([c for _, c in waits], np.int64)
        of = len(ranks) + np.array([c for c, _ in self._holds], np.int64)
        tails, heads = np.r_[from_rank, of], np.r_[at, to_rank]
        edges = coo_matrix((np.ones(len(tails), np.int8), (tails, heads)), shape=(count, count))
        _, label = connected_components(edges, directed=True, connection="strong")
        leaves = np.ones(label.max() + 1, bool)
        leaves[label[tails[label[tails] != label[heads]]]] = False
        entered = np.zeros(count, bool)
        entered[heads] = True
        return self._read(ranks, label, leaves, entered)

    def _read(
        self,
        ranks: np.ndarray[tuple[int], np.dtype[np.int64]],
        label: np.ndarray[tuple[int], np.dtype[np.int32]],
        leaves: np.ndarray[tuple[int], np.dtype[np.bool_]],
        entered: np.ndarray[tuple[int], np.dtype[np.bool_]],
    ) -> Bottom:
        names = list(self._calls)
        alone, circles, opaque = [], [], []
        of_leaf: dict[int, list[int]] = {}
        for node in np.flatnonzero(leaves[label] & entered).tolist():
            of_leaf.setdefault(int(label[node]), []).append(node)
        for nodes in of_leaf.values():
            inside = [int(ranks[node]) for node in nodes if node < len(ranks)]
            if len(nodes) == 1 and inside:
                alone.append(inside[0])
            elif inside:
                circles.append(tuple(sorted(inside)))
            else:
                opaque.append(names[nodes[0] - len(ranks)])
        return Bottom(tuple(sorted(alone)), tuple(sorted(circles)), tuple(sorted(opaque)))
