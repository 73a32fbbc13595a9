"""Placements that would tell nodes apart: one half of the candidates each, filled up with nodes that are good."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from starprof.analysis.placement.runs import RunOn


def placements(candidates: Sequence[str], runs: Sequence[RunOn], good: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Two runs of the usual size that halve the candidates.

    Args:
        candidates: nodes of which some are slow.
        runs: what was run, for the usual number of nodes.
        good: nodes to fill up with, the best known first.
    """
    usual = int(np.median([len(run.nodes) for run in runs if not run.nodes.isdisjoint(candidates)]))
    half = (len(candidates) + 1) // 2
    fill = [node for node in good if node not in candidates]
    parts = (tuple(candidates[:half]), tuple(candidates[half:]))
    return tuple((*part[:usual], *fill[: max(usual - len(part), 0)]) for part in parts if part)
