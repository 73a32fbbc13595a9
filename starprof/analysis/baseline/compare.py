"""How much longer a step takes than in the runs that are known as good, and in which parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from starprof.analysis.baseline.profile import Profile

Z = 3.0
SAME_LOAD = 0.02
"""Batches that differ by more are other work."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a step, here and in the baseline (median of several), in microseconds per step."""

    name: str
    us: float
    base_us: float

    @property
    def added_us(self) -> float:
        """What it takes longer."""
        return self.us - self.base_us

    @property
    def ratio(self) -> float:
        """How many times longer; infinite when it was not there."""
        return self.us / self.base_us if self.base_us > 0 else np.inf if self.us > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run against its baseline.

    Attributes:
        names: the runs of the baseline that could be compared.
        ratio: step time over the baseline's.
        low, high: bounds of it (three standard errors of either mean, and as far as the baseline's runs differ).
        added_us: what a step takes longer.
        parts: those that both have, in the order of the step.
    """

    names: tuple[str, ...]
    ratio: float
    low: float
    high: float
    added_us: float
    parts: tuple[Part, ...]


def unlike(profile: Profile, other: Profile) -> str:
    """Why a run can't be compared with another; empty when it can."""
    if profile.kind != other.kind or bool(profile.unit) != bool(other.unit):
        return "its times are of another kind"
    if profile.ranks != other.ranks or profile.world != other.world:
        return f"it has {max(other.world, other.ranks)} ranks, this run {max(profile.world, profile.ranks)}"
    if abs(profile.load - other.load) > SAME_LOAD * max(profile.load, other.load):
        return f"its batches differ ({other.load:g} samples or tokens per step, here {profile.load:g})"
    return ""


def compare(profile: Profile, baselines: Sequence[Profile]) -> Comparison:
    """Compare with runs that are like it (see `unlike`), at least one."""
    steps = np.array([_in_unit(profile, b, b.step_us) for b in baselines])
    base = float(np.median(steps))
    apart = float(np.abs(steps / base - 1.0).max())
    error = float(np.hypot(profile.error, np.median([b.error for b in baselines])))
    ratio = profile.step_us / base
    margin = Z * error + apart
    common = [name for name in profile.parts if all(name in b.parts for b in baselines)]
    parts = [Part(n, profile.parts[n], float(np.median([b.parts[n] for b in baselines]))) for n in common]
    return Comparison(
        names=tuple(b.name for b in baselines),
        ratio=ratio,
        low=ratio * (1.0 - min(margin, 1.0)),
        high=ratio * (1.0 + margin),
        added_us=profile.step_us - base,
        parts=tuple(parts),
    )


def _in_unit(profile: Profile, other: Profile, value: float) -> float:
    """A time of another run in this one's unit."""
    return value * (other.unit or 1.0) / (profile.unit or 1.0)
