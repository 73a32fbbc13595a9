"""One slowness on its way from detection to finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starprof.analysis.arrays import Bools
from starprof.analysis.cost import Reduction
from starprof.analysis.network.location import Location
from starprof.model.verdict import FindingKind

if TYPE_CHECKING:
    from starprof.analysis.wire.base import WireCause


@dataclass(frozen=True)
class Slowness:
    """Something that made the job slower.

    Attributes:
        kind: its shape in time.
        rows: the ranks that did it, to blame or not.
        start: first column of it.
        end: column after the last.
        onset: columns between which the onset surely lies.
        steps: columns that carry it, shape (S,).
        reduction: what the replay takes away.
        source: which search found it: rank, special, rotating, uniform, network, server.
        blame: whether `rows` are to blame.
        period: period in steps of a periodic one.
        z: how surely it is no noise, in standard errors.
        late_windows: share of the windows of the interval in which it shows.
        noises: its size in standard deviations of a single step's noise.
        elsewhere: steps in which the same ranks are slow in another way, shape (S,); None = none.
        span: the special span, for source special.
        cost_us: its cost, filled in by the replay.
        alone_us: what the job would gain if only this were gone.
        before_us: level of the series before a rise, for sources uniform and network.
        after_us: level in it.
        place: where the slow link is, for source network.
        wire: why the reduction is slow, for source network, when counters show it.
    """

    kind: FindingKind
    rows: tuple[int, ...]
    start: int
    end: int
    onset: tuple[int, int]
    steps: Bools
    reduction: Reduction
    source: str
    blame: bool = True
    period: int | None = None
    z: float = 0.0
    late_windows: float = 1.0
    noises: float = 0.0
    elsewhere: Bools | None = None
    span: str = ""
    cost_us: float = 0.0
    alone_us: float = 0.0
    before_us: float = 0.0
    after_us: float = 0.0
    place: Location | None = None
    wire: WireCause | None = None
