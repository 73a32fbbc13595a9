"""Every schedule of a small job: all states that can be reached, each once.

Copies and fingerprints are made by one walk over whatever the world, the members and the coordinator are made of, so
nothing of their state can be forgotten. Fingerprints are 64 bits wide: two of a million states are taken for the same
with a probability of 3e-8.
"""

import math
from dataclasses import dataclass, is_dataclass
from enum import Enum
from types import FunctionType, MethodType

from world import Epochs, World

from starprof.sync.protocol.messages import Welcome

PLAIN = (int, float, str, bool, type(None), Enum, FunctionType, type)
WITHOUT_CONSEQUENCE = {"history", "counted", "checked", "ended_rounds", "faultless"}


@dataclass
class Explored:
    """How far it went; `ends`: states in which no more happens; `complete`: that is everything."""

    states: int = 0
    transitions: int = 0
    ends: int = 0
    deepest: int = 0
    complete: bool = False


def explore(world, max_states, deviations=None):
    """Depth first from a world, which must have nothing wrong in any state that it can reach.

    Args:
        world: to begin with.
        max_states: it gives up there.
        deviations: take the first event that may happen but for so many times, faults included; None: any order at all.
    """
    found = Explored()
    left = math.inf if deviations is None else deviations
    seen = {fingerprint(world): left}
    stack = [(world, _choices(world, left))]
    while stack:
        here, choices = stack[-1]
        if not choices:
            stack.pop()
            continue
        event, left = choices.pop()
        there = copied(here, {}) if choices else here  # nobody else needs it any more
        there.happen(event)
        there.check()
        there.coordinator.history.clear()
        found.transitions += 1
        mark = fingerprint(there)
        if seen.get(mark, -1) >= left:
            continue
        first = mark not in seen
        seen[mark] = left
        following = _choices(there, left)
        if not following:
            found.ends += first
            there.check_end()
        stack.append((there, following))
        found.deepest = max(found.deepest, len(stack))
        if len(seen) >= max_states:
            break
    found.states, found.complete = len(seen), not stack
    return found


def _choices(world, left):
    """Events, each with the deviations that are left after it."""
    events = _events(world)
    calm = [event for event in events if event[0] != "fault"]
    first = calm[:1]
    return [(event, left - (event not in first)) for event in events if event in first or left >= 1]


def _events(world):
    """What may happen; a word without any effect, at any time, is heard first, since its place does not matter."""
    events = world.enabled()
    for event in events:
        if event[0] == "to rank":
            message = world.to_rank[event[1]][0]
            if isinstance(message, Welcome) and message.epoch == world.members[event[1]].epoch:
                return [event]
    return events


def copied(thing, copies):
    """A copy that shares with the original only what never changes."""
    kind = type(thing)
    if isinstance(thing, PLAIN) or _frozen(kind):
        return thing
    if kind is list:
        return [copied(part, copies) for part in thing]
    if kind is tuple:
        return tuple([copied(part, copies) for part in thing])
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


def fingerprint(world):
    """Equal for equal states."""
    return hash(_frozen_copy(world))


def _frozen_copy(thing):
    kind = type(thing)
    if kind is int:
        return thing if thing >= 0 else ("-", -thing)  # Python gives -1 and -2 the same hash
    if kind is MethodType or kind is FunctionType:
        return None
    if isinstance(thing, PLAIN) or _frozen(kind):
        return thing
    if kind is list or kind is tuple:
        return tuple([_frozen_copy(part) for part in thing])
    if kind is dict:
        return tuple([(key, _frozen_copy(thing[key])) for key in sorted(thing)])
    if kind is set:
        return frozenset(thing)
    if kind.__name__ == "World":
        mail = frozenset((to, close, world_count(thing.mail, (to, close))) for to, close in thing.mail)
        rest = [_frozen_copy(getattr(thing, n)) for n in _parts(thing) if n not in {*WITHOUT_CONSEQUENCE, "mail"}]
        return mail, tuple(rest)
    return tuple([_frozen_copy(getattr(thing, name)) for name in _parts(thing) if name not in WITHOUT_CONSEQUENCE])


def world_count(mail, letter):
    """Letters on their way are a heap without order."""
    return sum(other == letter for other in mail)


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


def in_rounds(ranks, rounds, mode, options, faults, meetings=False):
    """A job that has just come to rounds, and has so many before it; with meetings, one after every iteration."""
    world = World(ranks, None, mode, options, faults=faults, epochs=Epochs(1, 1_000))
    while any(member.native for member in world.members.values()):
        world.happen(next(event for event in world.enabled() if event[0] != "fault"))
    begun = max(place.iterations for place in world.place.values())
    if meetings:
        for place in world.place.values():
            place.epoch = begun
        world.epochs = Epochs(begun + rounds, 1)
    else:
        world.epochs, world.updates = None, begun + rounds
    return world
