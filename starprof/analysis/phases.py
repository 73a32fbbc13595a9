"""Which span of the step carries a rank's excess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.own_time import OwnTime
from starprof.analysis.peers import peer_centre

NOISE_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class PhaseExcess:
    """Mean excess per late step and phase, microseconds, and its share of the total (only what is above zero)."""

    us: Mapping[str, float]

    @property
    def total_us(self) -> float:
        """Sum of the phases that are longer."""
        return sum(max(0.0, v) for v in self.us.values())

    def share(self, *phases: str) -> float:
        """Share of the excess that some phases carry, 0..1."""
        total = self.total_us
        return sum(max(0.0, self.us.get(p, 0.0)) for p in phases) / total if total > 0 else 0.0

    def ranked(self) -> list[tuple[str, float]]:
        """Phases with a noticeable share, largest first."""
        shares = [(phase, self.share(phase)) for phase in self.us]
        return sorted((s for s in shares if s[1] >= NOISE_SHARE), key=lambda s: -s[1])


def phase_excess(own: OwnTime, rows: tuple[int, ...], steps: Bools, past: Bools | None, blamed: Bools) -> PhaseExcess:
    """Compare each phase of the late ranks with their peers in the same steps, and with their own past.

    Args:
        own: own time.
        rows: the late ranks.
        steps: late steps, shape (S,).
        past: healthy steps of the same ranks to subtract their usual difference, or None.
        blamed: ranks that are no reference, shape (R,).
    """
    result = {}
    for name, values in own.phases.items():
        difference = values - peer_centre(values, own.groups, blamed)
        mine = difference[list(rows)]
        excess = _mean(mine[:, steps])
        if past is not None and past.any():
            excess -= _mean(mine[:, past])
        result[name] = excess
    return PhaseExcess(result)


def excess_in_turn(own: OwnTime, taken: Mapping[int, Floats]) -> PhaseExcess:
    """Compare each phase of ranks that are late in turn with what the same rank needs in its other steps.

    Args:
        own: own time.
        taken: per late rank the time that it lost in each step, shape (S,).
    """
    sums = dict.fromkeys(own.phases, 0.0)
    steps = 0
    for row, lost in taken.items():
        late = lost > 0
        if not late.any() or late.all():
            continue
        steps += int(late.sum())
        for name, values in own.phases.items():
            usual = np.nanmedian(values[row, ~late]) if np.isfinite(values[row, ~late]).any() else 0.0
            sums[name] += float(np.nansum(values[row, late] - usual))
    return PhaseExcess({name: total / max(1, steps) for name, total in sums.items()})


def _mean(values: Floats) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0
