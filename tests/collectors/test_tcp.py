import contextlib
import os
import socket
import statistics
import struct
import subprocess
import sys
import time

import pytest
from device_lab import SECOND_NS, Namespace, Recorded, Remote, join
from hypothesis import given
from hypothesis import strategies as st

from starprof.collectors.base import NodeContext, Unavailable
from starprof.collectors.inetdiag import DiagSocket, TcpInfo, parse_tcp_info
from starprof.collectors.tcp import MAX_OTHERS, TcpCollector

T0 = 100 * SECOND_NS

# Offsets of struct tcp_info in linux/tcp.h
OFFSETS = {
    "unacked": ("=I", 24),
    "rtt_us": ("=I", 68),
    "retransmits": ("=I", 100),
    "acked_bytes": ("=Q", 120),
    "received_bytes": ("=Q", 128),
    "min_rtt_us": ("=I", 148),
    "delivery_bytes_per_s": ("=Q", 160),
    "busy_us": ("=Q", 168),
    "rwnd_limited_us": ("=Q", 176),
    "sndbuf_limited_us": ("=Q", 184),
}


def tcp_info(length=248, **values):
    data = bytearray(max(length, 248))
    for name, value in values.items():
        layout, at = OFFSETS[name]
        struct.pack_into(layout, data, at, value)
    return bytes(data[:length])


INVENTED = {name: 1000 + i for i, name in enumerate(OFFSETS)}


def test_every_field_is_taken_from_its_place():
    assert parse_tcp_info(tcp_info(**INVENTED)) == TcpInfo(**INVENTED)


@given(st.integers(0, 248))
def test_a_kernel_that_tells_less_leaves_the_rest_null(length):
    info = parse_tcp_info(tcp_info(length, **INVENTED))
    for name, (layout, at) in OFFSETS.items():
        assert getattr(info, name) == (INVENTED[name] if at + struct.calcsize(layout) <= length else None)


def test_what_was_never_measured_is_null_not_zero():
    info = parse_tcp_info(tcp_info(min_rtt_us=0xFFFFFFFF))
    assert (info.rtt_us, info.min_rtt_us, info.delivery_bytes_per_s) == (None, None, None)
    assert info.acked_bytes == 0


