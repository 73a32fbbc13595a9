"""Worlds that go different ways from one state, and marks by which equal states are known.

Copies and marks are made by walks over whatever the world, the members and the coordinator are made of, so nothing of
their state can be forgotten. A world shares with the one it branches from what has not changed since. Marks are 61
bits wide: two of a million states are taken for the same with a probability of 2e-7.
"""

from dataclasses import is_dataclass
from enum import Enum
from types import FunctionType, MethodType

from world import World

PLAIN = (int, float, str, bool, type(None), Enum, FunctionType, type)
WITHOUT_CONSEQUENCE = {"history", "counted", "checked", "ended_rounds", "faultless"}
CHIEF = "coordinator"
WITH_MARKS = {"members", "coordinator", "mail", "applied", "marks", "shared"}
MAX_KNOWN = 200_000
"""Messages whose hash is remembered."""


class Branch(World):
    """A world that others branch from. What branches off is done with before it goes on itself."""

    def __init__(self, *args, **options):
        self.shared = set()  # members by rank, and the coordinator, that belong to another world too
        self.marks = {}  # of those that have not changed since
        super().__init__(*args, **options)

    def _member(self, r):
        self.marks.pop(r, None)
        if r in self.shared:
            self.shared.discard(r)
            self.members[r] = copied(self.members[r], {})
        return self.members[r]

    def _chief(self):
        self.marks.pop(CHIEF, None)
        if CHIEF in self.shared:
            self.shared.discard(CHIEF)
            self.coordinator = copied(self.coordinator, {})
        return self.coordinator

    def _renewed(self, coordinator):
        self.shared.discard(CHIEF)
        self.marks.pop(CHIEF, None)
        super()._renewed(coordinator)

    def branch(self):
        """Another world in the same state."""
        other = object.__new__(Branch)
        for name, value in self.__dict__.items():
            other.__dict__[name] = value if name in {"members", "coordinator"} else copied(value, {})
        other.members = dict(self.members)
        other.shared = {*self.members, CHIEF}
        return other

    def mark(self):
        """Equal for equal states."""
        marks = self.marks
        for r, member in self.members.items():
            if r not in marks:
                marks[r] = hash(_frozen_copy(member))
        if CHIEF not in marks:
            marks[CHIEF] = hash(_frozen_copy(self.coordinator))
        letters = [(to, _known(close)) for to, close in self.mail]  # on their way they are a heap without order
        applied = [tuple([_known(entry) for entry in self.applied[r]]) for r in self.names]
        rest = [
            _frozen_copy(self.__dict__[name])
            for name in _parts(self)
            if name not in WITHOUT_CONSEQUENCE and name not in WITH_MARKS
        ]
        parts = tuple([marks[r] for r in self.names]), marks[CHIEF], tuple(sorted(letters)), tuple(applied)
        return hash((parts, tuple(rest)))


def copied(thing, copies):
    """A copy that shares with the original only what never changes."""
    kind = type(thing)
    if isinstance(thing, PLAIN) or _frozen(kind):
        return thing
    if kind is list:
        return [copied(part, copies) for part in thing]
    if kind is tuple:
        parts = [copied(part, copies) for part in thing]
        return thing if all(part is own for part, own in zip(parts, thing, strict=True)) else tuple(parts)
    if kind is dict:
        return {key: copied(part, copies) for key, part in thing.items()}
    if kind is set:
        return set(thing)
    if kind is MethodType:
        return MethodType(thing.__func__, copied(thing.__self__, copies))
    known = copies.get(id(thing))
    if known is None:
        known = copies[id(thing)] = object.__new__(kind)
        for name in _parts(thing):
            object.__setattr__(known, name, copied(getattr(thing, name), copies))
    return known


def _frozen_copy(thing):
    kind = type(thing)
    if kind is int:
        return thing if thing >= 0 else ("-", -thing)  # Python gives -1 and -2 the same hash
    if kind is MethodType or kind is FunctionType:
        return None
    if isinstance(thing, PLAIN):
        return thing
    if _frozen(kind):
        return _known(thing)
    if kind is list or kind is tuple:
        return tuple([_frozen_copy(part) for part in thing])
    if kind is dict:
        return tuple([(key, _frozen_copy(thing[key])) for key in sorted(thing)])
    if kind is set:
        return frozenset(thing)
    return tuple([_frozen_copy(getattr(thing, name)) for name in _parts(thing) if name not in WITHOUT_CONSEQUENCE])


_KNOWN = {}


def _known(message):
    """The hash of what never changes, which is asked for again and again."""
    known = _KNOWN.get(id(message))
    if known is None:
        if len(_KNOWN) >= MAX_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[id(message)] = (hash(message), message)  # kept: no other gets its place in memory
    return known[0]


_NAMES = {}
_IS_FROZEN = {}


def _frozen(kind):
    known = _IS_FROZEN.get(kind)
    if known is None:
        known = _IS_FROZEN[kind] = is_dataclass(kind) and kind.__dataclass_params__.frozen
    return known


def _parts(thing):
    kind = type(thing)
    if hasattr(thing, "__dict__"):
        return sorted(thing.__dict__)
    known = _NAMES.get(kind)
    if known is None:
        known = _NAMES[kind] = sorted(kind.__slots__)
    return known
