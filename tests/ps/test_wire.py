"""The parameter server's transport: real sockets, a hub in a thread of its own, and clients that behave or don't."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from starprof.errors import TransportError
from starprof.ps.wire import SERVICE, Hub, Limits, connect, listen
from starprof.ps.wire.heads import MAX_HEADER_BYTES
from starprof.ps.wire.sockets import paced
from starprof.wire.channel import dial
from starprof.wire.frames import RejectedError, Service

SECRET = b"of this test"
WAIT_S = 60.0
OPEN = []
ECHO, UNWANTED, PLACELESS, NO_MESSAGE, FLOOD = range(1, 6)


def until(condition):
    """Wait until something holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)


class Echo:
    """Gives back what comes, from one place for each line; the place is taken until it was sent."""

    def __init__(self):
        self.here = []
        self.whys = []
        self.heads = []
        self.places = 0

    def joined(self, line):
        line.data = bytearray()
        self.here.append(line)

    def room(self, line, head):
        if head.kind == UNWANTED:
            return None
        if head.kind == PLACELESS:
            return memoryview(bytearray(1))
        if len(line.data) != head.payload_bytes:
            line.data = bytearray(head.payload_bytes)
            self.places += 1
        return memoryview(line.data)

    def came(self, line, head, payload):
        self.heads.append(head)
        if head.kind == NO_MESSAGE:
            raise TransportError("that is no message")
        for _ in range(1000 if head.kind == FLOOD else 1):
            line.send(head.kind, head.header, payload)

    def lost(self, line, why):
        self.here.remove(line)
        self.whys.append(why)


@contextlib.contextmanager
def serving(limits=None, owner=None):
    """A hub in a thread, and its owner."""
    owner = owner or Echo()
    hub = Hub(listen("127.0.0.1"), SECRET, owner, limits=limits)
    thread = threading.Thread(target=hub.run)
    thread.start()
    try:
        yield hub, owner
    finally:
        hub.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def _hung_up():
    """Nothing stays open."""
    yield
    while OPEN:
        OPEN.pop().close()


def client(hub, secret=SECRET, **options):
    """A connection of a client."""
    connection = connect(hub.address, secret, **options)
    OPEN.append(connection)
    return connection


def asked(connection, header, payload, kind=ECHO):
    """What comes back."""
    connection.send(kind, header, memoryview(payload))
    head = connection.receive(WAIT_S)
    got = bytearray(head.payload_bytes)
    connection.receive_into(memoryview(got))
    return head.kind, head.header, bytes(got)


@pytest.mark.parametrize("size", [0, 1, 4000, 4096, 5000, 3_000_017])
def test_messages_of_any_size_come_back_as_they_were(size):
    payload = os.urandom(size)
    with serving() as (hub, _):
        connection = client(hub)
        for header in (b"", b"some words", os.urandom(5000), os.urandom(MAX_HEADER_BYTES), b"short again"):
            assert asked(connection, header, payload) == (ECHO, header, payload)
        connection.close()


