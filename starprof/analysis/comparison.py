"""Every rank against its peers: lateness, the noise that it has, and who must not serve as a reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.noise import Noise, measure_noise
from starprof.analysis.own_time import OwnTime
from starprof.analysis.peers import median_of_others, peer_centre, slow_mode
from starprof.analysis.settings import Settings

FEW_RANKS = 3
MAX_SETTLED_RANKS = 16
STEADIER = 0.5
OWN_PIECES = 6


@dataclass
class Comparison:
    """Lateness of every rank against its peers, with the noise that it has."""

    own: OwnTime
    settings: Settings
    blamed: Bools = field(init=False)

    def __post_init__(self) -> None:
        self.blamed = slow_mode(self.own.work, self.own.groups)

    @cached_property
    def reference_us(self) -> Floats:
        """Peers' centre, shape (R, S)."""
        return peer_centre(self.own.work, self.own.groups, self.blamed)

    @cached_property
    def lateness_us(self) -> Floats:
        """Own work minus the peers' centre, shape (R, S).

        A rank without peers can only be compared with itself: with its own lowest lasting level, corrected by how all
        others move against theirs.
        """
        late = self.own.work - self.reference_us
        alone = np.isnan(late).all(axis=1)
        if alone.any():
            pieces = np.array_split(self.own.work, OWN_PIECES, axis=1)
            usual = np.nanmin([np.nanmedian(piece, axis=1) for piece in pieces], axis=0)[:, None]
            relative = self.own.work / usual
            late[alone] = ((relative - median_of_others(relative)) * usual)[alone]
        return late

    @cached_property
    def lateness(self) -> Floats:
        """Lateness as a share of the healthy step, shape (R, S)."""
        return self.lateness_us / self.own.healthy_step_us

    @cached_property
    def capped(self) -> Floats:
        """The same, capped per step, around what is usual for a rank; 0 where not recorded.

        Noise with late steps on all ranks in turn makes every rank late on average: that is nobody's lateness.
        """
        cap = self.settings.lateness_cap
        capped = np.clip(np.nan_to_num(self.lateness, nan=0.0), -cap, cap)
        usual = float(np.quantile(capped[~self.blamed].mean(axis=1), 0.25, method="lower"))
        return capped - max(0.0, usual)

    @cached_property
    def noise(self) -> Noise:
        """Noise of the capped lateness."""
        return measure_noise(self.capped, self.own.work / self.own.healthy_step_us, self.settings, self.blamed)

    def settled(self) -> Comparison:
        """The same with ranks left out of the references as long as that makes the others much steadier.

        The median over few peers is misled when two of four are slow. Leaving out a slow rank then halves what the
        others seem to vary; leaving out a healthy one does not.
        """
        ranks = self.own.shape[0]
        current = self
        if not FEW_RANKS <= ranks <= MAX_SETTLED_RANKS:
            return current
        for _ in range(ranks // 2):
            late = current.capped.mean(axis=1) + current.capped.std(axis=1)
            late[current.blamed] = -np.inf
            other = current.without({int(np.argmax(late))})
            if (~other.blamed).sum() < 2 or other.unrest > STEADIER * current.unrest:
                break
            current = other
        return current

    @cached_property
    def unrest(self) -> float:
        """Variance of the steadier half of the references' lateness over the run."""
        variance = np.sort(self.capped[~self.blamed].var(axis=1))
        return float(variance[: max(1, len(variance) // 2)].mean())

    def without(self, rows: set[int]) -> Comparison:
        """The same ranks compared with references from which late ranks are left out."""
        other = Comparison(self.own, self.settings)
        other.blamed = self.blamed.copy()
        other.blamed[list(rows)] = True
        if other.blamed.all():
            other.blamed[:] = self.blamed
        return other
