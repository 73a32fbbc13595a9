"""What is known of a running job at the moment, for whoever acts on it: the advisor, the live view, metrics.

    watch = JobWatch(spool)             # starprof.serve.jobwatch
    watch.poll(now_s)                   # take in what is new
    watch.blames(now_s)                 # who is late: rank, host, since when, by how much, why, how long that holds
    watch.step_times()                  # own and whole step times of every rank over a recent window

What the advisor is doing it leaves in the spool (`ADVISOR_STATE`); the live view shows it.

Verdicts expire: one that no new step has renewed says nothing about now. Hosts are named beside ranks because a rank
moves to another machine when the job is started again, and the slowness stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from starprof.model.rundata import RankInfo

ADVISOR_STATE = "advisor.json"
"""JSON object in the spool, replaced as a whole: `phase`, `mode`, `predicted`, `measured`, `notes`."""

EXPIRES_S = 30.0
"""A verdict holds for this long after the newest step that it looked at."""

BlameStatus = Literal["provisional", "confirmed"]


@dataclass(frozen=True, slots=True)
class Blame:
    """One rank that is late now.

    Attributes:
        host: machine on which it runs, "" when not known.
        status: `provisional`, a one-off could still explain it; `confirmed`, the offline rules would accept it.
        onset_step: first late step.
        slowdown: the rank's own time over its peers'.
        lost_s: how much sooner the job would be where it is, were this rank alone on time.
        step_share: share of a healthy step that the rank is late by.
        cause: of `starprof.model.causes`; `unknown` until the counters have told.
        why: the cause's evidence in one line, "" when there is none.
        expires_s: CLOCK_MONOTONIC of the watching machine from which on this says nothing any more.
    """

    rank: int
    host: str
    status: BlameStatus
    onset_step: int
    slowdown: float
    lost_s: float
    step_share: float
    cause: str
    why: str
    expires_s: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A recent window of steps, rank by rank; NaN where there is no record.

    Attributes:
        ranks: row by row.
        steps: step numbers, shape (S,).
        own_us: what each rank needed for itself, shape (R, S).
        dur_us: the whole step as each rank saw it, shape (R, S).
        blocked_us: time in collectives, shape (R, S).
    """

    ranks: tuple[RankInfo, ...]
    steps: NDArray[np.int64]
    own_us: NDArray[np.float64]
    dur_us: NDArray[np.float64]
    blocked_us: NDArray[np.float64]
