"""Members and coordinators brought to where a test of the round protocol begins."""

from starprof.sync.policies import create
from starprof.sync.protocol.coordinator import Coordinator
from starprof.sync.protocol.member import Member, Send
from starprof.sync.protocol.messages import (
    Arrive,
    Close,
    Commit,
    Prepared,
)


def first_choice(world, prefer=()):
    """Play on, always taking the first event of the preferred kinds, else the first of all but faults."""
    for _ in range(5_000):
        events = [e for e in world.enabled() if e[0] not in {"fault", "lease", "switch"}]
        if not events:
            return
        world.happen(min(events, key=lambda e: prefer.index(e[0]) if e[0] in prefer else len(prefer)))
        world.check()
    raise AssertionError("it goes on for ever")


def until(world, met):
    """Play on, without faults, until something holds."""
    for _ in range(5_000):
        if met(world):
            return
        events = [e for e in world.enabled() if e[0] not in {"fault", "lease", "switch"}]
        assert events, "nothing happens any more"
        world.happen(events[0])
        world.check()
    raise AssertionError("it goes on for ever")


def first_fault(world):
    return next(event for event in world.enabled() if event[0] == "fault")


def in_rounds(world):
    return all(not member.native for member in world.members.values())


def rounds_member(rank=0, version=2):
    member = Member(rank, (0, 1, 2), version=version)
    member.told(Commit(1, 1, version))
    member.boundary()
    return member


def close_of(*gradients, attempt=0, release=(0, 1), number=2):
    weights = tuple(1.0 / len(gradients) for _ in gradients)
    return Close(1, number, attempt, gradients, weights, release)


def arrived(member):
    (sent,) = member.gradient()
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Arrive)
    return sent.message.gradient


def paused(member, index=5):
    (sent,) = member.pause(index)
    assert isinstance(sent, Send)
    return sent.message


def in_rounds_of(name, ranks=3, options=None):
    """A coordinator whose ranks have all come to rounds at version 2."""
    coordinator = Coordinator(range(ranks))
    coordinator.switch(lambda workers, version: create(name, workers, options or {}, version))
    for rank in range(ranks):
        coordinator.told(Member(rank, tuple(range(ranks))).hello())
    for rank in range(ranks):
        coordinator.told(Prepared(rank, 1, 2))
    return coordinator


def messages(sent, kind):
    return [(rank, message) for rank, message in sent if isinstance(message, kind)]
