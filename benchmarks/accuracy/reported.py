"""Faults that people have reported, each as a small generated input with its right answer, by theme.

A case is one function of a theme's module and its line in that module's `REPORTS`. Figures that a report does not give
are invented.
"""

from __future__ import annotations

from collections.abc import Iterator

import reported_files
import reported_gpus
import reported_hosts
import reported_input
import reported_network
import reported_pauses
import reported_regimes
import reported_topology
from truth import Case

THEMES = (
    reported_regimes,
    reported_pauses,
    reported_input,
    reported_hosts,
    reported_gpus,
    reported_network,
    reported_files,
    reported_topology,
)


def cases() -> Iterator[Case]:
    """All of them."""
    for theme in THEMES:
        for make, truth in theme.REPORTS:
            yield Case(make.__name__.replace("_", " "), truth, make)
