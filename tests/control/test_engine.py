"""Engines of several ranks in one process: what every rank has at the end must be the same, bit for bit."""

import gc
import threading
import time

import pytest
import torch
import torch.distributed as dist
from engine_world import Office, Rank, train

from starprof.control.engine import flat, star

WORLD = 4


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def ranks():
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    made = []
    office = Office(WORLD)

    def make(delay_s=lambda _rank, _index: 0.0, world=WORLD):
        for number in range(world):
            store = dist.TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False)
            made.append(Rank(number, world, office, store, delay_s=lambda index, r=number: delay_s(r, index)).build())
        return made

    yield make
    office.closing = True
    for rank in made:
        rank.peers.close()
        rank.groups.close()


def same(ranks):
    first = ranks[0]
    for rank in ranks[1:]:
        for a, b in zip(first.parameters(), rank.parameters(), strict=True):
            assert torch.equal(a, b)
        for a, b in zip(first.moments(), rank.moments(), strict=True):
            assert torch.equal(a, b)


def slow_last(rank, _index):
    return 0.012 if rank == WORLD - 1 else 0.003


def switching(office, plan):
    """Ask for modes when rank 0 has done so many iterations, or has passed over that one."""
    left = dict(plan)

    def after(rank, index):
        for at in sorted(left) if rank.rank == 0 else ():
            if at <= index:
                name, options = left.pop(at)
                office.switch(name, **options)

    return after


MODES = [
    ("ssgd", {}),
    ("m-sync", {"m": 3}),
    ("m-sync", {"m": 1}),
    ("m-sync-fold", {"m": 3}),
    ("static-x", {"x": 2}),
    ("asgd", {}),
    ("ring-x", {"x": 3}),
    ("dynamic-x", {}),
    ("deadline", {"after_s": 0.004}),
    ("backup", {"b": 1}),
    ("ssp", {"s": 3}),
    ("lgc", {"k": 3}),
    ("eager", {}),
    ("rennala", {"batch": 3}),
    ("ringmaster", {"r": 4}),
    ("local-sgd", {"period": 4}),
    ("hierarchical", {"period": 4, "groups": [[0, 1], [2, 3]]}),
]


@pytest.mark.parametrize(("mode", "options"), MODES, ids=lambda value: str(value))
def test_replicas_are_identical_in_every_mode_and_after_the_way_back(ranks, mode, options):
    made = ranks(slow_last)
    office = made[0].office
    train(made, 2, 25, after=switching(office, {4: (mode, options), 21: (None, {})}))
    same(made)
    assert all(rank.engine.counts.handed_in > 0 for rank in made)
    assert all(rank.engine.native for rank in made), "nobody came back to native steps"
    assert all(rank.engine.counts.iterations == 50 for rank in made)


@pytest.mark.parametrize("way", ["small sums", "rings"])
def test_a_sequence_of_modes(ranks, monkeypatch, way):
    if way == "rings":
        monkeypatch.setattr(star, "STAR_BYTES", 0)
    made = ranks(slow_last)
    plan = {
        3: ("m-sync", {"m": 2}),
        12: ("asgd", {}),
        20: ("ssgd", {}),
        26: (None, {}),
        40: ("static-x", {"x": 3}),
        55: ("m-sync-fold", {"m": 2}),
        70: (None, {}),
    }
    train(made, 3, 30, after=switching(made[0].office, plan))
    same(made)
    assert all(rank.engine.native for rank in made)


