"""Every schedule of a small job: all states that can be reached, each once."""

import math
from dataclasses import dataclass

from branches import Branch
from world_loops import Epochs

from starprof.sync.protocol.messages import Welcome


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
    seen = {world.mark(): left}
    stack = [(world, _choices(world, left))]
    while stack:
        here, choices = stack[-1]
        if not choices:
            stack.pop()
            continue
        event, left = choices.pop()
        there = here.branch() if choices else here  # nobody else needs it any more
        there.happen(event)
        there.check()
        there.coordinator.history.clear()  # of no consequence
        found.transitions += 1
        mark = there.mark()
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


def in_rounds(ranks, rounds, mode, options, faults, meetings=False):
    """A job that has just come to rounds, and has so many before it; with meetings, one after every iteration."""
    world = Branch(ranks, None, mode, options, faults=faults, epochs=Epochs(1, 1_000))
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
