"""Work that is dealt out unevenly: larger batches on some ranks, longer sequences on changing ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats

USUAL = {"samples": 32.0, "tokens": 4096.0, "micro_batches": 8.0}
COMPUTE = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Dealt:
    """Sizes of batches, which forward and backward follow in proportion.

    Attributes:
        column: which size: `samples`, `tokens` or `micro_batches`.
        larger: ranks that always have `factor` times as much.
        factor: see `larger`.
        spread: deviation of the logarithm of every rank's size from step to step.
    """

    column: str
    larger: tuple[int, ...] = ()
    factor: float = 1.0
    spread: float = 0.0

    @property
    def ranks(self) -> None:
        """All have sizes."""
        return

    @property
    def start(self) -> int:
        """From the first step on."""
        return 0

    @property
    def end(self) -> None:
        """To the last."""
        return

    def excess_us(self, phases: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:
        """See `Fault`."""
        shape = phases["forward"].shape
        ratio = np.exp(self.spread * rng.standard_normal(shape))
        ratio[list(self.larger)] *= self.factor
        return {name: phases[name] * (self._counted(ratio) / USUAL[self.column] - 1.0) for name in COMPUTE}

    def note(self, columns: Mapping[str, Floats], part: Mapping[str, Floats], phases: Mapping[str, Floats]) -> None:
        """Write the sizes into the step records' columns, shape (R, S) each."""
        ratio = 1.0 + part["forward"] / phases["forward"]
        columns[self.column][:] = self._counted(ratio)

    def _counted(self, ratio: Floats) -> Floats:
        counted: Floats = np.maximum(1.0, np.rint(USUAL[self.column] * ratio))
        return counted
