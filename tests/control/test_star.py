"""Small sums over the connections between ranks: all have the same bits, and what is given up touches nothing."""

import threading

import pytest
import torch
import torch.distributed as dist

from starprof.control.engine import star
from starprof.control.engine.peers import Peers
from starprof.control.engine.star import Star, fits
from starprof.errors import TransportError

WORLD, SIZE, PATIENCE_S = 3, 1000, 30
MEMBERS = tuple(range(WORLD))


class Result:
    """What `done` is told."""

    def __init__(self):
        self.complete = None
        self.over = threading.Event()

    def __call__(self, complete):
        assert not self.over.is_set(), "told twice"
        self.complete = complete
        self.over.set()

    def wait(self):
        assert self.over.wait(PATIENCE_S)
        return self.complete


@pytest.fixture
def stars():
    """Of all ranks, on real connections."""
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    peers = [Peers(dist.PrefixStore("peers", server), rank, b"secret", owner=None) for rank in range(WORLD)]
    for one in peers:
        one.tell()
    made = [Star(rank, peers[rank].send_numbers) for rank in range(WORLD)]
    for each, sums in zip(peers, made, strict=True):
        each.sums = sums
    yield made
    for each in peers:
        each.close()


def numbers(rank, seed=0):
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * seed + rank))


def handed_in(stars, name, tensors, ranks=MEMBERS, members=MEMBERS):
    results = {rank: Result() for rank in ranks}
    for rank, result in results.items():
        stars[rank].reduce(members, name, tensors[rank], result)
    return results


def test_all_have_the_sum_in_the_order_of_the_members_whoever_comes_first(stars):
    for seed, order in enumerate([(0, 1, 2), (2, 1, 0), (1, 2, 0)]):
        tensors = [numbers(rank, seed) for rank in MEMBERS]
        expected = tensors[0] + tensors[1] + tensors[2]
        results = handed_in(stars, f"round {seed}".replace(" ", "."), tensors, order)
        assert all(result.wait() for result in results.values())
        assert all(torch.equal(tensor, expected) for tensor in tensors)


def test_several_sums_of_different_members_are_under_way_at_once(stars):
    all_three, two = [numbers(rank) for rank in MEMBERS], [numbers(rank, 1) for rank in MEMBERS]
    begun = handed_in(stars, "a", all_three, (1, 2))
    other = handed_in(stars, "b", two, (1, 2), (1, 2))
    assert all(result.wait() for result in other.values())
    assert torch.equal(two[1], two[2])
    begun |= handed_in(stars, "a", all_three, (0,))
    assert all(result.wait() for result in begun.values())
    assert torch.equal(all_three[0], all_three[2])


def test_a_sum_that_is_given_up_touches_its_tensor_no_more(stars):
    tensors = [numbers(rank) for rank in MEMBERS]
    results = handed_in(stars, "a", tensors, (1, 2))
    stars[2].abandon((0, 1))  # others' affair
    assert not results[2].over.is_set()
    stars[2].abandon(MEMBERS)
    assert results[2].wait() is False
    tensors[2].fill_(7.0)  # it is used for something else, while its former numbers are summed
    expected = numbers(0) + numbers(1) + numbers(2)
    results |= handed_in(stars, "a", tensors, (0,))
    assert results[0].wait()
    assert results[1].wait()
    assert torch.equal(tensors[0], expected)
    assert torch.equal(tensors[1], expected)
    again = [numbers(rank, 1) for rank in MEMBERS]
    assert all(result.wait() for result in handed_in(stars, "b", again).values())  # behind the sum that nobody wants
    assert bool((tensors[2] == 7.0).all())


def test_what_does_not_come_is_given_up_after_a_time(stars, monkeypatch):
    tensors = [numbers(rank) for rank in MEMBERS]
    results = handed_in(stars, "a", tensors, (0, 1))
    stars[0].look()
    assert not results[0].over.is_set()
    monkeypatch.setattr(star, "REDUCE_S", -1.0)
    for each in stars:
        each.look()
    assert results[0].wait() is False
    assert results[1].wait() is False


def test_parts_of_another_size_are_not_added(stars):
    tensors = [numbers(0), numbers(1), torch.zeros(SIZE + 1)]
    results = handed_in(stars, "a", tensors, (1, 2, 0))
    assert results[0].wait() is False
    for rank in (1, 2):
        stars[rank].abandon(MEMBERS)
        assert results[rank].wait() is False


def test_no_more_room_than_a_sum_can_need():
    alone = Star(0, lambda *_told: None)
    for size in (b"0", b"-4", b"%d" % (star.STAR_BYTES + 1)):
        with pytest.raises(TransportError):
            alone.room(b"part a " + size)


def test_all_is_sent_before_a_process_may_end():
    waiting = []
    alone = Star(1, lambda _to, _header, _numbers, done: waiting.append(done))
    alone.reduce((0, 1), "a", numbers(1), Result())
    ended = threading.Event()
    thread = threading.Thread(target=lambda: (alone.settle(PATIENCE_S), ended.set()), daemon=True)
    thread.start()
    assert not ended.wait(0.2)
    waiting[0]()
    assert ended.wait(PATIENCE_S)


def test_only_small_sums_go_this_way():
    assert fits((0, 1), torch.empty(star.STAR_BYTES // 4))
    assert not fits((0, 1, 2), torch.empty(star.STAR_BYTES // 4))
