"""The link between recorders: proof of identity, nothing lost, nothing twice, and strangers cost nothing."""

import contextlib
import os
import socket
import threading
import time

import pytest
from launch_lab import wait_for

from starprof.errors import TransportError
from starprof.launch import clock, kinds
from starprof.launch.inbox import Inbox, Peer
from starprof.launch.incoming import Incoming
from starprof.launch.journal import Journal
from starprof.launch.plan import Plan
from starprof.launch.post import MAX_UNPROVEN
from starprof.launch.receiver import Receiver
from starprof.launch.sender import Sender
from starprof.model.schema import BY_NAME, row
from starprof.spool.frame import frames, json_frame
from starprof.spool.layout import Spool
from starprof.spool.segment import SegmentWriter
from starprof.wire import channel as wire
from starprof.wire.frames import Frames, RejectedError

SECRET = b"a secret of the test"


def plan(folder, **changes):
    made = Plan(run_file=str(folder / "run.starprof"), run_id="r" * 32, command=("true",), lock_fd=-1, **changes)
    made.spool.create()
    return made


@pytest.fixture
def node0(tmp_path):
    """A listening node 0."""
    receiver = Receiver(plan(tmp_path / "node0"), ("127.0.0.1", 0), SECRET)
    receiver.start(Journal(receiver._spool.segments, 0))
    yield receiver
    receiver.close()


@pytest.fixture
def joined(tmp_path, node0):
    """Joins node 0, as node `node` or as whatever node 0 says."""
    senders = []

    def join(name="other", *, node=None, address=None, secret=SECRET):
        own = plan(tmp_path / name, node=node, join="node0")
        sender = Sender.join(own, address or node0.address, secret)
        senders.append(sender)
        sender.start(Journal(own.spool.segments, sender.node))
        return sender, own.spool

    yield join
    for sender in senders:
        sender._ending.set()
        sender.close()


def write_rows(spool, source, count, *, first=0):
    """Seal a segment with `count` events; returns their stream."""
    event = BY_NAME["event"]
    writer = SegmentWriter(spool.segments, source)
    rows = [row(event, mono_ns=n, kind="gc", detail="x" * 50) for n in range(first, first + count)]
    writer.write([json_frame(event, f"{source}/event", first, rows)])
    writer.close()


def received(spool):
    """(stream, seq, rows) of every frame in a spool, of the test's own streams."""
    found = []
    for path in sorted(spool.segments.glob("*.seg")):
        found += [(f.stream, f.seq, f.rows) for f, _ in frames(path.read_bytes()) if f.table.name == "event"]
    return found


class TestHandshake:
    def test_both_know_the_secret(self, node0):
        channel = wire.connect(node0.address, kinds.NODE_0, SECRET, 5)
        channel.send_json(kinds.JOIN, node=3, host="h", recorder="x")
        assert channel.receive_json(5) == (kinds.WELCOME, {"node": 3, "run_id": "r" * 32})
        channel.close()

    def test_wrong_secret_is_refused(self, node0):
        with pytest.raises(RejectedError, match="does not accept the secret"):
            wire.connect(node0.address, kinds.NODE_0, b"another secret", 5)

    def test_node_0_must_prove_itself_too(self):
        with socket.create_server(("127.0.0.1", 0)) as impostor:

            def answer():
                sock, _ = impostor.accept()
                sock.sendall(kinds.NODE_0.magic + bytes(32))
                sock.recv(64)
                sock.sendall(bytes(32))
                sock.close()

            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises(RejectedError, match="is it node 0"):
                wire.connect(impostor.getsockname(), kinds.NODE_0, SECRET, 5)
            thread.join()

    def test_stranger_gets_a_nonce_and_no_more(self, node0):
        with socket.create_connection(node0.address) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(200))
            got = b""
            with sock.makefile("rb") as stream, contextlib.suppress(ConnectionResetError):
                got = stream.read()
        assert len(got) in (0, kinds.NODE_0.greeting_bytes)

    def test_strangers_that_dawdle_do_not_keep_nodes_out(self, node0, joined):
        strangers = [socket.create_connection(node0.address) for _ in range(MAX_UNPROVEN + 20)]
        try:
            wait_for(lambda: node0.unproven >= MAX_UNPROVEN - 1)
            assert joined()[0].node == 1
            assert node0.unproven <= MAX_UNPROVEN
        finally:
            for sock in strangers:
                sock.close()

    def test_dripping_stranger_is_cut_off_in_time(self, node0, monkeypatch):
        monkeypatch.setattr(wire, "HANDSHAKE_S", 0.4)
        with socket.create_connection(node0.address) as sock:
            sock.recv(100)
            for _ in range(60):
                time.sleep(0.05)
                try:
                    sock.sendall(b"x")
                except OSError:
                    return
        raise AssertionError("it could go on for ever")


