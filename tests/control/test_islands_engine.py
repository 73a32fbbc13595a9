"""Engines of islands in one process: leaders, followers, and a coordinator; each rank has its own part of a model."""

import threading
import time
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from engine_world import SECRET, Data, Office, Rank, Updates, train
from engine_world import Line as ToOffice

from starprof.control.engine.flat import SETTINGS_BYTES
from starprof.control.engine.groups import Groups
from starprof.control.engine.island.follower import IslandFollower
from starprof.control.engine.island.leader import IslandLeader
from starprof.control.engine.island.lines import Lobby, joined
from starprof.control.engine.island.mirror import Mirror
from starprof.control.engine.island.shards import Shards
from starprof.control.engine.peers import Peers
from starprof.control.engine.states import States
from starprof.sync.protocol.lag import LagLimit
from starprof.sync.protocol.member import Member

ISLANDS, SIZE = 3, 2


@dataclass
class Shard(Rank):
    """A rank of an island; `rank` and `world` are the islands', as for the rank that leads."""

    position: int = 0
    line: object = None

    def build(self):
        torch.manual_seed(self.position)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 9 + self.position), torch.nn.Tanh())
        self.model.append(torch.nn.Linear(9 + self.position, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=self.momentum)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()  # changes nothing, but now there is what is there after native steps
        self.updates, self.data, self.lock = Updates(self.model, self.optimizer), Data(), threading.RLock()
        self.groups = Groups(self.store, self.rank)
        shards = Shards(list(self.model.parameters()), SETTINGS_BYTES)
        kind = Mirror if self.position else Member
        self.member = kind(self.rank, tuple(range(self.world)))
        states = States(self.model, self.updates)
        parts = (self.member, shards, states, self.groups, self.updates, self.data, self.lock, self.office.lag)
        leads = not self.position
        self.engine = IslandLeader(*parts, lines=self.line) if leads else IslandFollower(*parts, line=self.line)
        self.peers = Peers(dist.PrefixStore("peers", self.store), self.rank, SECRET, self.engine)
        self.peers.tell()
        self.engine.connect(self.peers, ToOffice(self.office, self.rank) if leads else self.engine.link)
        if leads:
            self.engine.start(on_lost=lambda: self.office.gone(self.rank))
            self.office.connect(self.rank, self.engine, self.member, self.lock)
        else:
            self.engine.start()
        return self


@pytest.fixture
def shards():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    made = []

    def client():
        return dist.TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False)

    def lines(island):
        """The leader's lines to its followers, and theirs to it; the first ranks lead."""
        lobby, ends = Lobby(client(), f"island/{island}", "127.0.0.1", SECRET), {}

        def come(position):
            ends[position] = joined(client(), f"island/{island}", ISLANDS * position + island, SECRET)

        coming = [threading.Thread(target=come, args=(position,)) for position in range(1, SIZE)]
        for thread in coming:
            thread.start()
        ends[0] = lobby.gathered(tuple(ISLANDS * position + island for position in range(1, SIZE)))
        for thread in coming:
            thread.join(10)
        return ends

    def make(delay_s, lag=None):
        office = Office(ISLANDS, lag=lag)
        for island in range(ISLANDS):
            ends = lines(island)
            for position in range(SIZE):
                store = dist.PrefixStore(f"shard/{position}", client())
                wait = lambda index, island=island: delay_s(island, index)  # noqa: E731
                shard = Shard(island, ISLANDS, office, store, delay_s=wait, position=position, line=ends[position])
                made.append(shard.build())
        return made

    yield make
    for shard in made:
        shard.office.closing = True
        shard.engine.close()
        shard.peers.close()
        shard.groups.close()
    torch.set_num_threads(threads)


def same(shards):
    for position in range(SIZE):
        first, *others = [shard for shard in shards if shard.position == position]
        for shard in others:
            for ours, theirs in zip(
                first.parameters() + first.moments(), shard.parameters() + shard.moments(), strict=True
            ):
                assert torch.equal(ours, theirs)


def slow_last(island, _index):
    return 0.03 if island == ISLANDS - 1 else 0.003