def test_rounds_of_everybody_are_what_native_steps_are(ranks):
    made = ranks()
    train(made, 1, 30, after=switching(made[0].office, {3: ("ssgd", {})}))
    same(made)
    alone = Rank(0, WORLD, made[0].office, None)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for index in range(30):
        optimizer.zero_grad()
        for rank in range(WORLD):
            alone.rank = rank
            x, y = alone.batch(index)
            (torch.nn.functional.cross_entropy(model(x), y) / WORLD).backward()
        optimizer.step()
    for mine, theirs in zip(model.parameters(), made[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_the_update_is_the_mean_over_the_recorded_contributors(ranks):
    made = ranks(slow_last)
    office = made[0].office
    contributed = {}
    for rank in made:
        original = rank.engine._member.gradient

        def gradient(*args, rank=rank, original=original, **kwargs):
            actions = original(*args, **kwargs)
            for action in actions:
                g = action.message.gradient
                contributed[g.worker, g.number] = [p.grad.clone() for p in rank.model.parameters()]
            return actions

        rank.engine._member.gradient = gradient
    put = {}
    engine = made[0].engine
    original_result = engine._exchange.result

    def result(number):
        flat = original_result(number)
        put[number] = (engine._member.can_deliver(number), [view.clone() for view in flat.views])
        return flat

    engine._exchange.result = result
    train(made, 1, 30, after=switching(office, {3: ("m-sync", {"m": 3})}))
    assert len(put) > 10
    for close, values in put.values():
        assert sum(close.weights) == pytest.approx(1.0)
        for place, value in enumerate(values):
            expected = sum(
                weight * contributed[g.worker, g.number][place]
                for g, weight in zip(close.gradients, close.weights, strict=True)
            )
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-7)


def test_a_rank_that_was_cut_off_for_too_long_takes_another_ones_state(ranks):
    made = ranks(slow_last)
    office = made[0].office
    office.lease_s = 0.05
    last = made[-1]
    cut = threading.Event()

    def after(rank, index):
        if rank.rank == 0 and index == 4:
            office.switch("m-sync", m=2)
        if rank is last and index > 8 and not cut.is_set():
            cut.set()
            office.disconnect(last.rank)
            deadline = time.monotonic() + 10
            while last.rank in office.coordinator.live and time.monotonic() < deadline:
                time.sleep(0.01)
            assert last.rank not in office.coordinator.live
            office.connect(last.rank, last.engine, last.member, last.lock)

    train(made, 2, 60, after=after)
    assert cut.is_set()
    same(made)


def test_the_others_go_on_without_a_rank_that_died(ranks):
    made = ranks(slow_last)
    office = made[0].office
    victim = made[1]

    class Killed(BaseException):
        pass

    def after(rank, index):
        if rank.rank == 0 and index == 4:
            office.switch("m-sync", m=3)
        if rank is victim and index == 14:
            victim.peers.close()
            victim.groups.close()
            office.gone(victim.rank)
            raise Killed

    with pytest.raises(AssertionError, match="Killed"):
        train(made, 2, 40, after=after)
    others = [rank for rank in made if rank is not victim]
    same(others)
    assert all(rank.engine.counts.iterations == 80 for rank in others)
    assert not any(rank.engine.native for rank in others), "native steps need everybody"


def test_buffers_are_reused(ranks):
    made = ranks()
    train(made, 1, 60, after=switching(made[0].office, {3: ("ssgd", {})}))
    assert all(len(rank.engine._exchange.pool._free) + len(rank.engine._exchange._results) <= 6 for rank in made)


def buffers(layout):
    """Where in memory tensors of at least the size of a flat one are, whoever holds them."""
    size = layout.size * layout.dtype.itemsize
    storages = [o.untyped_storage() for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
    return {storage.data_ptr() for storage in storages if storage.nbytes() >= size}


@pytest.mark.parametrize(("mode", "options"), [("ssgd", {}), ("m-sync", {"m": 3}), ("asgd", {})])
def test_flat_tensors_are_reused(ranks, monkeypatch, mode, options):
    made_flats = []

    class Counted(flat.Flat):
        def __init__(self, *args):
            super().__init__(*args)
            made_flats.append(self)

    monkeypatch.setattr(flat, "Flat", Counted)
    made = ranks(lambda rank, _index: 0.002 if rank == WORLD - 1 else 0.001)
    exchanges = [rank.engine._exchange for rank in made]
    seen = []

    def after(rank, index):
        if rank.rank != 0:
            return
        if index == 5:
            rank.office.switch(mode, **options)
        if len(rank.office.closes) >= (50, 250, 1 << 62)[len(seen)]:
            seen.append((len(made_flats), buffers(exchanges[0].pool.layout)))

    train(made, 1, 270, after=after)
    same(made)
    (flats, storages), (later_flats, later_storages) = seen
    if mode == "ssgd":  # elsewhere a rank that falls further behind than ever before holds more results at once
        assert later_flats - flats <= WORLD
        assert len(later_storages - storages) <= WORLD

    def kept():
        return sum(len(e.pool._free) + len(e._results) + len(e._own) for e in exchanges)

    deadline_s = time.monotonic() + 10
    while kept() != len(made_flats) and time.monotonic() < deadline_s:
        time.sleep(0.01)  # the last results are still on their way to others
    assert kept() == len(made_flats), "some were lost, and made again"
