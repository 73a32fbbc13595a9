"""What one flight-recorder dump tells, as rows of table `collective`.

A dump's `pg_status` says the last call of each group even where no entry is left. It counts collectives and sends
alike, so it is only taken for groups whose entries show that nothing was ever sent in them. Sends and receives are
numbered by each rank for itself: they get no sequence, only a name with both ends as global ranks, `send 4->8`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from starprof.errors import InputError
from starprof.model import ranklists
from starprof.model.collectives import SEND_RECV, UNKNOWN, kind
from starprof.model.tables.trace import COLLECTIVE

MAX_SIZES = 5_000_000
"""Tensor dimensions looked at in one dump: lists may be shared, so a small file can show very many."""
MAX_MEMBERS = 1_000_000
MAX_NAME = 100
STATES = frozenset({"scheduled", "started", "completed"})
NO_SEQUENCE = -1

_TYPE_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8"), 1),
    **dict.fromkeys(("short", "half", "bfloat16", "uint16", "int16", "float16"), 2),
    **dict.fromkeys(("int", "float", "uint32", "int32", "float32"), 4),
    **dict.fromkeys(("long", "double", "complexfloat", "uint64", "int64", "float64"), 8),
    "complexdouble": 16,
}
_SENT = re.compile(r"(send|recv)\s+(\d{1,9})\s*(->|<-)\s*(\d{1,9})\s*$")


@dataclass(frozen=True)
class Groups:
    """The process groups of one rank by name: members in group order, and what people are told."""

    members: Mapping[str, tuple[int, ...]]
    labels: Mapping[str, str]

    @classmethod
    def of(cls, config: Any) -> Groups:
        """From a dump's `pg_config`; what does not look like a group is left out."""
        members: dict[str, tuple[int, ...]] = {}
        labels: dict[str, str] = {}
        room = MAX_MEMBERS
        for name, group in config.items() if isinstance(config, dict) else ():
            if not isinstance(name, str) or not isinstance(group, dict):
                continue
            labels[name[:MAX_NAME]] = _label(name, group.get("desc"))
            ranks = group.get("ranks")
            if isinstance(ranks, str):
                ranks = [int(digits) for digits in re.findall(r"\d{1,9}", ranks[: 12 * room])]
            if isinstance(ranks, (list, tuple)) and len(ranks) <= room:
                room -= len(ranks)
                good = tuple(r for r in ranks if count(r) is not None)
                if good:
                    members[name[:MAX_NAME]] = good
        return cls(members, labels)


