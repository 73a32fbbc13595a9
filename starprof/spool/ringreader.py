"""Reads a rank's ring without ever stopping its writer, also after the rank was killed. Standard library only.

Every slot has a number, counted from the start of the rank; that number is all that exactly-once needs:

    stream `<ring stem>/slots`  frames of `step` and `event` share it; `Frame.seq` is the number of the first slot.
        Slots that were overwritten before anybody read them are a hole, for which the ingester writes a gap.
    stream `<ring stem>/rank`   versions of the rank's description; only the newest counts, so a hole is no loss.

A reader keeps no state that matters: starting again at slot 0 means "all that is still in the ring", and the
ledger cuts off what is already there.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from starprof.errors import SpoolError
from starprof.model import ring
from starprof.model.columns import INT_NULL, row
from starprof.model.schema import SCHEMA_VERSION
from starprof.model.tables.job import EVENT, RANK, STEP
from starprof.spool.frame import PACKED, Frame, json_frame

SLOTS_STREAM = "/slots"
RANK_STREAM = "/rank"
_STEP_BYTES = 8 * len(STEP.columns)
_DESCRIPTION_TRIES = 100


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot: its number in the ring's stream, its kind and its bytes."""

    number: int
    kind: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class RingBatch:
    """New slots of a ring.

    Attributes:
        first_slot: number that was asked for.
        next_slot: number to ask for next.
        lost: slots between the two that were overwritten before they could be read.
        slots: the readable ones, by number.
    """

    first_slot: int
    next_slot: int
    lost: int
    slots: tuple[Slot, ...]

    @property
    def steps(self) -> list[bytes]:
        """Packed rows of table `step`."""
        return [s.payload for s in self.slots if s.kind == ring.SLOT_STEP]

    @property
    def events(self) -> list[tuple[int | None, int | None, int, int | None, int | None, str, str]]:
        """(attempt, rank, mono_ns, step, value, kind, detail) of each event."""
        return [_event(s.payload) for s in self.slots if s.kind == ring.SLOT_EVENT]

    def frames(self, stem: str, node: int) -> list[Frame]:
        """The batch as frames: one for each stretch of consecutive slots of one kind."""
        return [_frame(stem + SLOTS_STREAM, node, stretch) for stretch in _stretches(self.slots)]


class RingReader:
    """Maps a ring file read-only.

    Raises:
        SpoolError: the file is not (yet) a ring, or was written by another version of starprof.
    """

    def __init__(self, path: Path) -> None:
        self.stem = path.stem
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise SpoolError(f"can't read the ring {path}: {error}") from error
        try:
            self._slots = _check_header(path, self._map)
        except SpoolError:
            self._map.close()
            raise

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()

    def release(self) -> None:
        """Take the pages that reading touched out of this process's resident memory; they stay in the page cache."""
        self._map.madvise(mmap.MADV_DONTNEED)

    @property
    def written(self) -> int:
        """Number of slots that were ever written."""
        value: int = ring.WRITTEN.unpack_from(self._map, ring.WRITTEN_OFFSET)[0]
        return value

    @property
    def heartbeat_ns(self) -> int:
        """CLOCK_MONOTONIC of the hook's last sign of life."""
        value: int = ring.HEADER.unpack_from(self._map, 0)[-1]
        return value

    def description(self) -> tuple[int, dict[str, Any]] | None:
        """Generation and content of the rank's description; None when there is none or it is being changed."""
        for _ in range(_DESCRIPTION_TRIES):
            *_, length, generation, _ = ring.HEADER.unpack_from(self._map, 0)
            text = self._map[ring.JSON_OFFSET : ring.JSON_OFFSET + length]
            unchanged = ring.HEADER.unpack_from(self._map, 0)[-2] == generation
            if generation % 2 == 0 and unchanged:
                return (generation, json.loads(text)) if length else None
        return None

    def read(self, from_slot: int) -> RingBatch:
        """Copy every slot from `from_slot` on.

        What the writer overwrote while it was copied is dropped and counted as lost. The oldest slot counts as
        overwritten too: the writer may be at it. A torn slot at the end (rank killed) is left alone.
        """
        written = self.written
        first = max(from_slot, written - self._slots + 1)
        copies = [self._copy(number) for number in range(first, written)]
        while copies and copies[-1] is None:
            copies.pop()
        end = first + len(copies)
        overwritten_below = self.written - self._slots + 1
        good = tuple(c for c in copies if c is not None and c.number >= overwritten_below)
        next_slot = max(from_slot, end)
        return RingBatch(from_slot, next_slot, next_slot - from_slot - len(good), good)

    def _copy(self, number: int) -> Slot | None:
        at = ring.HEADER_BYTES + number % self._slots * ring.SLOT_BYTES
        data = self._map[at : at + ring.SLOT_BYTES]
        sequence, kind, used = ring.SLOT_HEADER.unpack_from(data)
        head = ring.SLOT_HEADER.size
        expected = {ring.SLOT_STEP: _STEP_BYTES, ring.SLOT_EVENT: ring.EVENT_STRUCT.size}.get(kind)
        if sequence != number or used != expected:
            return None
        return Slot(number, kind, data[head : head + used])


