"""The advisor for a trainer that synchronises by its own means: it asks, applies what it likes, and says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from starprof.advisor.events import NATIVE, Job, Loss, Move, Ranks, StepTime, Tick
from starprof.advisor.limits import Authority, Limits
from starprof.advisor.machine import Advisor
from starprof.model.rundata import RankInfo


class OwnTrainer:
    """Of one training; not for several threads at once.

    Attributes:
        advice: what should be done now; None: nothing. It stays until `applied` says what was done.
    """

    def __init__(
        self,
        world_size: int,
        on_advice: Callable[[Move], None] = lambda _advice: None,
        *,
        limits: Limits | None = None,
        hosts: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin in native steps.

        Args:
            world_size: number of ranks.
            on_advice: called with each advice, from `step`.
            limits: of what is advised.
            hosts: of the ranks, as far as they are on several.
            clock: seconds; never goes back.
        """
        self.advice: Move | None = None
        self._on_advice = on_advice
        self._clock = clock
        self._advisor = Advisor(Authority.APPLY, limits)
        names = hosts or ["localhost"] * world_size
        ranks = tuple(RankInfo(rank=r, node=0, host=names[r], local_rank=r) for r in range(world_size))
        self._hear(Ranks(ranks))
        self._hear(Job())

    def step(self, rank: int, step: int, own_s: float, blocked_s: float, *, busy_s: float = 0.0) -> None:
        """A rank has ended a step; see `StepTime`."""
        now_s = self._clock()
        self._hear(StepTime(rank, step, own_s, blocked_s, own_s + blocked_s + busy_s, now_s, busy_s))
        self._hear(Tick())

    def loss(self, value: float) -> None:
        """The training's loss."""
        finite = value - value == 0.0
        self._hear(Loss(loss=value if finite else None, finite=finite))

    def noise(self, low: float, high: float) -> None:
        """The gradient noise scale lies between these, in batches of one rank."""
        job = self._advisor.job or Job()
        self._hear(Job(job.mode, job.options, job.asked_by, noise=(low, high)))

    def applied(self, mode: str = NATIVE, options: Mapping[str, object] | None = None) -> None:
        """The training synchronises in this mode from now on."""
        self.advice = None
        noise = self._advisor.job.noise if self._advisor.job is not None else None
        self._hear(Job(mode, dict(options or {}), "advisor", noise=noise))

    def _hear(self, event: Ranks | Job | StepTime | Loss | Tick) -> None:
        for action in self._advisor.handle(event, self._clock()):
            if isinstance(action, Move):
                self.advice = action
                self._on_advice(action)
