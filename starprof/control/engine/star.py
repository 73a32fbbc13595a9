"""Small sums over the connections between ranks: all send to the first of them, which adds up and sends the sum back.

A ring of gloo's waits for one rank after the other, twice round; on cores that are busy each of these waits costs a
turn of the scheduler. Here there are two, and no set of ranks has to connect before it reduces for the first time. The
price is the traffic of the first rank, so only what is small goes this way.

What is sent and received are copies: when a sum is given up, its tensor is free for other things at once, while a part
of it may still be on its way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch

from starprof.control.engine.groups import LOOK_EVERY_S, REDUCE_S, SETTLE_S, Done, Members
from starprof.errors import TransportError

STAR_BYTES = 8 << 20
"""The first of the members receives and sends at most so much for a sum; a ring spreads what is larger."""
_PART, _SUM = b"part", b"sum"


class Sender(Protocol):
    """Sends numbers to another rank; see `Peers.send_numbers`."""

    def __call__(self, to: int, header: bytes, numbers: torch.Tensor, done: Callable[[], None]) -> None:
        """Returns at once; `done` is called when they are not needed any more."""
        ...


def fits(members: Members, tensor: torch.Tensor) -> bool:
    """Whether a sum is small enough: the same on all of its members."""
    return fits_bytes(members, _bytes(tensor))


def fits_bytes(members: Members, size: int) -> bool:
    """The same of a tensor of so many bytes."""
    return (len(members) - 1) * size <= STAR_BYTES


@dataclass(slots=True, eq=False)
class _Sum:
    """One that is not there yet; others' parts may be here before this rank knows of it."""

    since_s: float
    members: Members = ()
    tensor: torch.Tensor | None = None
    done: Done = lambda _complete: None
    parts: dict[int, torch.Tensor] = field(default_factory=dict)


class Star:
    """One rank's part in all such sums; every method may be called from any thread."""

    def __init__(self, rank: int, send: Sender) -> None:
        """Begin with none; `send` is used from the first sum on."""
        self._rank = rank
        self._send = send
        self._lock = threading.Lock()
        self._sums: dict[str, _Sum] = {}
        self._free: dict[int, list[torch.Tensor]] = {}
        self._sending = 0

    def reduce(self, members: Members, name: str, tensor: torch.Tensor, done: Done) -> None:
        """Sum a tensor of all members in place; returns at once.

        Args:
            members: who takes part, in order; the first adds up, in this order.
            name: of this sum, the same on all members and unique in the job.
            tensor: contiguous, on the CPU; must not be touched before `done`.
            done: called once, from any thread, with whether it has the sum.
        """
        with self._lock:
            known = self._sums.setdefault(name, _Sum(time.monotonic()))
            known.members, known.tensor, known.done = members, tensor, done
        if self._rank == members[0]:
            self._add_up(name)
        else:
            self._post(_PART, name, tensor, members[:1])

    def abandon(self, members: Members) -> None:
        """A member is lost: whatever these are adding up has failed."""
        self._fail(lambda known: known.tensor is not None and known.members == members)

    def look(self) -> None:
        """Give up what does not come; parts of what this rank was never told of go the same way."""
        oldest_s = time.monotonic() - REDUCE_S
        self._fail(lambda known: known.since_s < oldest_s)

    def settle(self, within_s: float = SETTLE_S) -> None:
        """Wait, not without end, until all is sent that others wait for."""
        until_s = time.monotonic() + within_s
        while self._sending and time.monotonic() < until_s:
            time.sleep(LOOK_EVERY_S)

    # What comes over connections.

    def room(self, header: bytes) -> torch.Tensor:
        """Where numbers go that come with this header.

        Raises:
            TransportError: there are more of them than any sum has.
        """
        size = int(header.split()[2])
        if not 0 < size <= STAR_BYTES:
            raise TransportError("numbers of an impossible size")
        return self._take(size)

    def came(self, rank: int, header: bytes, numbers: torch.Tensor) -> None:
        """Numbers of another rank are in what `room` gave."""
        kind, told, _ = header.split()
        name = told.decode()
        if kind == _SUM:
            self._summed(name, numbers)
            return
        with self._lock:
            self._sums.setdefault(name, _Sum(time.monotonic())).parts[rank] = numbers
        self._add_up(name)

    def give(self, numbers: torch.Tensor) -> None:
        """They are not needed any more."""
        with self._lock:
            self._free.setdefault(numbers.numel(), []).append(numbers)

    # Its parts.

    def _add_up(self, name: str) -> None:
        """Once all parts are here; always in the order of the members."""
        with self._lock:
            known = self._sums.get(name)
            if known is None or known.tensor is None or any(r not in known.parts for r in known.members[1:]):
                return
            del self._sums[name]
        parts = [known.parts[rank] for rank in known.members[1:]]
        fitting = all(part.numel() == _bytes(known.tensor) for part in parts)
        if fitting:
            for part in parts:
                known.tensor.add_(part.view(known.tensor.dtype))
            self._post(_SUM, name, known.tensor, known.members[1:])
        for part in known.parts.values():
            self.give(part)
        known.done(fitting)

    def _summed(self, name: str, numbers: torch.Tensor) -> None:
        with self._lock:
            known = self._sums.get(name)
            fitting = known is not None and known.tensor is not None and numbers.numel() == _bytes(known.tensor)
            if fitting:
                del self._sums[name]
        if fitting:
            assert known is not None
            assert known.tensor is not None
            known.tensor.copy_(numbers.view(known.tensor.dtype))
        self.give(numbers)
        if fitting:
            assert known is not None
            known.done(True)

    def _fail(self, hopeless: Callable[[_Sum], bool]) -> None:
        with self._lock:
            names = [name for name, known in self._sums.items() if hopeless(known)]
            failed = [self._sums.pop(name) for name in names]
        for known in failed:
            for part in known.parts.values():
                self.give(part)
            if known.tensor is not None:
                known.done(False)

    def _post(self, kind: bytes, name: str, tensor: torch.Tensor, ranks: Members) -> None:
        copy = self._take(_bytes(tensor))
        copy.view(tensor.dtype).copy_(tensor)
        header = b"%b %b %d" % (kind, name.encode(), copy.numel())
        left = list(ranks)
        with self._lock:
            self._sending += 1
        for rank in ranks:
            self._send(rank, header, copy, partial(self._sent, copy, left))

    def _sent(self, copy: torch.Tensor, left: list[int]) -> None:
        with self._lock:
            left.pop()
            over = not left
            self._sending -= over
        if over:
            self.give(copy)

    def _take(self, size: int) -> torch.Tensor:
        with self._lock:
            free = self._free.get(size)
            if free:
                return free.pop()
        return torch.empty(size, dtype=torch.uint8)


def _bytes(tensor: torch.Tensor) -> int:
    size: int = tensor.numel() * tensor.element_size()
    return size