def switching(office, plan):
    """Ask for modes when the first island's leader has done so many iterations, or has passed over that one."""
    left = dict(plan)

    def after(shard, index):
        for at in sorted(left) if not shard.rank and not shard.position else ():
            if at <= index:
                name, options = left.pop(at)
                office.switch(name, **options)

    return after


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("m-sync", {"m": 2}),
        ("m-sync-fold", {"m": 2}),
        ("asgd", {}),
        ("static-x", {"x": 2}),
        ("local-sgd", {"period": 4}),
        ("hierarchical", {"period": 4, "groups": [[0, 1], [2]]}),
    ],
    ids=lambda value: str(value),
)
def test_islands_are_identical_in_rounds_and_after_the_way_back(shards, mode, options):
    made = shards(slow_last)
    train(made, 2, 25, after=switching(made[0].office, {4: (mode, options), 21: (None, {})}))
    same(made)
    assert all(shard.engine.native for shard in made), "nobody came back to native steps"
    assert all(shard.engine.counts.iterations == 50 for shard in made)
    for leader, follower in zip(made[::SIZE], made[1::SIZE], strict=True):
        assert leader.engine.counts.steps == follower.engine.counts.steps
        assert leader.engine.counts.progress == follower.engine.counts.progress
    if mode in {"local-sgd", "hierarchical"}:
        assert all(shard.engine.counts.skipped == 0 for shard in made)
        assert any(close.steps for close in made[0].office.closes)
    if mode == "m-sync":
        assert made[-1].engine.counts.replayed > 0, "the slow island was not left behind"


def test_an_island_is_lost_with_any_of_its_ranks_and_the_others_go_on(shards):
    made = shards(slow_last)
    office = made[0].office
    leader, follower = made[SIZE], made[SIZE + 1]

    class Killed(BaseException):
        pass

    def after(shard, index):
        if shard is made[0] and index == 4:
            office.switch("m-sync", m=2)
        if shard is follower and index == 14:
            follower.peers.close()
            follower.groups.close()
            follower.line.close()
            raise Killed

    with pytest.raises(AssertionError) as told:
        train(made, 2, 40, after=after)
    assert "Killed" in str(told.value)
    assert "can't go on: rank 4 of it" in str(told.value), "its leader has to say why it ends"
    others = [shard for shard in made if shard not in (leader, follower)]
    same(others)
    assert all(shard.engine.counts.iterations == 80 for shard in others)


def states_taken(made):
    """Counts, of each rank, how often it went on from another island's state."""
    taken = [0] * len(made)
    for place, shard in enumerate(made):

        def take(place=place, original=shard.engine._handover.take):
            taken[place] += 1
            return original()

        shard.engine._handover.take = take
    return taken


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_island_that_is_too_far_behind_takes_another_ones_state_part_by_part(shards):
    made = shards(lambda _island, _index: 0.003, LagLimit(8))
    office, last = made[0].office, made[-SIZE]
    taken, most = states_taken(made), [0] * len(made)
    switch, held = switching(office, {4: ("m-sync", {"m": 2})}), threading.Event()

    def after(shard, index):
        switch(shard, index)
        place = made.index(shard)
        most[place] = max(most[place], len(shard.engine._exchange._results))
        if shard is last and not shard.engine.native and not held.is_set():
            held.set()
            wait_for(lambda: office.coordinator.ranks[last.rank].behind)

    train(made, 2, 100, after=after)
    same(made)
    assert taken[::SIZE] == taken[1::SIZE], "all ranks of an island or none"
    assert taken[-1] > 0
    assert all(shard.engine.counts.iterations == 200 for shard in made)
    assert max(most) < 40


@pytest.mark.parametrize(("mode", "options"), [("m-sync", {"m": 2}), ("local-sgd", {"period": 5})], ids=str)
def test_an_island_that_was_lost_comes_back(shards, mode, options):
    made = shards(lambda _island, _index: 0.003)
    office, last = made[0].office, made[-SIZE]
    office.lease_s = 0.05
    taken = states_taken(made)
    cut = threading.Event()

    def after(shard, index):
        if shard is made[0] and index == 4:
            office.switch(mode, **options)
        inside = shard.engine._own.made == 2 if mode == "local-sgd" else index > 8
        if shard is last and not shard.engine.native and inside and not cut.is_set():
            cut.set()
            office.disconnect(last.rank)
            wait_for(lambda: last.rank not in office.coordinator.live)
            office.connect(last.rank, last.engine, last.member, last.lock)

    train(made, 2, 60, after=after)
    assert cut.is_set()
    same(made)
    assert taken[-1] == taken[-2] > 0
    assert all(shard.engine.counts.iterations == 120 for shard in made)
