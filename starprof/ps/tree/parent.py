"""A parent: takes its children's gradients in a thread of its own, and adds them to its worker's."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from starprof.control.engine.peers import bytes_of
from starprof.errors import TransportError
from starprof.ps.tree.speech import ALONE, GRADIENT, HERE, PARENT, SENT, heard, number_heard, number_told
from starprof.ps.wire import Head, Hub, Limits, Line, listen
from starprof.sync.policies import Gradient

MOST_CHILDREN = 64
STALL_S = 10.0


@dataclass(eq=False)
class _Place:
    """One child's: its line, and where its gradients go, one at a time."""

    rank: int
    line: Line
    numbers: torch.Tensor
    here: Gradient | None = None
    taken: bool = False
    view: memoryview = field(init=False)

    def __post_init__(self) -> None:
        self.view = bytes_of(self.numbers)


class Parent:
    """One worker's; `collect`, `sent`, `failed` and `close` are for its training's thread.

    Attributes:
        refused: gradients that were sent back to their child, too late or of other parameters.
    """

    def __init__(
        self, secret: bytes, numbers: int, dtype: torch.dtype = torch.float32, host: str = "127.0.0.1"
    ) -> None:
        """Listen; gradients have so many numbers of this type."""
        self.refused = 0
        self._size = numbers
        self._dtype = dtype
        self._children: dict[int, _Place] = {}
        self._expected: frozenset[int] = frozenset()
        self._version = -1
        self._over = -1
        self._news = threading.Condition()
        size_bytes = numbers * dtype.itemsize
        limits = Limits(payload_bytes=size_bytes, lines=MOST_CHILDREN, queued=8, stall_s=STALL_S)
        self._hub = Hub(listen(host), secret, self, limits=limits, service=PARENT)
        self._size_bytes = size_bytes
        self._thread = threading.Thread(target=self._hub.run, name="starprof-ps-parent", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self._hub.address

    def expect(self, children: Iterable[int]) -> None:
        """Whose gradients belong into the sum from now on; all others are sent back."""
        with self._news:
            self._expected = frozenset(children)
            self._news.notify_all()

    def collect(self, version: int, total: torch.Tensor, wait_s: float) -> tuple[Gradient, ...]:
        """Add to this worker's gradient what its children have handed in.

        Args:
            version: of the parameters that all of them were computed on.
            total: this worker's own gradient at first, the sum afterwards.
            wait_s: for children that are connected and still compute.

        Returns:
            The children's gradients that are in the sum, by rank; the children wait for `sent` or `failed`.
        """
        until_s = time.monotonic() + wait_s
        with self._news:
            self._version = version
            while not self._complete(version) and (left_s := until_s - time.monotonic()) > 0.0:
                self._news.wait(left_s)
            self._over = version
            for place in self._children.values():
                place.taken = place.rank in self._expected and place.here is not None and place.here.version == version
            taken = sorted((place for place in self._children.values() if place.taken), key=lambda place: place.rank)
            found = tuple(place.here for place in taken if place.here is not None)
        for place in taken:  # nobody writes there until it is answered
            total.add_(place.numbers)
        self._hub.call(self._send_back)
        return found

    def sent(self) -> None:
        """The sum of the last `collect` is at the server, and its contributors are told."""
        self._hub.call(lambda: self._answer(SENT))

    def failed(self) -> None:
        """It is not, and won't be: the children have to send for themselves."""
        self._hub.call(lambda: self._answer(ALONE))

    def close(self) -> None:
        """End; children send for themselves from now on."""
        self._hub.stop()
        self._thread.join(STALL_S)

    def _complete(self, version: int) -> bool:
        """Whether all children that are there have handed theirs in."""
        return all(
            place.here is not None and place.here.version == version
            for place in self._children.values()
            if place.rank in self._expected
        )

    # In the hub's thread.

    def _answer(self, kind: int) -> None:
        with self._news:
            places = [place for place in self._children.values() if place.taken]
            gradients = [place.here for place in places]
            for place in places:
                place.here, place.taken = None, False
        for place, gradient in zip(places, gradients, strict=True):
            if gradient is not None:
                place.line.send(kind, number_told(gradient.number))

    def _send_back(self) -> None:
        """What is in no sum, and will be in none."""
        with self._news:
            places = [p for p in self._children.values() if p.here is not None and not p.taken and self._late(p)]
            gradients = [place.here for place in places]
            for place in places:
                place.here = None
        for place, gradient in zip(places, gradients, strict=True):
            if gradient is not None:
                self.refused += 1
                place.line.send(ALONE, number_told(gradient.number))

    def _late(self, place: _Place) -> bool:
        gradient = place.here
        return gradient is not None and (place.rank not in self._expected or gradient.version <= self._over)

    def joined(self, line: Line) -> None:
        """See `Owner`."""

    def room(self, line: Line, head: Head) -> memoryview | None:
        """The child's place, unless what is there is being added."""
        place = line.data
        if head.kind != GRADIENT or not isinstance(place, _Place) or place.here is not None:
            raise TransportError("a child said something that is not its turn")
        if head.payload_bytes != self._size_bytes or heard(head.header).worker != place.rank:
            raise TransportError("a child's gradient is none of this model, or not its own")
        return place.view

    def came(self, line: Line, head: Head, payload: memoryview | None) -> None:
        """A child is there, or its gradient."""
        if head.kind == HERE and line.data is None:
            self._met(line, number_heard(head.header))
            return
        if payload is None:
            raise TransportError("a child's gradient has no numbers")
        with self._news:
            line.data.here = heard(head.header)
            self._news.notify_all()
        self._send_back()

    def _met(self, line: Line, rank: int) -> None:
        place = _Place(rank, line, torch.empty(self._size, dtype=self._dtype))
        line.data = place
        with self._news:
            former = self._children.get(rank)
            self._children[rank] = place
        if former is not None:
            former.line.end("its child has connected anew")

    def lost(self, line: Line, why: str) -> None:  # noqa: ARG002
        """A child is gone; what is whole of it and in the sum stays there."""
        place = line.data
        with self._news:
            if isinstance(place, _Place) and self._children.get(place.rank) is place:
                del self._children[place.rank]
            self._news.notify_all()
