"""A shard without its connections: gradients come, entries are done in order, and nothing that was done gets lost.

An update is done in this order: the weighted sum of its gradients goes into a place of the arena; one line in the log
says so; then torch's optimizer steps. After a kill in between, the line has it step again from the last snapshot, with
the same sum: the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from starprof.errors import SpoolError, TransportError
from starprof.ps.messages import WORDS, Entry, Push, Seen
from starprof.ps.optimizers import ShardOptimizer
from starprof.ps.shard.arena import Arena
from starprof.ps.shard.store import Store
from starprof.ps.spec import HALVES, Spec, spread
from starprof.sync.policies import Gradient

KEPT_SUMS = 8
"""Updates from one snapshot to the next: each keeps a sum of the shard's size."""

SLOTS = 512
"""Gradients and sums at most; a worker whose gradient has no room has to try again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an entry.

    Attributes:
        entry: that was done.
        square: the squared norm of its update, if it is to be clipped and the others' parts are not known yet; then the
            entry is not done.
    """

    entry: Entry
    square: float | None = None


class Core:
    """See the module.

    Attributes:
        spec: the whole model.
        shard: which one this is.
        shards: of how many.
        next: serial of the next entry.
        version: of the parameters.
        ready: the initial parameters are here.
        released: of each worker, the number that it was last released from.
        tail: entries from the head's floor on.
    """

    def __init__(self, folder: Path, spec: Spec, shard: int, shards: int, *, to_disk: bool = False) -> None:
        """Begin, or go on from what is in the folder."""
        self.spec, self.shard, self.shards = spec, shard, shards
        self.places = spread(spec.sizes, shards)[shard]
        self._dtype = getattr(torch, spec.dtype)
        self._sizes = [spec.sizes[place] for place in self.places]
        self.size = sum(self._sizes)
        self.size_bytes = self.size * spec.number_bytes
        self.store = Store(folder, to_disk=to_disk)
        self.arena = Arena(folder / "arena", self.size_bytes, SLOTS)
        self.next = self.version = 0
        self.ready = False
        self.released: dict[int, int] = {}
        self.tail: dict[int, Seen] = {}
        self.flat = torch.zeros(self.size, dtype=self._dtype)
        self._lent = 0
        self._spare: list[torch.Tensor] = []
        self._optimizer = ShardOptimizer(spec, self.places, [part.clone() for part in self._parts(self.flat)])
        self._point()
        self._others: dict[int, list[Any]] = {}
        self._coming: dict[int, int] = {}
        self._settled: dict[int, int] = {}
        self._slots: dict[tuple[int, int], int] = {}
        self._sums: list[int] = []
        self._waiting: dict[int, Entry] = {}
        self._halfway: tuple[Entry, int | None, list[int], float] | None = None
        self._recover()

    # Parameters.

    def _parts(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        begin = 0
        for place, size in zip(self.places, self._sizes, strict=True):
            yield flat[begin : begin + size].view(self.spec.shapes[place])
            begin += size

    def _point(self) -> None:
        """The optimizer's parameters are parts of `flat`."""
        for one, part in zip(self._optimizer.tensors, self._parts(self.flat), strict=True):
            one.data = part

    def lend(self) -> tuple[memoryview, Callable[[], None]]:
        """The parameters' bytes, which stay as they are until what is returned with them is called."""
        lent = self.flat
        self._lent += 1

        def back() -> None:
            if lent is self.flat:
                self._lent -= 1
                return
            others = self._others[id(lent)]
            others[1] -= 1
            if not others[1]:
                del self._others[id(lent)]
                self._spare.append(lent)

        return _bytes(lent), back

    def _write_apart(self) -> None:
        """Who still gets the parameters gets them as they are; they are changed in other memory."""
        if not self._lent:
            return
        other = self._spare.pop() if self._spare else torch.empty_like(self.flat)
        other.copy_(self.flat)
        self._others[id(self.flat)] = [self.flat, self._lent]
        self.flat, self._lent = other, 0
        self._point()

    def first(self) -> memoryview:
        """Where the initial parameters go; `begin` when they are there."""
        return _bytes(self.flat)

    def begin(self) -> None:
        """The initial parameters are there."""
        self.ready = True
        self._snapshot()

    # Gradients.

    def room(self, push: Push, size: int) -> memoryview | None:
        """Where the bytes of a gradient go; None: it is not needed.

        Raises:
            TransportError: there is no room, or it has not the size of one.
        """
        number_bytes = 2 if push.half else self.spec.number_bytes
        if push.half not in ("", *HALVES) or size != self.size * number_bytes:
            raise TransportError("a gradient has not the size of this shard")
        if any(not 0 <= place < len(self.places) for place in push.unused):
            raise TransportError("a gradient leaves out a parameter that is not here")
        if not self.ready or self.knows(push.gradient.worker, push.gradient.number):
            return None
        slot = self.arena.take()
        if slot is None:
            raise TransportError("there is no room for another gradient")
        self._coming[push.gradient.worker] = slot
        return self.arena.view(slot, size)

    def came(self, push: Push) -> None:
        """The bytes of a gradient are where `room` has said."""
        gradient = push.gradient
        slot = self._coming.pop(gradient.worker)
        told = [gradient.worker, gradient.number, gradient.version, gradient.samples, push.half, list(push.unused)]
        self.arena.fill(slot, told)
        self._slots[gradient.worker, gradient.number] = slot

    def broke_off(self, worker: int) -> None:
        """A worker's connection has ended, maybe within a gradient."""
        slot = self._coming.pop(worker, None)
        if slot is not None:
            self.arena.free(slot)

    def knows(self, worker: int, number: int) -> bool:
        """Whether a gradient is here, or not needed any more."""
        return (worker, number) in self._slots or number <= self._settled.get(worker, -1)

    @property
    def settled(self) -> dict[int, int]:
        """Of each worker, its newest gradient that was used, dropped, or released from."""
        return self._settled

    @property
    def holds(self) -> tuple[Gradient, ...]:
        """Gradients that are here."""
        told = dict(self.arena.filled)
        return tuple(Gradient(*told[slot][:4]) for slot in self._slots.values())

    # Entries.

    def add(self, entry: Entry) -> None:
        """The head has written another entry."""
        if entry.serial >= self.next:
            self._waiting[entry.serial] = entry
            self.tail.setdefault(entry.serial, Seen(entry, -1.0))
        self.tail = {serial: seen for serial, seen in self.tail.items() if serial >= entry.floor}

    def advance(self) -> Iterator[Outcome]:
        """Do what can be done, entry by entry."""
        while self._halfway is None and (entry := self._waiting.get(self.next)) is not None:
            if any((part.worker, part.number) not in self._slots for part in entry.parts):
                return  # its worker has yet to hand it to this process: it holds it until it is released
            slot, unused = self._summed(entry)
            if entry.clip and slot is not None:
                square = _square(self._sum(slot))
                self._halfway = entry, slot, unused, square
                self.tail[entry.serial] = Seen(entry, square)
                yield Outcome(entry, square)
                return
            self._finish(entry, slot, unused, 1.0, -1.0)
            yield Outcome(entry)

    def asked_square(self) -> tuple[int, float] | None:
        """An entry that waits for the norm of all shards, and the square of this one's."""
        return None if self._halfway is None else (self._halfway[0].serial, self._halfway[3])

    def factor(self, serial: int, factor: float) -> Outcome | None:
        """What the gradient of an entry is to be multiplied with; None: it is done already."""
        if self._halfway is None or self._halfway[0].serial != serial:
            return None
        entry, slot, unused, square = self._halfway
        self._halfway = None
        self._finish(entry, slot, unused, factor, square)
        return Outcome(entry)

    def _finish(self, entry: Entry, slot: int | None, unused: list[int], factor: float, square: float) -> None:
        if self.store.to_disk and slot is not None:
            self.arena.sync()
        line = {
            "entry": WORDS.encode(entry).decode(),
            "sum": slot,
            "unused": unused,
            "factor": factor,
            "square": square,
        }
        self.store.append(line)
        self._do(entry, slot, unused, factor, square)
        if len(self._sums) >= KEPT_SUMS:
            self._snapshot()

    def _do(self, entry: Entry, slot: int | None, unused: Sequence[int], factor: float, square: float) -> None:
        self._waiting.pop(entry.serial, None)
        if slot is not None:
            self._step(entry, slot, unused, factor)
            self._sums.append(slot)
        for worker, number in (*entry.used, *((one.worker, one.number) for one in entry.release)):
            self._settled[worker] = max(self._settled.get(worker, -1), number)
        for worker, number in entry.used:
            self._free(worker, number)
        for gone in entry.forget:
            for worker, number in [key for key in self._slots if key[0] == gone.worker and key[1] < gone.number]:
                self._free(worker, number)
        for one in entry.release:
            self.released[one.worker] = one.number
        self.version, self.next = entry.after, entry.serial + 1
        self.tail[entry.serial] = Seen(entry, square)
        self.tail = {serial: seen for serial, seen in self.tail.items() if serial >= entry.floor}

    def _step(self, entry: Entry, slot: int, unused: Sequence[int], factor: float) -> None:
        self._write_apart()
        total = self._sum(slot)
        if factor != 1.0:
            total = total * factor
        left_out = set(unused)
        for place, (one, part) in enumerate(zip(self._optimizer.tensors, self._parts(total), strict=True)):
            one.grad = None if place in left_out else part
        self._optimizer.step(entry.hyper)
        for one in self._optimizer.tensors:
            one.grad = None

    def _free(self, worker: int, number: int) -> None:
        slot = self._slots.pop((worker, number), None)
        if slot is not None:
            self.arena.free(slot)

    def _sum(self, slot: int) -> torch.Tensor:
        return _numbers(self.arena.view(slot), self._dtype)

    def _summed(self, entry: Entry) -> tuple[int | None, list[int]]:
        """The place that the weighted sum of an entry's gradients is in, and the parameters that none of them has."""
        if not entry.parts:
            return None, []
        slots = [self._slots[part.worker, part.number] for part in entry.parts]
        target = self.arena.take()
        if target is None:
            self._snapshot()
            target = self.arena.take()
        if target is None:
            raise SpoolError("there is no room for the sum of an update")
        total = self._sum(target)
        told = dict(self.arena.filled)
        unused: set[int] | None = None
        for place, (slot, part) in enumerate(zip(slots, entry.parts, strict=True)):
            half, left_out = told[slot][4], told[slot][5]
            numbers = _numbers(self.arena.view(slot), getattr(torch, half) if half else self._dtype)[: self.size]
            if place:
                total.add_(numbers, alpha=part.weight)
            elif half:
                total.copy_(numbers).mul_(part.weight)
            else:
                torch.mul(numbers, part.weight, out=total)
            unused = set(left_out) if unused is None else unused & set(left_out)
        self.arena.fill(target, "sum")
        return target, sorted(unused or ())

    # Files.

    def _snapshot(self) -> None:
        told, tensors = self._optimizer.save()
        head = {
            "version": self.version,
            "released": sorted(self.released.items()),
            "settled": sorted(self._settled.items()),
            "tail": [[WORDS.encode(seen.entry).decode(), seen.square] for seen in self.tail.values()],
            "optimizer": told,
            "spec": json.loads(self.spec.to_json()),
            "shard": self.shard,
            "shards": self.shards,
        }
        self.store.snapshot(self.next, head, [self.flat, *tensors])
        for slot in self._sums:
            self.arena.free(slot)
        self._sums = []

    def hand_over(self) -> list[Path]:
        """Files that another process can go on from; nothing is done meanwhile."""
        self._snapshot()
        self.arena.sync()  # what is only in memory may look like a hole of the file
        return self.store.files()

    def _recover(self) -> None:
        found = self.store.newest()
        if found is None:
            for slot, _ in list(self.arena.filled):
                self.arena.free(slot)
            return
        told, tensors = found
        for slot, what in list(self.arena.filled):
            if what != "sum":
                self._slots[int(what[0]), int(what[1])] = slot
        self.next, self.version, self.ready = int(told["serial"]), int(told["version"]), True
        self.released = {int(worker): int(number) for worker, number in told["released"]}
        self._settled = {int(worker): int(number) for worker, number in told["settled"]}
        for encoded, square in told["tail"]:
            entry = WORDS.decode(encoded.encode())
            self.tail[entry.serial] = Seen(entry, float(square))
        self.flat.copy_(tensors[0])
        self._optimizer.load(told["optimizer"], iter(tensors[1:]))
        for line in self.store.lines(self.next):
            entry = WORDS.decode(line["entry"].encode())
            self._do(entry, line["sum"], line["unused"], float(line["factor"]), float(line["square"]))
        for slot, what in list(self.arena.filled):
            if what == "sum" and slot not in self._sums:
                self.arena.free(slot)
        if len(self._sums) >= KEPT_SUMS:
            self._snapshot()


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy())


def _numbers(memory: memoryview, dtype: torch.dtype) -> torch.Tensor:
    usable = memory.nbytes - memory.nbytes % dtype.itemsize
    return torch.frombuffer(memory[:usable], dtype=dtype) if usable else torch.empty(0, dtype=dtype)


def _square(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.double())) ** 2