def test_what_many_send_at_once_is_not_mixed_up_and_each_has_one_place():
    with serving() as (hub, owner):
        wrong = []

        def talk(number):
            connection = client(hub)
            payload = bytes([number]) * 1_000_003
            for turn in range(5):
                header = f"{number} {turn}".encode()
                if asked(connection, header, payload) != (ECHO, header, payload):
                    wrong.append(header)
            connection.close()

        threads = [threading.Thread(target=talk, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert not wrong
        assert len(owner.heads) == 40
        assert owner.places == 8
        until(lambda: not owner.here)


def test_messages_that_follow_each_other_at_once_are_all_there_and_in_order():
    with serving() as (hub, _):
        connection = client(hub)
        for number in range(40):
            connection.send(ECHO, str(number).encode(), memoryview(bytes([number]) * 100))
        for number in range(40):
            assert connection.receive(WAIT_S).header == str(number).encode()
            connection.skip()


def test_a_payload_is_sent_and_read_in_parts():
    with serving() as (hub, _):
        connection = client(hub)
        connection.begin(ECHO, b"parts", 6)
        for part in (b"ab", b"cde", b"f"):
            connection.put(memoryview(part))
        assert connection.receive(WAIT_S).payload_bytes == 6
        got = bytearray(6)
        for begin, end in ((0, 1), (1, 6)):
            connection.receive_into(memoryview(got)[begin:end])
        assert got == b"abcdef"
        with pytest.raises(TransportError, match="more than"):
            connection.receive_into(memoryview(bytearray(1)))
        connection.begin(ECHO, b"", 1)
        with pytest.raises(TransportError, match="more than"):
            connection.put(memoryview(b"ab"))


def test_what_nobody_wants_is_read_and_the_line_goes_on():
    with serving() as (hub, owner):
        connection = client(hub)
        connection.send(UNWANTED, b"", memoryview(bytes(1_000_000)))
        assert connection.receive(WAIT_S).payload_bytes == 0
        assert asked(connection, b"after", b"that")[2] == b"that"
        assert owner.places == 1


@pytest.mark.parametrize("kind", [PLACELESS, NO_MESSAGE])
def test_a_message_that_the_owner_does_not_take_ends_only_its_own_line(kind):
    with serving() as (hub, owner):
        good, bad = client(hub), client(hub)
        with pytest.raises(TransportError):
            asked(bad, b"", b"some bytes", kind)
        until(lambda: owner.whys)
        assert asked(good, b"still", b"here")[2] == b"here"


def test_strangers_get_nowhere_and_keep_nobody_waiting():
    with serving(Limits(strangers=4)) as (hub, owner):
        silent = [socket.create_connection(hub.address) for _ in range(8)]
        with pytest.raises(RejectedError, match="does not accept the secret"):
            client(hub, b"another secret")
        with pytest.raises(RejectedError, match="another version"):
            client(hub, service=Service(b"SPS0", "a parameter server"))
        with socket.create_connection(hub.address) as loud:
            loud.sendall(b"GET / HTTP/1.1\r\nHost: somebody\r\nAccept: anything at all, please\r\n\r\n")
            until(lambda: hub.refused >= 3)
        assert asked(client(hub), b"", b"served")[2] == b"served"
        assert len(owner.heads) == 1
        until(lambda: hub.refused >= 10)  # the silent ones too: some at once, the others when their time is over
        for sock in silent:
            sock.close()


def test_no_more_connections_than_allowed():
    with serving(Limits(lines=2)) as (hub, _):
        first, second = client(hub), client(hub)
        with pytest.raises(TransportError):
            asked(client(hub), b"", b"one too many")
        assert asked(first, b"", b"1")[2] == b"1"
        assert asked(second, b"", b"2")[2] == b"2"


def test_more_than_allowed_is_refused_before_there_is_a_place_for_it():
    with serving(Limits(payload_bytes=1000)) as (hub, owner):
        connection = client(hub)
        with pytest.raises(TransportError):
            asked(connection, b"", bytes(1001))
        until(lambda: owner.whys)
        assert "more than the allowed" in owner.whys[0]
        assert not owner.places
        with pytest.raises(TransportError, match="too long"):
            client(hub).send(ECHO, bytes(MAX_HEADER_BYTES + 1))


@pytest.mark.parametrize("at", [0, 4, 9, 30])
def test_a_head_that_was_changed_on_its_way_ends_the_line(at):
    with serving() as (hub, owner):
        sock, frames = dial(hub.address, SERVICE, SECRET, WAIT_S)
        data = bytearray(frames.seal(ECHO, (8).to_bytes(8, "little") + b"header") + bytes(8))
        data[at] ^= 1
        sock.sendall(data + bytes(1 << 16))
        until(lambda: owner.whys)
        assert not owner.heads
        sock.close()


@pytest.mark.parametrize("cut", [3, 20, 60])
def test_a_message_that_breaks_off_never_comes(cut):
    with serving() as (hub, owner):
        sock, frames = dial(hub.address, SERVICE, SECRET, WAIT_S)
        sock.sendall((frames.seal(ECHO, (100).to_bytes(8, "little") + b"header") + bytes(100))[:cut])
        sock.close()
        until(lambda: owner.whys)
        assert not owner.heads


def test_who_stops_in_the_middle_of_a_message_is_given_up_and_who_rests_between_two_is_not():
    with serving(Limits(stall_s=1.0)) as (hub, owner):
        rests = client(hub)
        stops = client(hub)
        stops.begin(ECHO, b"half", 1000)
        stops.put(memoryview(bytes(500)))
        until(lambda: owner.whys)
        assert owner.whys == ["it stopped in the middle of a message"]
        assert asked(rests, b"", b"there")[2] == b"there"


def test_who_takes_nothing_is_given_up_while_others_are_served():
    with serving(Limits(stall_s=1.0)) as (hub, owner):
        slow, other = client(hub), client(hub)
        slow.send(ECHO, b"", memoryview(bytes(64 << 20)))  # more than the connection holds
        while not owner.whys:
            assert asked(other, b"", b"meanwhile")[2] == b"meanwhile"
        assert owner.whys == ["it stopped in the middle of a message"]


def test_who_lets_too_much_wait_is_hung_up_on():
    with serving() as (hub, owner):
        greedy = client(hub)
        greedy.send(FLOOD, b"", memoryview(bytes(1 << 20)))
        until(lambda: owner.whys)
        assert owner.whys == ["it leaves too much waiting"]


def test_every_payload_is_given_back_once_whatever_becomes_of_its_line():
    class Sender(Echo):
        def came(self, line, head, payload):
            for _ in range(10):
                line.send(ECHO, b"", memoryview(bytes(8 << 20)), lambda: done.append(1))

    done = []
    with serving(Limits(stall_s=1.0), Sender()) as (hub, owner):
        connection = client(hub)
        connection.send(ECHO)
        assert connection.receive(WAIT_S).payload_bytes == 8 << 20
        connection.skip()
        connection.close()
        until(lambda: owner.whys)
    assert len(done) == 10


def test_a_client_notices_a_server_that_stops_and_one_that_is_silent():
    with serving() as (hub, _):
        connection = client(hub)
        with pytest.raises(TransportError, match="silent"):
            connection.receive(0.6)
        other = client(hub)
    with pytest.raises(TransportError):
        other.receive(WAIT_S)


def test_another_thread_may_close_a_connection_that_waits():
    with serving() as (hub, _):
        connection = client(hub)
        threading.Timer(0.2, connection.close).start()
        with pytest.raises(TransportError):
            connection.receive(WAIT_S)
        with pytest.raises(TransportError, match="closed"):
            connection.send(ECHO, b"", memoryview(bytes(10)))


def test_calls_and_timers_run_in_the_hubs_thread():
    ran = []
    with serving() as (hub, _):
        hub.call(lambda: ran.append(threading.current_thread()))
        hub.call(lambda: hub.later(0.01, lambda: ran.append(threading.current_thread())))
        until(lambda: len(ran) == 2)
    assert threading.main_thread() not in ran
    assert ran[0] is ran[1]


def test_a_connection_is_paced_and_let_go_again():
    with serving() as (hub, _):
        connection = client(hub)
        with socket.socket(fileno=os.dup(connection.fileno())) as same:
            assert paced(same) is None
            connection.pace(5e6)
            assert paced(same) == 5_000_000
            connection.pace(None)
            assert paced(same) is None
        assert asked(connection, b"", b"as before")[2] == b"as before"


CLIENT = """
import sys
from starprof.ps.wire import connect
connection = connect(("127.0.0.1", int(sys.argv[1])), b"of this test")
while True:
    connection.send(1, b"", memoryview(bytes(4 << 20)))
    connection.receive(60.0)
    connection.skip()
    print("one", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_client_process_that_dies_or_stops_is_lost_and_the_others_go_on(how):
    with serving(Limits(stall_s=1.0)) as (hub, owner):
        other = client(hub)
        port = str(hub.address[1])
        with subprocess.Popen([sys.executable, "-c", CLIENT, port], stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout.readline() == b"one\n"
                process.send_signal(how)
                if how == signal.SIGSTOP:
                    # Stopped between two messages it is only slow; told more than its connection holds it is stuck.
                    hub.call(lambda: [at.send(ECHO, b"", memoryview(bytes(64 << 20))) for at in list(owner.here)[1:]])
                until(lambda: owner.whys)
                assert asked(other, b"", b"still here")[2] == b"still here"
            finally:
                process.kill()
