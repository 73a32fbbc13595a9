"""What an advisor hears and what it says: plain values, so that a recorded day can be played to it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starprof.model.rundata import RankInfo

NATIVE = "native"


@dataclass(frozen=True, slots=True)
class Ranks:
    """A job has begun, or begins again after a restart, with these ranks.

    Attributes:
        ranks: all of them.
        attempt: restart count.
    """

    ranks: tuple[RankInfo, ...]
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class StepTime:
    """A rank has ended a step.

    Attributes:
        rank: whose.
        step: number of the step, the same on all ranks.
        own_s: what it needed for itself, without what is done now and then only.
        blocked_s: what it waited for others.
        dur_s: all of the step.
        at_s: when it ended, by the clock of `Advisor.handle`.
        busy_s: saving state and evaluation in it.
    """

    rank: int
    step: int
    own_s: float
    blocked_s: float
    dur_s: float
    at_s: float
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """How the job synchronises, as its coordinator says.

    Attributes:
        mode: in force.
        options: of it.
        asked_by: who wants the mode that is wanted.
        frozen: who wants it to stay; "" for nobody.
        operator: who has taken the choice from the advisor; "" for nobody.
        refused: why the job can't leave native steps; "": it can, as far as is known.
        settled: no change of the mode is on its way.
        noise: gradient noise scale in batches of one rank, both ends; None: not known.
    """

    mode: str = NATIVE
    options: Mapping[str, object] = field(default_factory=dict)
    asked_by: str = ""
    frozen: str = ""
    operator: str = ""
    refused: str = ""
    settled: bool = True
    noise: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """A move was not let happen.

    Attributes:
        reason: in words.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss, or the norm of an update's gradient, of the running training.

    Attributes:
        loss: None: not told, or not finite.
        norm: likewise.
        finite: whether it is.
    """

    loss: float | None = None
    norm: float | None = None
    finite: bool = True


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Ranks | StepTime | Job | Denied | Loss | Tick


@dataclass(frozen=True, slots=True)
class Gain:
    """Time for the same progress before over that after.

    Attributes:
        middle: best guess.
        low: lower end of its 95 % interval.
        high: upper end.
    """

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        """As people read it."""
        return f"{self.middle:.2f}x ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A mode for the job as it is now.

    Attributes:
        mode: to move to.
        options: of it.
        ranks: who is late.
        hosts: where they are.
        predicted: gain that the chooser expects.
        dry_gain: gain of the mode's own policy over the recorded times.
        progress: of an update of this mode, in native steps.
        update_s: expected time between two updates.
        native_s: expected time of a native step as things are.
        accuracy_risk: 0 to 1.
        max_staleness: in updates.
        steps: that it was made from.
        reason: in words.
    """

    mode: str
    options: Mapping[str, object]
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    predicted: Gain
    dry_gain: float
    progress: float
    update_s: float
    native_s: float
    accuracy_risk: float
    max_staleness: int
    steps: int
    reason: str

    @property
    def name(self) -> str:
        """The mode with its options."""
        told = ", ".join(
            f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.options.items()
        )
        return f"{self.mode} ({told})" if told else self.mode


@dataclass(frozen=True, slots=True)
class Move:
    """Move the job to this mode.

    Attributes:
        mode: its name, or native.
        options: of it.
        reason: in words.
        proposal: that it comes from; None: it is a way back.
    """

    mode: str
    options: Mapping[str, object]
    reason: str
    proposal: Proposal | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something to be recorded, and told to whoever looks.

    Attributes:
        stage: see table `advisor_action`.
        action: number of the action, 0 for none.
        reason: in words.
        mode: that it is about.
        from_mode: before it.
        proposal: that it comes from.
        measured: gain in the job.
        steps: that were looked at.
        hosts: that it is about, where there is no proposal.
    """

    stage: str
    action: int
    reason: str
    mode: str | None = None
    from_mode: str | None = None
    proposal: Proposal | None = None
    measured: Gain | None = None
    steps: int | None = None
    hosts: tuple[str, ...] = ()

    def cells(self) -> dict[str, Any]:
        """As a row of table `advisor_action`."""
        from starprof.model.ranklists import listed

        told: dict[str, Any] = {
            "action": self.action,
            "stage": self.stage,
            "mode": self.mode,
            "from_mode": self.from_mode,
            "reason": self.reason,
            "steps": self.steps,
            "hosts": ", ".join(self.hosts) or None,
        }
        if self.measured is not None:
            gain = self.measured
            told |= {"measured_gain": gain.middle, "measured_low": gain.low, "measured_high": gain.high}
        made = self.proposal
        if made is not None:
            told |= {
                "options": dict(made.options) if made.mode == self.mode else None,
                "ranks": listed(made.ranks),
                "hosts": ", ".join(made.hosts) or None,
                "predicted_gain": made.predicted.middle,
                "predicted_low": made.predicted.low,
                "predicted_high": made.predicted.high,
                "dry_gain": made.dry_gain,
                "accuracy_risk": made.accuracy_risk,
                "max_staleness": made.max_staleness,
                "steps": made.steps if self.steps is None else self.steps,
            }
        return told


Action = Move | Note