class TestFrames:
    @pytest.fixture
    def pair(self):
        """A client's and a server's end."""
        left, right = socket.socketpair()
        yield wire.Channel(left, Frames(b"a", b"b")), wire.Channel(right, Frames(b"b", b"a")), left, right
        left.close()
        right.close()

    def test_arrive_as_sent(self, pair):
        here, there, *_ = pair
        here.send(kinds.CHUNK, b"abc")
        here.send_json(kinds.OFFER, name="n")
        assert there.receive(5) == (kinds.CHUNK, b"abc")
        assert there.receive_json(5) == (kinds.OFFER, {"name": "n"})

    def test_changed_byte_is_noticed(self, pair):
        here, there, left, right = pair
        here.send(kinds.CHUNK, b"abc")
        data = bytearray(right.recv(1000))
        data[6] ^= 1
        left.sendall(data)
        with pytest.raises(TransportError, match="damaged"):
            there.receive(5)

    def test_repeated_frame_is_noticed(self, pair):
        here, there, left, right = pair
        here.send(kinds.CHUNK, b"abc")
        data = right.recv(1000)
        left.sendall(data + data)
        there.receive(5)
        with pytest.raises(TransportError, match="damaged"):
            there.receive(5)

    def test_length_is_bounded_before_memory_is_taken(self, pair):
        _, there, left, _ = pair
        left.sendall(b"\xff\xff\xff\x7f\x01")
        with pytest.raises(TransportError, match="too long"):
            there.receive(5)

    def test_silence_is_bounded(self, pair):
        _, there, left, _ = pair
        left.sendall(b"\x01")
        with pytest.raises(TransportError, match="too slow"):
            there.receive(0.2)


class TestNodes:
    def test_ids_are_handed_out(self, joined):
        assert [joined(name)[0].node for name in ("a", "b")] == [1, 2]

    def test_id_can_be_asked_for(self, joined):
        assert joined("a", node=5)[0].node == 5
        assert joined("b")[0].node == 1

    def test_clash_is_refused(self, joined):
        joined("a", node=5)
        with pytest.raises(RejectedError, match="node 5 is recorded by"):
            joined("b", node=5)

    def test_run_id_is_node_0s(self, joined):
        assert joined()[0].run_id == "r" * 32

    def test_unreachable_node_0_says_what_to_do(self, tmp_path, monkeypatch):
        monkeypatch.setattr("starprof.launch.sender.OPEN_S", 0.3)
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = free.getsockname()
        with pytest.raises(TransportError, match="start its recorder first"):
            Sender.join(plan(tmp_path, join="x"), address, SECRET)


class TestShipping:
    def test_segments_move_to_node_0(self, node0, joined):
        sender, spool = joined()
        write_rows(spool, "n1", 100)
        wait_for(lambda: received(node0._spool) == [("n1/event", 0, 100)])
        wait_for(lambda: not list(spool.segments.glob("n1.*")))
        sender.begin_end(drained=True)
        wait_for(sender.complete)
        assert node0.complete()
        assert list(spool.segments.iterdir()) == []

    def test_what_a_killed_writer_left_comes_at_the_end(self, node0, joined):
        sender, spool = joined()
        event = BY_NAME["event"]
        writer = SegmentWriter(spool.segments, "n1")
        writer.write([json_frame(event, "n1/event", 0, [row(event, kind="gc")])])
        os.close(writer._fd)  # as a kill does
        (part,) = spool.segments.glob("n1.*.part")
        with part.open("ab") as torn:
            torn.write(b"SPF1 torn")
        sender.begin_end(drained=True)
        wait_for(sender.complete)
        assert received(node0._spool) == [("n1/event", 0, 1)]

    def test_rings_come_along_when_the_agent_did_not_drain_them(self, node0, joined):
        sender, spool = joined()
        (spool.rings / "n1-7-8.ring").write_bytes(b"r" * 400_000)
        sender.begin_end(drained=False)
        wait_for(sender.complete)
        assert (node0._spool.rings / "n1-7-8.ring").read_bytes() == b"r" * 400_000

    def test_nodes_can_not_write_over_each_other(self, node0, joined):
        for name in ("a", "b"):
            write_rows(joined(name)[1], "same", 1)
        wait_for(lambda: len(received(node0._spool)) == 2)

    def test_cut_connections_lose_nothing_and_repeat_nothing(self, node0, joined, tmp_path):
        """A proxy cuts the connection again and again, also in the middle of a file."""
        with Proxy(node0.address, budget_bytes=150_000) as proxy:
            sender, spool = joined(address=proxy.address)
            for n in range(12):
                write_rows(spool, f"s{n:02}", 1500)
            sender.begin_end(drained=True)
            wait_for(sender.complete, timeout_s=60)
            assert proxy.cuts >= 5
        assert received(node0._spool) == [(f"s{n:02}/event", 0, 1500) for n in range(12)]
        assert not list(node0._spool.segments.glob("*.incoming"))

    def test_node_0_that_is_gone_leaves_everything_here(self, node0, joined, monkeypatch):
        monkeypatch.setattr("starprof.launch.sender.GONE_PATIENCE_S", 0.5)
        sender, spool = joined()
        node0.close()
        write_rows(spool, "n1", 10)
        sender.begin_end(drained=True)
        wait_for(lambda: not sender.busy())
        assert not sender.complete()
        assert "stay on this machine" in sender.remarks()[0]
        assert ("n1/event", 0, 10) in received(spool)

    def test_node_that_vanished_is_named(self, node0, monkeypatch):
        monkeypatch.setattr("starprof.launch.receiver.MISSING_PATIENCE_S", 0.3)
        channel = wire.connect(node0.address, kinds.NODE_0, SECRET, 5)
        channel.send_json(kinds.JOIN, node=4, host="far-away", recorder="x")
        channel.receive(5)
        channel.close()
        node0.begin_end(drained=True)
        assert node0.busy()
        wait_for(lambda: not node0.busy())
        assert not node0.complete()
        assert "node 4 (far-away) has not delivered everything" in node0.remarks()[0]


