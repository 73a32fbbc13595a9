"""Drives a model of islands: as any other, but all ranks of an island decide alike."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from starprof.control.engine.driver import RankDriver
from starprof.control.engine.island.refusals import reasons
from starprof.control.engine.island.topology import Island
from starprof.control.engine.jobstore import value_of
from starprof.errors import TransportError

ANSWER_S = 10.0
"""Ranks of an island come to the same question at the end of the same step."""
YES, LATER, NO = "yes", "later", "no"


class IslandDriver(RankDriver):
    """See `RankDriver`.

    Attributes:
        island: of this rank.
        ask: says this rank's answer to a question, by its number, and returns those of all ranks of the island.
    """

    island: Island
    ask: Callable[[int, str], list[str]]

    def _judged(self) -> list[str] | None:
        """Rounds are possible where all ranks of the island find so."""
        own = super()._judged()
        answers = self.ask(self.seen.synchronisations, LATER if own is None else NO if own else YES)
        if own:
            return own
        if NO in answers:
            return ["another rank of its island stays with native steps"]
        return None if LATER in answers else own

    def _reasons(self) -> list[str]:
        return reasons(self.model, self.updating.optimizers, self.seen)


def asker(place: str, island: Island) -> Callable[[int, str], list[str]]:
    """Questions among the ranks of an island by the job's store; who does not answer in time is taken to say no.

    Args:
        place: of the answers in the store.
        island: of this rank.
    """
    mine = island.ranks[island.position]

    def ask(number: int, answer: str) -> list[str]:
        keys = [f"{number}/{rank}" for rank in island.ranks]
        try:
            store = dist.PrefixStore(place, dist.distributed_c10d._get_default_store())
            store.set(f"{number}/{mine}", answer)
            return [value_of(store, key, ANSWER_S) for key in keys]
        except (RuntimeError, TransportError):  # torch's stores have no narrower type
            return [NO]

    return ask
