"""All faults by name."""

from __future__ import annotations

from draws import gpu_faults, host_faults, nobodys, phase_faults, wire_faults
from draws.drawn import Maker, Need

RANKS: dict[str, tuple[Need, Maker]] = {**gpu_faults.FAULTS, **host_faults.FAULTS, **phase_faults.FAULTS}
"""Faults of ranks, or of all ranks of a node."""

WIRES = wire_faults.FAULTS
"""Faults of the network."""

NOBODYS = nobodys.FAULTS
"""Slowness that nobody is to blame for."""