def rank_frame(stem: str, generation: int, description: Mapping[str, Any]) -> Frame | None:
    """The `rank` row of a description; None as long as the process does not know its rank.

    Keys that are no column of the table are kept in `detail`.
    """
    if description.get("rank") is None:
        return None
    known = {k: v for k, v in description.items() if k in RANK.names and k != "detail"}
    given = description.get("detail")
    detail = dict(given) if isinstance(given, Mapping) else {"text": given} if given else {}
    detail |= {k: v for k, v in description.items() if k not in RANK.names}
    cells = row(RANK, **known, detail=json.dumps(detail) if detail else None)
    return json_frame(RANK, stem + RANK_STREAM, generation // 2 - 1, [cells])


def is_mapped(path: Path) -> bool:
    """Does the process that a ring is named after (`n<node>-<pid>-<start ns>`) still map it?

    A process id that meanwhile belongs to somebody else does not map the ring, or may not be looked at.
    """
    pid = path.stem.split("-")[1:2]
    try:
        inode = str(path.stat().st_ino)
        maps = Path("/proc", *pid, "maps").read_text()
    except (OSError, UnicodeDecodeError):
        return False
    return any(line.split(None, 5)[4] == inode for line in maps.splitlines())


def _check_header(path: Path, data: mmap.mmap) -> int:
    """Number of slots of a ring that this version can read."""
    if len(data) < ring.HEADER_BYTES:
        raise SpoolError(f"{path} is no ring file: it is too short")
    magic, version, slot_bytes, _, slots, schema, *_ = ring.HEADER.unpack_from(data, 0)
    if magic != ring.MAGIC:
        raise SpoolError(f"{path} is no ring file, or its rank has not initialised it")
    if (version, slot_bytes, schema) != (ring.VERSION, ring.SLOT_BYTES, SCHEMA_VERSION):
        raise SpoolError(f"{path} was written by another version of starprof: use one version on all nodes")
    if slots < 1 or len(data) < ring.HEADER_BYTES + slots * ring.SLOT_BYTES:
        raise SpoolError(f"{path} is cut off: it is shorter than its header says")
    return int(slots)


def _stretches(slots: Sequence[Slot]) -> Iterator[list[Slot]]:
    """Group slots that are consecutive and of one kind."""
    numbered = enumerate(slots)
    for _, group in groupby(numbered, key=lambda pair: (pair[1].kind, pair[1].number - pair[0])):
        yield [slot for _, slot in group]


def _frame(stream: str, node: int, slots: Sequence[Slot]) -> Frame:
    first = slots[0]
    if first.kind == ring.SLOT_STEP:
        return Frame(STEP, stream, first.number, len(slots), PACKED, b"".join(s.payload for s in slots))
    return json_frame(EVENT, stream, first.number, [_event_row(node, s.payload) for s in slots])


def _event(payload: bytes) -> tuple[int | None, int | None, int, int | None, int | None, str, str]:
    attempt, rank, mono_ns, step, value, kind, detail = ring.EVENT_STRUCT.unpack(payload)
    return (_known(attempt), _known(rank), mono_ns, _known(step), _known(value), _text(kind), _text(detail))


def _event_row(node: int, payload: bytes) -> list[object]:
    attempt, rank, mono_ns, step, value, kind, detail = _event(payload)
    return row(
        EVENT,
        node=node,
        attempt=attempt,
        rank=rank,
        mono_ns=mono_ns,
        step=step,
        kind=kind,
        value=value,
        detail=detail or None,
    )


def _known(cell: int) -> int | None:
    return None if cell == INT_NULL else cell


def _text(raw: bytes) -> str:
    """Text of a NUL-padded field; a character that was cut in half at its end is dropped."""
    return raw.rstrip(b"\0").decode(errors="ignore")
