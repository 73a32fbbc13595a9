"""What `starprof advise` answers: what to do about a run's stragglers, or that nothing is best; as JSON, stable.

The form is versioned by `schema` and documented in docs/advise.md: fields are added, never renamed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

ADVICE_SCHEMA = 1

LEAST_SAVING = 0.01
"""Of the job's time: less is not worth a change."""

Do = Literal["act", "nothing", "record"]
Kind = Literal["mode", "resource", "network", "placement", "program", "record"]


@dataclass(frozen=True, slots=True)
class Saving:
    """A share of the job's time that would be saved, 0..1, and its interval; None: not known."""

    share: float
    low: float | None = None
    high: float | None = None

    @property
    def sure(self) -> float:
        """What can be counted on: the lower end, where there is one."""
        return self.share if self.low is None else self.low


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do.

    Attributes:
        kind: what it changes.
        what: in a few words.
        how: more of it.
        commands: command lines or lines of code that do it; empty where there is none.
        at_once: it can be done while the job runs; else with its next start.
        saves: of the job's time.
        certainty: how sure it is that this is the cure, 0..1.
        cause: that it removes; "" for a mode, which removes none.
        ranks: whom it is about; empty: all, or nobody in particular.
        nodes: likewise.
        verify: how to see afterwards that it worked.
    """

    kind: Kind
    what: str
    how: str
    commands: tuple[str, ...] = ()
    at_once: bool = False
    saves: Saving = Saving(0.0)
    certainty: float = 1.0
    cause: str = ""
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    verify: str = ""

    @property
    def score(self) -> float:
        """Steps are sorted by this: the saving that can be counted on, by how sure the cure is."""
        return self.saves.sure * self.certainty


@dataclass(frozen=True, slots=True)
class ModeRow:
    """A synchronisation mode with the options that suit the run best.

    Attributes:
        mode: as `starprof ctl` takes it.
        options: likewise.
        gain: time to the same training progress now over that in this mode; None: nothing can be expected of it.
        low, high: 95 % interval of it, from how steps differ and from what the gradient noise scale may be.
        update_s: between two updates.
        max_staleness: of a gradient, in updates.
        accuracy_risk: from 0 to 1, a measure and no loss in points, where data are dealt out anew in each epoch.
        accuracy_risk_fixed: the same where every rank always has the same part of the data.
        barred: why it can't be had; "" when it can.
        command: moves the running job to it.
    """

    mode: str
    options: Mapping[str, object]
    gain: float | None
    low: float | None
    high: float | None
    update_s: float | None
    max_staleness: int | None
    accuracy_risk: float | None
    accuracy_risk_fixed: float | None
    barred: str
    command: str


@dataclass(frozen=True, slots=True)
class Now:
    """What slowness costs as things are.

    Attributes:
        verdict: of the diagnosis.
        seconds, share, gpu_hours: of its cost.
        share_low, share_high: 95 % interval of the share; None: not known.
        mode: that the job was in at the end.
    """

    verdict: str
    seconds: float
    share: float
    gpu_hours: float
    share_low: float | None
    share_high: float | None
    mode: str


@dataclass(frozen=True, slots=True)
class Advice:
    """The whole answer.

    Attributes:
        run: its name.
        do: `act`: at least one step pays; `nothing`: none does; `record`: the recording does not tell enough.
        headline: one sentence.
        why: the reason, with what came next.
        now: present cost.
        steps: what to do, the best first; with `nothing` and `record` what may be worth a look all the same.
        modes: ranked, the best first, those that can't be had last.
        refused: why no other mode can be had in this job at all; empty when nothing speaks against it.
        cautions: what to know before believing the figures.
        inputs: what it was made from, as plain values.
    """

    run: str
    do: Do
    headline: str
    why: str
    now: Now
    steps: tuple[Step, ...]
    modes: tuple[ModeRow, ...]
    refused: tuple[str, ...]
    cautions: tuple[str, ...]
    inputs: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain values; numbers that are not finite become None."""
        told = _plain({"schema": ADVICE_SCHEMA, **asdict(self)})
        assert isinstance(told, dict)
        return told


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value
