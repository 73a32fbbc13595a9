"""What a member of the round protocol asks its engine to do. Nothing here does anything by itself."""

from __future__ import annotations

from dataclasses import dataclass

from starprof.sync.protocol.messages import Close, ToCoordinator


@dataclass(frozen=True, slots=True)
class Send:
    """Tell the coordinator."""

    message: ToCoordinator


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduce this round's gradients with its other members; `reduced` or `reduction_failed` follows."""

    close: Close


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send a result that is held to another rank, with its round's description; there `received` follows."""

    to: int
    close: Close


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask another rank for a result; `received` follows, or nothing."""

    holder: int
    round: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Apply:
    """Step the optimizer along a round's result, which is held."""

    close: Close


@dataclass(frozen=True, slots=True)
class Begin:
    """The training thread may begin its next step, or pause, on parameters of this version."""

    version: int
    native: bool


@dataclass(frozen=True, slots=True)
class PullState:
    """Replace parameters and optimizer by those of another rank; `pulled` follows."""

    holder: int
    version: int


@dataclass(frozen=True, slots=True)
class SkipLimit:
    """Others have paused at this index: batches may be skipped up to it, and no further; None: no limit any more."""

    index: int | None


@dataclass(frozen=True, slots=True)
class Resume:
    """The training thread may go on from where it has paused, on parameters of this version, like everybody else.

    What was applied between the pause and this is to be applied in full: no step of the user's own belongs to it. So
    many iterations are passed over before the next one: then all are equally far.
    """

    version: int
    native: bool
    skip: int = 0


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The ranks can't go on together: the training thread ends with an error that says why."""

    reason: str


Action = Send | Reduce | Deliver | Fetch | Apply | Begin | PullState | SkipLimit | Resume | GiveUp
