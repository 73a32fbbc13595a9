"""`starprof.steps` under control: counted like a loader, and passed over where the loop has missed iterations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch.compiler import is_dynamo_compiling
from torch.utils.data import Sampler

from starprof.control.engine.batches.source import Pass
from starprof.hook.boundary import Guard

if TYPE_CHECKING:
    from starprof.control.engine.batches.loop import Batches


class _ByIndex:
    """Iterates over what can be asked for any of its items, as Python itself does, and can jump."""

    def __init__(self, items: Any) -> None:
        self._items = items
        self._next = 0

    def __iter__(self) -> _ByIndex:
        return self

    def __next__(self) -> Any:
        try:
            item = self._items[self._next]
        except IndexError:
            raise StopIteration from None
        self._next += 1
        return item

    def jump(self, items: int) -> int:
        """Pass over that many, as far as there are; returns how many."""
        jumped = max(0, min(items, len(self._items) - self._next))
        self._next += jumped
        return jumped


def _iterate(items: Iterable[Any]) -> Iterator[Any]:
    """By index where Python's own iteration asks for one item after the other by its index."""
    kind = type(items)
    if kind in (range, list, tuple) or getattr(kind, "__iter__", None) is Sequence.__iter__:
        return _ByIndex(items)
    if not hasattr(kind, "__iter__") and hasattr(kind, "__getitem__") and hasattr(kind, "__len__"):
        return _ByIndex(items)
    return iter(items)


class Stepping:
    """The iterator over `starprof.steps`: (iteration, item).

    The iteration counts what was passed over too, so it is the same on all ranks where their loops meet.
    """

    __slots__ = ("__weakref__", "_batches", "_costs_nothing", "_guard", "_index", "_items", "_visit")

    def __init__(self, batches: Batches, guard: Guard, items: Iterable[Any], start: int) -> None:
        self._batches = batches
        self._guard = guard
        self._items = _iterate(items)
        self._costs_nothing = isinstance(items, Sampler)
        self._index = start
        self._visit = batches.steps.newest = Pass(batches.steps, self)

    def __iter__(self) -> Stepping:
        return self

    def __next__(self) -> tuple[int, Any]:
        batches, visit = self._batches, self._visit
        if is_dynamo_compiling() or get_ident() != batches.thread or (self._guard.special and self._guard.off):
            return self._plain()
        source = visit.source
        if source.current is not visit and not self._guard.attempt(batches.turn_to, visit):
            return self._plain()
        if source.debt and visit.trained and not batches.is_carried(source):
            self._pay()
        outer, batches.within = batches.within, source
        try:
            item = next(self._items)
        except StopIteration:
            self._follow()
            self._guard.attempt(batches.came_to_end, visit)
            raise
        finally:
            batches.within = outer
        if source.debt:
            self._follow()
        source.fetched += 1
        index = self._index
        self._index += 1
        return index, item

    def _plain(self) -> tuple[int, Any]:
        item = next(self._items)
        self._index += 1
        return self._index - 1, item

    def _pay(self) -> None:
        """Pass over what is due. Only what the user's iterable raises can come out of here."""
        source = self._visit.source
        if isinstance(self._items, _ByIndex):
            jumped = self._guard.attempt(self._items.jump, source.debt) or 0
            source.debt -= jumped
            self._index += jumped
            return
        for _ in self._drop(source.debt):
            source.debt -= 1
            self._index += 1
            self._batches.loaded_skips += not self._costs_nothing

    def _drop(self, items: int) -> Iterator[None]:
        """Draw that many and drop them, as far as there are. One that can't be drawn counts: it is used up."""
        for _ in range(items):
            try:
                next(self._items)
            except StopIteration:
                return
            except Exception:
                yield
                raise
            yield

    def _follow(self) -> None:
        """The loader that is read from inside has passed over what was due: the count goes with it."""
        jumped = self._guard.attempt(self._batches.follow, self._visit.source)
        self._index += jumped or 0