def incoming_of(spool):
    """Files of node 1."""
    return Incoming(Inbox(spool, "r" * 32), Peer(1, "h", "x"))


class TestIncoming:
    @pytest.mark.parametrize(
        "name",
        ["../run.json", "a/b.1.seg", ".seg", "x.1.part", "lock", "n2-1-1.ring", "x.1.seg\n", "", 3, None],
    )
    def test_only_spool_files_of_this_node_are_taken(self, tmp_path, name):
        spool = Spool(tmp_path)
        spool.create()
        with pytest.raises(TransportError):
            incoming_of(spool).offer({"name": name, "size": 1})

    @pytest.mark.parametrize("size", [-1, 1 << 40, "1", None])
    def test_size_is_bounded(self, tmp_path, size):
        with pytest.raises(TransportError):
            incoming_of(Spool(tmp_path)).offer({"name": "x.1.seg", "size": size})

    def test_more_than_offered_is_refused(self, tmp_path):
        spool = Spool(tmp_path)
        spool.create()
        incoming = incoming_of(spool)
        incoming.offer({"name": "x.1.seg", "size": 2})
        with pytest.raises(TransportError):
            incoming.append(b"123")

    def test_damaged_file_is_dropped(self, tmp_path):
        spool = Spool(tmp_path)
        spool.create()
        incoming = incoming_of(spool)
        incoming.offer({"name": "x.1.seg", "size": 2})
        incoming.append(b"12")
        assert not incoming.finish(bytes(32))
        assert list(spool.segments.iterdir()) == []


class TestClock:
    def test_offset_is_exact_when_both_ways_are_equal(self):
        # node 0 is 1,000,000 ahead; 50 there, 7 in node 0, 50 back
        assert clock.estimate(100, 1_000_150, 1_000_157, 207) == clock.Offset(1_000_000, 51)

    @pytest.mark.parametrize(("there", "back"), [(0, 900), (900, 0), (450, 450), (10, 30)])
    def test_truth_lies_within_the_bound(self, there, back):
        skew = -5_000_000_000
        received = 1000 + there + skew
        offset = clock.estimate(1000, received, received + 20, 1000 + there + 20 + back)
        assert abs(offset.offset_ns - skew) <= offset.error_ns

    def test_one_machine_has_one_clock(self, node0):
        channel = wire.connect(node0.address, kinds.NODE_0, SECRET, 5)
        channel.send_json(kinds.JOIN, node=None, host="h", recorder="x")
        channel.receive(5)
        offset = clock.measure(channel, 5)
        channel.close()
        assert abs(offset.offset_ns) <= offset.error_ns


class Proxy:
    """Forwards connections, and cuts each after `budget_bytes` towards the server."""

    def __init__(self, target, *, budget_bytes):
        self.target, self.budget, self.cuts = target, budget_bytes, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error):
        wire.hang_up(self._listener)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self.target)
            except OSError:
                return
            threading.Thread(target=self._pump, args=(server, client, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(client, server, self.budget), daemon=True).start()

    def _pump(self, source, sink, budget):
        try:
            while data := source.recv(65536):
                if budget is not None:
                    budget -= len(data)
                    if budget < 0:
                        self.cuts += 1
                        sink.sendall(data[:budget])
                        break
                sink.sendall(data)
        except OSError:
            pass
        wire.hang_up(source)
        wire.hang_up(sink)