@dataclass
class Rows:
    """The rows of all dumps, a list a column; groups by number until all are read."""

    groups: dict[tuple[str, str | None], int] = field(default_factory=dict)
    columns: dict[str, list[Any]] = field(
        default_factory=lambda: {
            name: [] for name in ("rank", "group", "sequence", "name", "start_us", "dur_us", "calls", "bytes", "state")
        }
    )
    status: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(rank, group, last enqueued, last completed), NO_SEQUENCE for none."""
    sent: set[int] = field(default_factory=set)
    """Groups in which something was sent."""

    def add(self, rank: int, dump: Mapping[str, Any], name: str) -> bool:
        """Add one dump; False when it has no entries.

        Raises:
            InputError: it claims more than a dump can hold.
        """
        reader = _Entries(rank, self, Groups.of(dump.get("pg_config")), name)
        entries = [e for e in dump.get("entries", []) if isinstance(e, dict)]
        for entry in entries:
            reader.add(entry)
        for group, enqueued, completed in reader.statuses(dump.get("pg_status")):
            self.status.append((rank, group, enqueued, completed))
        return bool(entries)

    def append(self, *values: Any) -> None:
        """Add a row: the values of `columns`."""
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)

    def frame(self) -> pd.DataFrame:
        """Table `collective`."""
        self._add_status()
        names, ranks = self._named_groups()
        chosen = np.asarray(self.columns["group"], np.int64)
        frame = pd.DataFrame({name: values for name, values in self.columns.items() if name != "group"})
        for column in ("sequence", "bytes", "calls"):
            frame[column] = frame[column].astype("Int64")
        for column in ("start_us", "dur_us"):
            frame[column] = frame[column].astype(float)
        frame = frame.assign(attempt=0, group_name=names.take(chosen), ranks=ranks.take(chosen))
        return frame.reindex(columns=list(COLLECTIVE.names))  # what dumps don't tell is NULL

    def _named_groups(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Label and members of each group; groups of one label with different members are told apart by these."""
        members: dict[str, set[str]] = {}
        for label, text in self.groups:
            members.setdefault(label, set()).update([text] if text is not None else [])
        names, ranks = [], []
        for label, text in self.groups:
            several = len(members[label]) > 1
            only = next(iter(members[label])) if members[label] and not several else None
            names.append(f"{label} [{text}]" if several and text is not None else label)
            ranks.append(only if text is None else text)
        return np.array([*names, ""], object), np.array([*ranks, None], object)

    def _add_status(self) -> None:
        """Last calls that no entry tells of, in groups whose status counts collectives only."""
        last: dict[tuple[int, int], int] = {}
        told: set[tuple[int, int, int]] = set()
        for rank, group, sequence in zip(*(self.columns[n] for n in ("rank", "group", "sequence")), strict=True):
            if sequence is not None:
                last[rank, group] = max(sequence, last.get((rank, group), 0))
                told.add((rank, group, sequence))
        trusted = {group for _, group in last} - self.sent
        trusted -= {g for r, g, enqueued, _ in self.status if last.get((r, g), NO_SEQUENCE) > enqueued}
        for rank, group, enqueued, completed in self.status:
            if group not in trusted:
                continue
            done = max(completed, 0)
            if (rank, group, done) not in told:
                self.append(rank, group, done, None, None, None, int(done > 0), None, "completed")
            if enqueued > done and (rank, group, enqueued) not in told:
                self.append(rank, group, enqueued, None, None, None, 1, None, "scheduled")


