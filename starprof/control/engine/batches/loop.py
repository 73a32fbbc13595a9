"""The batches of a training loop: counted, and passed over where the loop has missed iterations."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from types import FrameType
from typing import Any

from starprof.control.engine.batches import loaders
from starprof.control.engine.batches.passing import Plan, plan
from starprof.control.engine.batches.source import NOBODY, Pass, Source
from starprof.control.engine.batches.stepping import Stepping
from starprof.hook import steps
from starprof.hook.boundary import Guard


@dataclass(frozen=True, slots=True)
class Tally:
    """What a rank has used of its share of the data.

    Attributes:
        executed: iterations that ended in a synchronisation.
        skipped: iterations passed over.
        loaded_skips: batches that were loaded and then passed over.
    """

    executed: int = 0
    skipped: int = 0
    loaded_skips: int = 0

    @property
    def iterations(self) -> int:
        """Of both kinds."""
        return self.executed + self.skipped

    @property
    def coverage(self) -> float:
        """Share of the batches so far that were trained on, 1 at the beginning."""
        return self.executed / self.iterations if self.iterations else 1.0

    def __sub__(self, earlier: Tally) -> Tally:
        return Tally(
            self.executed - earlier.executed,
            self.skipped - earlier.skipped,
            self.loaded_skips - earlier.loaded_skips,
        )


class Batches:
    """One per process; everything but `install` is called in the thread that trains.

    An epoch ends with the pass over a source of the training loop. A loop that is left early (`break`) can't be seen:
    it shows when the same loader is read from again, and if that never happens, at the end of the process.

    Attributes:
        on_fetch: called with the frame that has fetched a batch of a loader.
        on_epoch_end: called before the `StopIteration` that ends an epoch leaves to the user.
        abandoned: called when the same loader is read from anew though its last pass had not come to its end; before
            the first batch.
        epoch: epochs that are over.
        executed: iterations that ended in a synchronisation.
        loaded_skips: batches that had to be loaded to be passed over.
        thread: the thread that trains, NOBODY in a forked child.
        within: the `starprof.steps` that is drawing an item.
    """

    def __init__(self) -> None:
        self.on_fetch: Callable[[FrameType], None] | None = None
        self.on_epoch_end: Callable[[], None] | None = None
        self.abandoned: Callable[[], None] | None = None
        self.loaders = loaders.Loaders()
        self.steps = Source(self)
        self._guard = Guard()
        self._forget_everything()
        self.thread = get_ident()

    def _forget_everything(self) -> None:
        self.thread = NOBODY
        self.epoch = 0
        self.executed = 0
        self.loaded_skips = 0
        self.within: Source | None = None
        self._sources = [self.steps]
        self._training: list[Source] = []
        self._ordered = 0
        # Iterations to pass over while no source is known that they could be passed over in.
        self._unplaced = 0
        self._closed_at = 0
        self._before_epoch = Tally()

    def install(self, guard: Guard) -> None:
        """Patch torch's data loaders and take part in `starprof.steps`; once per process."""
        self._guard = guard
        loaders.patch(self, guard)
        steps.taker = lambda items, start: Stepping(self, guard, items, start)
        own = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forked(own))

    # What the engine tells and asks.

    def mark_sync(self) -> None:
        """A synchronisation of the ranks, called by the thread that trains: the iteration is over."""
        self.thread = get_ident()
        self.executed += 1
        owed = max((source.outstanding for source in self._training), default=0)
        for source in self._sources:
            if source.others and not source.fetched and source.candidate is not None:
                # The pass that it was in still exists somewhere, but the loop has left it.
                fetched = source.others
                source.begin(source.candidate)
                source.fetched = fetched
            source.synchronised()
        self._assign_roles(owed)

    def _assign_roles(self, owed: int) -> None:
        training = [source for source in self._sources if source.steady]
        if training == self._training:
            return
        for source in self._training:
            if source not in training:
                source.owe(0)
        if not training:
            self._unplaced = max(self._unplaced, owed)
        for source in training:
            if source not in self._training:
                # One that `starprof.steps` reads from takes over what is due there.
                carried = owed if self.steps in training and source in self.steps.inner else 0
                source.owe(max(self._unplaced, carried))
        if training:
            self._unplaced = 0
        self._training = training

    def skip(self, iterations: int) -> None:
        """Before its next fetch, the loop passes over that many more iterations.

        What the epoch has no room for is left over to the next one, and is passed over there after the first iteration:
        until then nobody knows whether the loop trains on what it reads.
        """
        if iterations <= 0:
            return
        self._ordered += iterations
        if not self._training:
            self._unplaced += iterations
        for source in self._training:
            source.owe_more(iterations)

    def forget(self) -> None:
        """Do not pass over what is left over: from now on it counts as passed over."""
        self._unplaced = 0
        for source in self._training:
            source.owe(0)

    @property
    def left_over(self) -> int:
        """Iterations that are still to be passed over: before the next fetch, or because the epoch has ended."""
        return self._unplaced + max((source.outstanding for source in self._payers()), default=0)

    @property
    def skipped(self) -> int:
        """Iterations passed over."""
        return self._ordered - self.left_over

    @property
    def iterations(self) -> int:
        """Iterations of the loop so far, those passed over included."""
        return self.executed + self.skipped

    @property
    def total(self) -> Tally:
        """Everything so far."""
        return Tally(self.executed, self.skipped, self.loaded_skips)

    @property
    def this_epoch(self) -> Tally:
        """The same of the epoch, until `on_epoch_end` or `abandoned` has returned."""
        return self.total - self._before_epoch

    @property
    def per_sync(self) -> int:
        """Batches per synchronisation, 0 while they are not known; of the first loader where there are several."""
        return next((source.per_sync for source in self._payers()), 0)

    @property
    def refusal(self) -> str | None:
        """Why batches can't be passed over, None if they can."""
        if self._training:
            return None
        varied = next((source.varied for source in self._sources if source.varied), None)
        if varied is not None:
            return f"the batches per synchronisation vary: {varied[0]}, then {varied[1]}"
        if not any(source.per_sync for source in self._sources):
            return (
                "between synchronisations the training thread reads from no DataLoader and no starprof.steps"
                if self.executed
                else "no step has synchronised yet"
            )
        return "too few steps seen to know which batches make one, or the batches per synchronisation vary"

    # What the sources tell and ask.

    def plan(self, iterator: Any, batches: int) -> Plan:
        """How to pass over batches of a loader."""
        payers = self._payers()
        if len(payers) <= 1:
            return plan(iterator, batches, in_step=False)
        layouts = {(source.per_sync, source.layout) for source in payers}
        alike = len(layouts) == 1 and payers[0].layout is not None
        return plan(iterator, batches, in_step=not alike)

    def _payers(self) -> list[Source]:
        return [source for source in self._training if not self.is_carried(source)]

    def is_carried(self, source: Source) -> bool:
        """Whether another source of the training loop is read from inside of it, and does the passing over."""
        return any(inner in self._training for inner in source.inner)

    def follow(self, source: Source) -> int:
        """Items that the sources inside have passed over in its place."""
        owed = [inner.outstanding for inner in source.inner if inner in self._training]
        if not owed:
            return 0
        left = min(source.debt, max(owed) * source.per_sync)
        jumped = source.debt - left
        source.debt = left
        return jumped

    def _know(self, source: Source) -> None:
        if source not in self._sources:
            gone = [old for old in self._sources if old.gone and old not in self._training]
            self.steps.inner.difference_update(gone)
            self._sources = [old for old in self._sources if old not in gone] + [source]

    def turn_to(self, visit: Pass) -> bool:
        """A batch is to be fetched in a pass that is not the current one; whether it is from now on."""
        source = visit.source
        if visit.ended or visit.dropped:
            return False
        current = source.current
        if current is not None and current.alive:
            # A look at the data beside the loop.
            source.candidate = visit
            source.others += 1
            return False
        if current is not None and not current.ended and self._trains(source):
            self._close_epoch(self.abandoned)
        self._know(source)
        source.begin(visit)
        return True

    def came_to_end(self, visit: Pass) -> None:
        """A pass is over, and `StopIteration` about to leave."""
        source = visit.source
        trains = not visit.ended and self._trains(source)
        visit.ended = True
        if source.current is visit:
            source.end()
        if trains:
            payers = self._payers()
            for other in payers:
                if source in payers and other is not source:
                    other.keep(source.outstanding)
            self._close_epoch(self.on_epoch_end)

    def _trains(self, source: Source) -> bool:
        """Whether it is a source of the training loop, as far as that can be told."""
        if source in self._training:
            return True
        alive = any(known.current is not None and known.current.alive for known in self._training)
        return source.at_sync and not alive

    def _close_epoch(self, tell: Callable[[], None] | None) -> None:
        """An epoch is over, unless another source of the same loop has already said so."""
        if self.iterations == self._closed_at:
            return
        if tell is not None:
            self._guard.attempt(tell)
        self.epoch += 1
        self._closed_at = self.iterations
        self._before_epoch = self.total


def _forked(own: weakref.ref[Batches]) -> None:
    """A child's loaders are nobody's business; it shares the thread's number."""
    steps.taker = None
    batches = own()
    if batches is not None:
        batches._forget_everything()
        batches.on_fetch = batches.on_epoch_end = batches.abandoned = None
