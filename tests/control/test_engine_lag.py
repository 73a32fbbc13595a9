"""A rank that is very slow costs the others, and itself, a bounded number of results; at the end all are equal."""

import gc
import threading
import time

import pytest
import torch
import torch.distributed as dist
from engine_world import Office, Rank, train

from starprof.control.engine.flat import Flat
from starprof.sync.protocol.lag import LagLimit

WORLD = 4
LAG = LagLimit(8)
FLAT_TENSORS = LAG.rounds + 2 * WORLD + 4
"""Results that are kept, one on its way from and to each rank, and what a step works with."""


@pytest.fixture
def ranks():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    made = []

    def make(lag):
        office = Office(WORLD, lag=lag)
        for number in range(WORLD):
            store = dist.TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False)
            delay_s = 0.09 if number == WORLD - 1 else 0.003
            made.append(Rank(number, WORLD, office, store, delay_s=lambda _, s=delay_s: s).build())
        return made

    yield make
    made[0].office.closing = True
    for rank in made:
        rank.peers.close()
        rank.groups.close()
    torch.set_num_threads(before)


def most_flats(ranks, stop):
    """The most flat tensors of each rank that were alive at a time."""
    most = [0] * len(ranks)
    layouts = {id(rank.engine._exchange.pool.layout): place for place, rank in enumerate(ranks)}
    while not stop.wait(0.1):
        alive = [0] * len(ranks)
        for thing in gc.get_objects():
            if type(thing) is Flat and id(thing.layout) in layouts:  # another test's may still be there
                alive[layouts[id(thing.layout)]] += 1
        most = [max(pair) for pair in zip(most, alive, strict=True)]
    return most


@pytest.mark.parametrize(("mode", "options"), [("m-sync", {"m": 3}), ("asgd", {})], ids=str)
def test_memory_is_bounded_however_slow_a_rank_is(ranks, mode, options):
    made = ranks(LAG)
    office, behind, stop, most = made[0].office, set(), threading.Event(), []

    def after(rank, index):
        if rank.rank == 0 and index == 4:
            office.switch(mode, **options)
        behind.update(r for r, known in office.coordinator.ranks.items() if known.behind)

    watcher = threading.Thread(target=lambda: most.extend(most_flats(made, stop)))
    watcher.start()
    train(made, 2, 150, after=after)
    stop.set()
    watcher.join(10)
    assert WORLD - 1 in behind  # on a busy machine others may be, too
    assert all(0 < count <= FLAT_TENSORS for count in most), most
    for rank in made[1:]:
        for a, b in zip(made[0].parameters() + made[0].moments(), rank.parameters() + rank.moments(), strict=True):
            assert torch.equal(a, b)
    assert all(rank.engine.counts.iterations == 300 for rank in made)
    assert made[-1].engine.counts.skipped > 200


def test_a_rank_that_can_not_be_told_keeps_no_more_results_than_others_would_keep_for_it(ranks):
    made = ranks(LAG)
    office, slow = made[0].office, made[-1]
    office.lease_s = 60
    held = []

    def after(rank, index):
        if rank.rank == 0 and index == 4:
            office.switch("m-sync", m=3)
        if rank is slow and index > 5 and not rank.engine.native and not held:
            office.disconnect(slow.rank)
            deadline = time.monotonic() + 20
            while made[0].engine.version < slow.engine.version + 60 and time.monotonic() < deadline:
                time.sleep(0.01)
            held.append(len(slow.engine._exchange._results))
            office.connect(slow.rank, slow.engine, slow.member, slow.lock)

    train(made, 1, 120, after=after)
    # Those that the others may still have asked for when it was cut off, and those that came after.
    assert 0 < held[0] < 3 * LAG.rounds, "sixty rounds went by"
    assert torch.equal(made[0].parameters()[0], slow.parameters()[0])
