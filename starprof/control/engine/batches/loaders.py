"""The fetches of torch's data loaders: seen, and passed over where the loop has missed batches.

Patched on the class, as the recorder's are, in either order. The pass that an iterator makes is kept on the iterator,
never on the loader: loaders are pickled, and sent to workers.
"""

from __future__ import annotations

import functools
import sys
from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch.compiler import is_dynamo_compiling
from torch.utils.data.dataloader import _BaseDataLoaderIter

from starprof.control.engine.batches.passing import layout, pass_over
from starprof.control.engine.batches.source import NOBODY, Pass, Source
from starprof.hook.boundary import Guard

if TYPE_CHECKING:
    from starprof.control.engine.batches.loop import Batches

_VISIT = "_starprof_visit"


class Loaders:
    """The sources that are data loaders."""

    def __init__(self) -> None:
        # By identity: a loader need not be hashable.
        self._known: dict[int, Source] = {}

    def begin(self, iterator: Any, loader: Any) -> Pass:
        """An iterator begins a pass over a loader."""
        source = self._known.get(id(loader))
        if source is None or not source.belongs_to(loader):
            for key, known in list(self._known.items()):
                if known.gone:
                    self._known.pop(key, None)
            source = self._known[id(loader)] = Source(loader)
        former = getattr(iterator, _VISIT, None)
        if former is not None:
            former.dropped = True
        source.layout = layout(loader)
        source.newest = Pass(source, iterator)
        setattr(iterator, _VISIT, source.newest)
        return source.newest


def patch(batches: Batches, guard: Guard) -> None:
    """See every iterator that a loader makes, and what is fetched from it."""
    loaders = batches.loaders

    def started(iterator_and_loader: tuple[Any, Any], _result: None) -> None:
        loaders.begin(*iterator_and_loader)

    def making(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        if batches.thread == NOBODY:
            return None
        return args[0], args[1] if len(args) > 1 else kwargs["loader"]

    def starting_again(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        first = args[2] if len(args) > 2 else kwargs.get("first_iter", False)
        return None if first else making(args, kwargs)

    _BaseDataLoaderIter.__init__ = guard.around(_BaseDataLoaderIter.__init__, making, started)
    _BaseDataLoaderIter._reset = guard.around(_BaseDataLoaderIter._reset, starting_again, started)
    _BaseDataLoaderIter.__next__ = _fetching(_BaseDataLoaderIter.__next__, batches, guard)


def _fetching(original: Any, batches: Batches, guard: Guard) -> Any:
    """`__next__`: usually three comparisons and three assignments more than torch's own."""

    @functools.wraps(original)
    def fetch(iterator: Any) -> Any:
        if is_dynamo_compiling():
            return original(iterator)
        if get_ident() != batches.thread or (guard.special and guard.off):
            return original(iterator)
        visit = iterator.__dict__.get(_VISIT)
        if visit is None:
            # It was there before us: nobody knows of which loader.
            visit = guard.attempt(batches.loaders.begin, iterator, iterator)
            if visit is None:
                return original(iterator)
        source = visit.source
        if source.current is not visit and not guard.attempt(batches.turn_to, visit):
            return original(iterator)
        if source.debt and visit.trained:
            _pay(iterator, source, batches, guard)
        try:
            batch = original(iterator)
        except StopIteration:
            guard.attempt(batches.came_to_end, visit)
            raise
        source.fetched += 1
        if batches.within is not None:
            batches.within.inner.add(source)
        if batches.on_fetch is not None:
            guard.attempt(batches.on_fetch, sys._getframe(1))
        return batch

    return fetch


def _pay(iterator: Any, source: Source, batches: Batches, guard: Guard) -> None:
    """Pass over what is due. Only what the user's own parts raise can come out of here."""
    due = source.debt
    planned = guard.attempt(batches.plan, iterator, due)
    if planned is None:
        return
    for loaded in pass_over(planned, due):
        source.debt -= 1
        batches.loaded_skips += loaded
        # The loader's own count of its epoch: it warns of more batches than an iterable dataset has promised.
        iterator._num_yielded += 1
