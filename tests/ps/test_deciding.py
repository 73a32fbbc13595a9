"""The head's log under random schedules: every mode's updates, and the same log from what shards remember of it."""

import random

import pytest

from starprof.control.modes import Mode
from starprof.errors import UsageError
from starprof.ps.head import modes
from starprof.ps.head.deciding import Deciding
from starprof.ps.messages import WORDS, Seen
from starprof.sync.policies import Gradient

ALL = [
    ("ssgd", {}),
    ("asgd", {}),
    ("static-x", {"x": 3}),
    ("dynamic-x", {"groups": [[0, 1], [2, 3]]}),
    ("m-sync", {"m": 3}),
    ("m-sync-fold", {"m": 3}),
    ("backup", {"b": 1}),
    ("ssp", {"s": 2}),
    ("lgc", {"k": 3}),
    ("rennala", {"batch": 3}),
    ("ringmaster", {"r": 3}),
    ("sync-switch", {"switch_at": 5}),
    ("eager", {}),
]
WORKERS = 4


class World:
    """Workers that compute for random times, and the head's machine."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.deciding = Deciding(2)
        self.number = dict.fromkeys(range(WORKERS), 0)
        self.version = dict.fromkeys(range(WORKERS), 0)
        self.waits = dict.fromkeys(range(WORKERS), False)
        self.used, self.dropped, self.log = [], [], []
        self.deciding.number = dict.fromkeys(range(WORKERS), 0)

    def begin(self, name, options):
        self.deciding.begin(Mode(name, options), range(WORKERS), [], {})

    def step(self):
        computing = [worker for worker in range(WORKERS) if not self.waits[worker]]
        worker = self.draw.choice(computing)
        self.number[worker] += 1
        self.waits[worker] = True
        gradient = Gradient(worker, self.number[worker], self.version[worker])
        self.deciding.arrived(gradient, (0.1 * self.number[worker],), 0.0)
        self.carry_out()

    def carry_out(self):
        for entry in self.deciding.out:
            assert WORDS.decode(WORDS.encode(entry)) == entry
            self.log.append(entry)
            self.used += [(p.worker, p.number) for p in entry.parts]
            self.dropped += [(d.worker, d.number) for d in entry.drop]
            for one in entry.release:
                assert one.number == self.number[one.worker]
                self.waits[one.worker], self.version[one.worker] = False, entry.after
        self.deciding.out.clear()


@pytest.mark.parametrize(("name", "options"), ALL, ids=[name for name, _ in ALL])
def test_every_gradient_is_used_or_dropped_once_in_every_mode(name, options):
    world = World(1)
    world.begin(name, options)
    for _ in range(300):
        world.step()
    assert world.deciding.version > 20
    taken = world.used + world.dropped
    assert len(taken) == len(set(taken))
    assert [entry.serial for entry in world.log] == list(range(len(world.log)))
    versions = [entry.version for entry in world.log if entry.parts]
    assert versions == list(range(len(versions)))
    assert sum(world.deciding.staleness.values()) == len(world.used)
    pending = {(worker, number) for worker, number in world.number.items()}
    everything = {(worker, number) for worker in range(WORKERS) for number in range(1, world.number[worker] + 1)}
    late = everything - set(taken)
    assert late <= pending or name in {"m-sync-fold", "lgc", "rennala"}
    assert len(late) <= 2 * WORKERS


def test_modes_change_and_no_gradient_is_lost_or_used_twice():
    world = World(2)
    world.begin("ssgd", {})
    for name, options in ALL * 2:
        world.deciding.switch(Mode(name, options), {}, 0.0)
        world.carry_out()
        for _ in range(7):
            world.step()
    taken = world.used + world.dropped
    assert len(taken) == len(set(taken))
    assert world.deciding.version > 40


def test_a_worker_leaves_and_comes_again():
    world = World(3)
    world.begin("ssgd", {})
    for _ in range(3):
        world.step()
    gone = next(worker for worker in range(WORKERS) if not world.waits[worker])
    world.deciding.left(gone, 0.0)
    assert world.deciding.version == 1, "the others go on without it"
    world.carry_out()
    world.number[gone] += 5
    world.deciding.joined(gone, world.number[gone], 0.0)
    world.carry_out()
    for _ in range(8):
        world.step()
    assert world.deciding.version >= 3


def test_the_next_head_finishes_what_only_one_shard_has_heard_of():
    world = World(4)
    world.begin("asgd", {})
    for _ in range(20):
        world.step()
    log = world.log
    other = Deciding(2)
    tails = [[Seen(entry, -1.0) for entry in log[12:]], [Seen(entry, -1.0) for entry in log[12:15]]]
    other.recover(tails, [len(log), 14], [log[-1].after, log[13].after])
    assert (other.serial, other.version) == (len(log), log[-1].after)
    assert other.missing(0) == []
    assert other.missing(1) == log[14:]


def test_norms_of_all_shards_make_the_factor():
    deciding = Deciding(2, clip=1.0)
    deciding.number = {0: 0}
    deciding.begin(Mode("asgd"), [0], [], {})
    deciding.arrived(Gradient(0, 1, 0), (0.1,), 0.0)
    assert deciding.norm(0, 0, 9.0) is None
    assert deciding.norm(1, 0, 16.0) == pytest.approx(1.0 / 5.0, rel=1e-6)


@pytest.mark.parametrize("name", ["native", "ring-x", "local-sgd", "hierarchical", "lb-bsp", "drop-compute", "zeno++"])
def test_modes_that_can_not_be_had_are_refused_with_a_reason(name):
    with pytest.raises(UsageError, match="parameter server can't be in mode"):
        modes.mode(name, {}, range(4))