@contextlib.contextmanager
def connection(family=socket.AF_INET, host="127.0.0.1", to=None):
    """Two connected sockets of this process: client and server end."""
    with socket.create_server((host, 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as listener:
        client = socket.create_connection((to or host, listener.getsockname()[1]))
        server, _ = listener.accept()
        with client, server:
            yield client, server


@pytest.fixture
def here():
    """The test's own process as rank 3."""
    return NodeContext(tree={os.getpid(): 3}, rank_pids={3: os.getpid()})


@pytest.fixture
def tcp():
    opened = []

    def open_collector(context):
        collector, rows = TcpCollector(), Recorded()
        collector.open(context, rows)
        opened.append(collector)
        return collector, rows

    yield open_collector
    for collector in opened:
        collector.close()


def sample_of(rows, sock, rank=3):
    """The newest sample of a socket of ours, found by its local port."""
    port = f":{sock.getsockname()[1]}"
    remote = f":{sock.getpeername()[1]}"
    ids = [
        r["socket"]
        for r in rows["tcp"]
        if r["local"].endswith(port) and r["remote"].endswith(remote) and r["rank"] == rank
    ]
    return rows.last_by("tcp_sample", "socket").get(ids[-1]) if ids else None


def test_bytes_of_a_connection_are_counted_at_both_ends(here, tcp):
    collector, rows = tcp(here)
    with connection() as (client, server):
        client.sendall(bytes(50_000))
        assert len(server.recv(50_000, socket.MSG_WAITALL)) == 50_000
        collector.sample(T0, rows)
        sent, received = sample_of(rows, client), sample_of(rows, server)
    assert sent["acked_bytes"] in (50_000, 50_001), "the SYN counts as one"
    assert received["received_bytes"] == 50_000
    assert sent["rtt_us"] >= sent["min_rtt_us"] > 0
    assert sent["retransmits"] == 0


def test_bytes_that_the_peer_does_not_take_stay_in_the_send_queue(here, tcp):
    collector, rows = tcp(here)
    with connection() as (client, server):
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                client.send(bytes(65536))
        collector.sample(T0, rows)
        sent = sample_of(rows, client)
    assert sent["send_queue_bytes"] > 10_000


@pytest.mark.parametrize(
    ("family", "host", "to", "written"),
    [
        (socket.AF_INET, "127.0.0.1", None, "127.0.0.1:"),
        (socket.AF_INET6, "::1", None, "[::1]:"),
        (socket.AF_INET6, "::", "127.0.0.1", "127.0.0.1:"),
    ],
    ids=["IPv4", "IPv6", "IPv4 over an IPv6 socket"],
)
def test_end_points_are_written_as_people_write_them(here, tcp, family, host, to, written):
    collector, rows = tcp(here)
    with connection(family, host, to) as (_, server):
        collector.sample(T0, rows)
        found = sample_of(rows, server)
        row = next(r for r in rows["tcp"] if r["socket"] == found["socket"])
        assert row["local"] == f"{written}{server.getsockname()[1]}"


def test_a_socket_is_named_once_and_sampled_every_second(here, tcp):
    collector, rows = tcp(here)
    with connection() as (client, _):
        for second in range(3):
            collector.sample(T0 + second * SECOND_NS, rows)
        found = sample_of(rows, client)["socket"]
    assert len([r for r in rows["tcp"] if r["socket"] == found]) == 1
    assert len([r for r in rows["tcp_sample"] if r["socket"] == found]) == 3


def test_a_connection_that_is_made_later_is_found(here, tcp):
    collector, rows = tcp(here)
    collector.sample(T0, rows)
    with connection() as (client, _):
        for second in range(1, 4):
            collector.sample(T0 + second * SECOND_NS, rows)
        assert sample_of(rows, client) is not None


PEER = """
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print(flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def peer_process():
    """Another process, connected to a socket of ours."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        process = subprocess.Popen(
            [sys.executable, "-c", PEER, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        server, _ = listener.accept()
        process.stdout.readline()
        with server, process:
            yield process, server
            process.stdin.close()


def end_point(address):
    host, port = address
    return f"{host}:{port}"


def test_each_socket_belongs_to_the_rank_whose_process_holds_it(tcp):
    with peer_process() as (process, server):
        collector, rows = tcp(NodeContext(tree={os.getpid(): 0, process.pid: 5}, rank_pids={0: os.getpid()}))
        collector.sample(T0, rows)
        assert sample_of(rows, server, rank=0) is not None
        ends = {(r["rank"], r["local"]) for r in rows["tcp"] if r["rank"] in (0, 5)}
        assert (5, end_point(server.getpeername())) in ends


def test_a_rank_that_becomes_known_later_gets_its_sockets(tcp):
    with peer_process() as (process, server):
        context = NodeContext(tree={os.getpid(): 0}, rank_pids={0: os.getpid()})
        collector, rows = tcp(context)
        collector.sample(T0, rows)
        assert not [r for r in rows["tcp"] if r["rank"] == 5]
        context.tree = {os.getpid(): 0, process.pid: 5}
        collector.sample(T0 + SECOND_NS, rows)
        assert [r["local"] for r in rows["tcp"] if r["rank"] == 5] == [end_point(server.getpeername())]


class ManySockets:
    """Sockets of the real kernel, and many copies that belong to no rank."""

    def __init__(self):
        self._real = DiagSocket()

    def established(self):
        sockets = list(self._real.established())
        yield from sockets
        for i in range(MAX_OTHERS + 1):
            stranger = sockets[0]
            yield type(stranger)(10**9 + i, stranger.cookie, 0, stranger._ends, stranger._family, b"")

    def close(self):
        self._real.close()


def test_sockets_of_others_are_left_out_when_there_are_many(here):
    collector, rows = TcpCollector(diag=ManySockets), Recorded()
    with connection():
        collector.open(here, rows)
        collector.sample(T0, rows)
    collector.close()
    assert {r["rank"] for r in rows["tcp"]} == {3}


def test_nothing_is_read_before_a_rank_is_known(tcp):
    collector, rows = tcp(NodeContext())
    with connection():
        collector.sample(T0, rows)
    assert rows["tcp_sample"] == []


@pytest.mark.root
def test_sockets_of_a_process_that_may_not_be_looked_into_are_of_no_known_rank(tcp):
    with peer_process() as (process, _):
        collector, rows = tcp(NodeContext(tree={process.pid: 5}))
        os.seteuid(65534)
        try:
            collector.sample(T0, rows)
        finally:
            os.seteuid(0)
    assert not [r for r in rows["tcp"] if r["rank"] == 5]
    (reason,) = [r["reason"] for r in rows["unavailable"]]
    assert "CAP_SYS_PTRACE" in reason
    assert f"pid {process.pid}" in reason


@pytest.mark.root
def test_a_rank_in_another_network_namespace_is_named_as_not_seen(tcp):
    other = Namespace()
    code = "import socket,sys\ns=socket.create_server(('127.0.0.1',0))\nprint(flush=True)\nsys.stdin.readline()"
    process = other.popen(sys.executable, "-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        with connection():
            collector, rows = tcp(NodeContext(tree={process.pid: 4}))
            collector.sample(T0, rows)
    finally:
        process.communicate("\n", timeout=30)
        other.delete()
    (reason,) = [r["reason"] for r in rows["unavailable"]]
    assert "rank 4 runs in another network namespace" in reason


def test_a_refused_socket_diagnosis_is_unavailable(here):
    def refuse():
        raise OSError(1, "Operation not permitted")

    with pytest.raises(Unavailable, match="Operation not permitted"):
        TcpCollector(diag=refuse).open(here, Recorded())


SENDER = """
import socket, sys
s = socket.create_connection(("10.77.0.2", 7777))
print(flush=True)
try:
    while True:
        s.sendall(bytes(65536))
except OSError:
    pass
"""
RECEIVER = """
import socket
s = socket.create_server(("10.77.0.2", 7777))
print(flush=True)
c = s.accept()[0]
while c.recv(65536):
    pass
"""


@pytest.mark.root
def test_a_shaped_link_shows_round_trips_far_above_the_least_and_the_links_rate():
    left, right = Namespace(), Namespace()
    processes = []
    try:
        join(left, right)
        left.tc("qdisc", "add", "dev", "veth0", "root", "tbf", "rate", "40mbit", "burst", "32kb", "limit", "300kb")
        for namespace, code in ((right, RECEIVER), (left, SENDER)):
            process = namespace.popen(sys.executable, "-c", code, stdout=subprocess.PIPE)
            processes.append(process)
            process.stdout.readline()
        collector = Remote(left, "starprof.collectors.tcp:TcpCollector", tree={processes[1].pid: 1})
        sample = until_queued(collector)
        # The kernel's estimate is of the last few packets: one late batch of ACKs makes it wild.
        rates = [sender_sample(collector, second)["delivery_bytes_per_s"] for second in range(200, 221)]
        collector.close()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        left.delete()
        right.delete()
    assert sample["rtt_us"] > 20 * sample["min_rtt_us"]
    assert 2e6 < statistics.median(rates) < 7e6, "40 Mbit/s are 5 MB/s"
    assert sample["unacked"] > 0
    assert sample["send_queue_bytes"] > 0
    assert sample["busy_us"] > 0


def sender_sample(collector, second):
    """A sample of the sending rank's socket, None before it is seen."""
    time.sleep(0.05)
    rows = collector.sample(T0 + second * SECOND_NS)
    return next((r for r in reversed(rows["tcp_sample"]) if r["rank"] == 1), None)


def until_queued(collector):
    """Samples of the sending rank until the bucket's queue is full."""
    sample = None
    for second in range(200):
        sample = sender_sample(collector, second) or sample
        if sample and sample["rtt_us"] > 40_000 and sample["busy_us"] > SECOND_NS // 1000:
            break
    return sample
