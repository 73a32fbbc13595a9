"""For how long a rank's data was on its way in a group's reductions, by the kernel's counters of its connections."""

import socket
import sys
import time

import pytest

from starprof.control.engine.transit import Transit, in_ring, reader, sockets
from starprof.sync.transfers import Sent

SIZE = 3_000_000
RING = 4 * SIZE // 3
"""What one of three sends on."""


class Counters:
    """Bytes and microseconds of connections, by descriptor; the group's first reduction comes after 500 of each."""

    def __init__(self, *descriptors):
        self.there = dict.fromkeys(descriptors, (500, 500))

    def more(self, fd, size, us):
        before = self.there[fd]
        self.there[fd] = (before[0] + size, before[1] + us)

    def transit(self, members=(2, 5, 7), rank=5):
        return in_ring(members, rank, [*self.there, 99], self.there.get)


def test_the_ring_s_connection_is_found_among_others_and_its_time_told():
    counters = Counters(10, 11, 12)
    transit = counters.transit()
    transit.reduced(SIZE)
    counters.more(10, 700, 9_000)
    counters.more(11, RING, 70_000)
    counters.more(12, 3 * SIZE, 1_000_000)
    assert transit.sent() == Sent(2, 70_000)
    assert transit.sent() is None


def test_the_first_member_s_data_goes_to_the_last():
    counters = Counters(10)
    transit = counters.transit(rank=2)
    transit.reduced(SIZE)
    counters.more(10, RING, 8_000)
    assert transit.sent() == Sent(7, 8_000)


def test_a_connection_that_is_known_needs_not_be_found():
    counters = Counters(10)
    transit = Transit(4, [10], counters.there.get)
    transit.reduced(SIZE)
    counters.more(10, 1, 30_000)
    assert transit.sent() == Sent(4, 30_000)


def test_several_reductions_are_told_as_their_mean():
    counters = Counters(10)
    transit = counters.transit()
    for _ in range(4):
        transit.reduced(SIZE)
        counters.more(10, RING, 10_000)
    assert transit.sent() == Sent(2, 10_000)


def test_what_was_on_its_way_counts_for_the_next_one_but_not_after_a_rest():
    counters = Counters(10)
    transit = counters.transit()
    transit.reduced(SIZE)
    counters.more(10, RING * 3 // 4, 60_000)
    assert transit.sent() == Sent(2, 60_000)
    counters.more(10, RING // 4, 20_000)
    transit.reduced(SIZE)
    counters.more(10, RING, 70_000)
    assert transit.sent() == Sent(2, 90_000)
    counters.more(10, 10, 50_000)
    assert transit.sent() is None
    transit.reduced(SIZE)
    counters.more(10, RING, 80_000)
    assert transit.sent() == Sent(2, 80_000)


def test_nothing_is_told_where_no_connection_carries_what_a_ring_would():
    counters = Counters(10, 11)
    transit = counters.transit()
    transit.reduced(SIZE)
    counters.more(10, RING // 10, 1)
    counters.more(11, 2 * RING, 1)
    assert transit.sent() is None


def test_a_connection_that_is_gone_or_another_one_now_tells_nothing():
    counters = Counters(10)
    transit = counters.transit()
    for there in (None, (3, 4)):
        transit.reduced(SIZE)
        counters.more(10, RING, 10_000)
        assert transit.sent() is not None
        transit.reduced(SIZE)
        kept = counters.there.pop(10)
        if there is not None:
            counters.there[10] = there
        assert transit.sent() is None
        counters.there[10] = kept


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's counters are Linux's")
def test_the_kernel_counts_what_was_acknowledged_on_a_real_connection():
    before = sockets()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
        with sender, receiver:
            assert {sender.fileno(), receiver.fileno()} <= {fd for fd, _ in sockets() - before}
            read = reader()
            begun, _ = read(sender.fileno())
            sender.sendall(bytes(5_000))
            assert len(receiver.recv(5_000, socket.MSG_WAITALL)) == 5_000
            deadline_s = time.monotonic() + 10
            while read(sender.fileno())[0] < begun + 5_000 and time.monotonic() < deadline_s:
                time.sleep(0.01)
            assert read(sender.fileno())[0] == begun + 5_000
            assert read(sender.fileno())[1] >= 0
    assert read(receiver.fileno()) is None
