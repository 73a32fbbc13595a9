"""Makes the updates that closed rounds stand for, as the user's loop would make them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch.nn import Parameter

from starprof.control.engine.flat import Flat
from starprof.control.engine.gradients import Gradients
from starprof.control.engine.ownsteps import OwnSteps
from starprof.control.engine.pace import Pace
from starprof.control.engine.roles import Updates
from starprof.sync.protocol.messages import Close


class Maker:
    """One rank's; used by the training thread, which alone touches parameters."""

    def __init__(
        self, gradients: Gradients, updates: Updates, own: OwnSteps, pace: Pace, result: Callable[[int], Flat]
    ) -> None:
        """Make updates of this model.

        Args:
            gradients: of the model.
            updates: how to make one.
            own: steps of this rank's own, which a mean of states ends.
            pace: what is made is counted there.
            result: of a round, which is here.
        """
        self._gradients = gradients
        self._updates = updates
        self._own = own
        self._pace = pace
        self._result = result

    def before_own_step(self, closes: list[Close]) -> None:
        """Make updates in order; the last one is left to the user's loop, which stands before its own."""
        rounds = [close for close in closes if close.gradients]
        own = rounds.pop() if rounds and not rounds[-1].steps else None
        for close in rounds:
            self._make(close)
        if own is None:
            self._pace.counts.without_update += 1
            self._updates.skip_own()
        else:
            self._leave(own)
        self._turn(closes)

    def between_steps(self, closes: list[Close]) -> None:
        """Make all updates in order; the loop's own gradients stay what they are."""
        with _set_aside(self._gradients.parameters):
            for close in closes:
                if close.gradients:
                    self._make(close)
        self._turn(closes)

    def _make(self, close: Close) -> None:
        flat, counts = self._result(close.round), self._pace.counts
        counts.updates += 1
        if close.steps:
            self._own.put(flat, close)
            counts.progress += close.steps
            return
        put = partial(self._gradients.put, flat, self._updates.scale())
        paced = self._pace.advance(sum(close.weights))
        self._updates.replay(put, json.loads(flat.settings), paced=paced)
        counts.replayed += 1

    def _leave(self, close: Close) -> None:
        flat = self._result(close.round)
        self._pace.counts.updates += 1
        paced = self._pace.advance(sum(close.weights))
        self._gradients.put(flat, self._updates.scale())
        self._updates.own(json.loads(flat.settings), paced=paced)

    def _turn(self, closes: list[Close]) -> None:
        for close in closes:
            self._own.turn(close.local, close.round + 1)


@contextmanager
def _set_aside(parameters: Sequence[Parameter]) -> Iterator[None]:
    """What updates leave in the gradients is none of the loop's, whose next backward pass would add to it."""
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient
