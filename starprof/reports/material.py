"""What every section is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from starprof.model.rundata import RunData
from starprof.model.verdict import Finding, Verdict
from starprof.reports import facts
from starprof.reports.pack import Pack


@dataclass(frozen=True)
class Material:
    """A run, its verdict, the page's data pack, and numbers that several sections use."""

    run: RunData
    verdict: Verdict
    pack: Pack = field(default_factory=Pack)

    @cached_property
    def finding(self) -> Finding | None:
        """The finding that the headline is about."""
        return facts.main_finding(self.verdict)

    @cached_property
    def window(self) -> NDArray[np.bool_]:
        """Steps the main finding is about, shape (S,)."""
        return facts.window(self.run, self.finding)

    @cached_property
    def windowed(self) -> bool:
        """True when those are not simply all steps."""
        return not bool(self.window.all())

    @cached_property
    def window_words(self) -> str:
        """The window as text: "steps 120-599"."""
        picked = self.run.steps.steps[self.window]
        return f"steps {picked[0]}-{picked[-1]}" if len(picked) else "no steps"

    @cached_property
    def medians(self) -> facts.RankMedians:
        """Per-rank medians inside the window."""
        return facts.rank_medians(self.run, self.window)

    @cached_property
    def culprits(self) -> list[int]:
        """Rows of the ranks that findings name."""
        return facts.culprit_rows(self.run, self.verdict)

    @cached_property
    def total_seconds(self) -> float:
        """Wall time of the steps looked at."""
        return facts.total_seconds(self.run, self.verdict)