@dataclass
class _Entries:
    """Reads the entries of one dump."""

    rank: int
    rows: Rows
    groups: Groups
    source: str
    names: dict[int, tuple[str, str]] = field(default_factory=dict)
    """(name, label) of each group that entries name, by the rank's own number of it."""
    sizes_left: int = MAX_SIZES

    def add(self, entry: Mapping[Any, Any]) -> None:
        name, label = _group(entry)
        group = self._number(name, label)
        own = count(entry.get("pg_id"))
        if own is not None:
            self.names[own] = (name, label)
        told = entry.get("profiling_name")
        call = _call(told) if isinstance(told, str) else None
        sends = entry.get("is_p2p") is True or (call is not None and _SENT.match(call) is not None)
        if sends or count(entry.get("p2p_seq_id")):
            self.rows.sent.add(group)
        if sends and call is not None:
            call = self._both_ends(call, self.groups.members.get(name, ()))
        created = count(entry.get("time_created_ns"))
        state = entry.get("state")
        self.rows.append(
            self.rank,
            group,
            None if sends else count(entry.get("collective_seq_id", entry.get("seq_id"))),
            call,
            None if created is None else created / 1e3,
            _duration_us(entry.get("duration_ms")),
            1,
            self._bytes(entry.get("input_sizes"), entry.get("input_dtypes")),
            state if isinstance(state, str) and state in STATES else None,
        )

    def _number(self, name: str, label: str) -> int:
        members = self.groups.members.get(name)
        key = (label, None if members is None else ranklists.listed(members))
        return self.rows.groups.setdefault(key, len(self.rows.groups))

    def _both_ends(self, call: str, members: Sequence[int]) -> str:
        """Both ends as global ranks: the recorder numbers them within the group, this rank first."""
        found = _SENT.match(call)
        if found is None:
            return call
        mine, other = int(found.group(2)), int(found.group(4))
        if max(mine, other) < len(members) and members[mine] == self.rank:
            mine, other = members[mine], members[other]
        return f"{found.group(1)} {mine}{found.group(3)}{other}" if mine == self.rank else found.group(1)

    def _bytes(self, sizes: Any, types: Any) -> int | None:
        if not isinstance(sizes, (list, tuple)) or not isinstance(types, (list, tuple)) or len(sizes) != len(types):
            return None
        self.sizes_left -= len(sizes) + sum(len(s) for s in sizes if isinstance(s, (list, tuple)))
        if self.sizes_left < 0:
            raise InputError(f"{self.source} holds more than can be true of a dump")
        total = 0
        for shape, element in zip(sizes, types, strict=True):
            width = _TYPE_BYTES.get(element.lower()) if isinstance(element, str) else None
            if width is None or not isinstance(shape, (list, tuple)) or len(shape) > 64:
                return None
            for dimension in shape:
                if count(dimension) is None or width > 1 << 50:
                    return None
                width *= dimension
            total += width
        return total if total < 1 << 62 else None

    def statuses(self, status: Any) -> list[tuple[int, int, int]]:
        """(group, last enqueued, last completed) of each group that can be told."""
        if not isinstance(status, dict):
            return []
        told = {number: one for key, one in status.items() if (number := _number_of(key)) is not None}
        names = self._all_names(sorted(told))
        result = []
        for number, one in told.items():
            enqueued, completed = _last(one, "last_enqueued_collective"), _last(one, "last_completed_collective")
            if number in names and enqueued is not None and completed is not None:
                result.append((self._number(*names[number]), enqueued, completed))
        return result

    def _all_names(self, numbers: Sequence[int]) -> Mapping[int, tuple[str, str]]:
        """Names of the rank's groups; of those without entries by the order in which groups are made.

        A process numbers its groups in the order in which it makes them, and so does the job in the groups' names:
        both orders are the same. Not taken when an entry says otherwise, or when the numbers don't match.
        """
        labels = self.groups.labels
        by_order = sorted((number, name) for name in labels if (number := _number_of(name)) is not None)
        if len(by_order) != len(labels) or len(by_order) != len(numbers):
            return self.names
        guess = {own: name for own, (_, name) in zip(numbers, by_order, strict=True)}
        if any(guess.get(own) != name for own, (name, _) in self.names.items()):
            return self.names
        return {own: self.names.get(own, (name, labels[name])) for own, name in guess.items()}


def count(value: Any) -> int | None:
    """A whole number from 0 on that fits a table, else None."""
    return value if type(value) is int and 0 <= value < 1 << 62 else None


def _call(told: str) -> str:
    """Kind of a call; with both ends of a send or receive, and the tool's own name for what is none of these."""
    bare = told[:MAX_NAME].rpartition(":")[2].strip()
    what = kind(bare)
    return bare if what in (SEND_RECV, UNKNOWN) else what


def _group(entry: Mapping[Any, Any]) -> tuple[str, str]:
    """Name and label of an entry's group."""
    told = entry.get("process_group", entry.get("pg_name"))
    if isinstance(told, (list, tuple)) and told and isinstance(told[0], str):
        return told[0][:MAX_NAME], _label(told[0], told[1] if len(told) > 1 else None)
    if isinstance(told, str):
        return told[:MAX_NAME], _label(told, None)
    number = count(entry.get("pg_id"))
    return ("", "group") if number is None else (str(number), str(number))


def _label(name: str, description: Any) -> str:
    name = name[:MAX_NAME]
    if not isinstance(description, str) or description in {"", "undefined", name}:
        return name
    return f"{description[:MAX_NAME]} ({name})"


def _last(status: Any, key: str) -> int | None:
    value = status.get(key) if isinstance(status, dict) else None
    return NO_SEQUENCE if type(value) is int and value == NO_SEQUENCE else count(value)


def _number_of(key: Any) -> int | None:
    if isinstance(key, str):
        return int(key) if key.isascii() and key.isdecimal() and len(key) <= 9 else None
    return count(key)


def _duration_us(milliseconds: Any) -> float | None:
    if type(milliseconds) not in (int, float) or not 0 <= milliseconds < 1e12:
        return None
    return float(milliseconds) * 1e3
