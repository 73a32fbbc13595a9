"""Whoever else talks to a coordinator: strangers, ranks that make no sense or do not listen, visitors of its socket."""

import contextlib
import os
import re
import socket
import time

import pytest
from coordinator_lab import PATIENCE_S, SECRET, in_rounds, said_hello, wait_for

from starprof.control import controlsocket
from starprof.control.codec import encode
from starprof.control.speech import COORDINATOR, MESSAGE, PING
from starprof.sync.policies import Gradient
from starprof.sync.protocol.messages import Arrive, Go, Hello
from starprof.wire.channel import dial, hang_up
from starprof.wire.frames import RejectedError


def is_hung_up(sock):
    """Whether the other side ends the connection in good time."""
    sock.settimeout(PATIENCE_S)
    with sock, contextlib.suppress(ConnectionResetError):
        while sock.recv(1 << 16):
            pass
    return True


class TestStrangers:
    def test_a_wrong_secret_gets_nowhere(self, begin):
        coordinator, job = begin(2)
        with pytest.raises(RejectedError, match="does not accept the secret"):
            dial(coordinator.address, COORDINATOR, b"another", 5)
        wait_for(lambda: coordinator.status()["refused_connections"] == 1)
        job.progress(5)

    def test_garbage_ends_only_its_own_connection(self, begin):
        coordinator, job = begin(2)
        in_rounds(coordinator, mode="asgd")
        for garbage in (b"GET / HTTP/1.1\r\n\r\n" + bytes(200), os.urandom(5000), b""):
            with socket.create_connection(coordinator.address) as sock:
                sock.sendall(garbage)
                if garbage:
                    assert is_hung_up(sock)
        job.progress(5)

    def test_a_flood_of_dawdlers_does_not_keep_ranks_out(self, begin):
        coordinator, job = begin(4)
        in_rounds(coordinator)
        strangers = [socket.create_connection(coordinator.address) for _ in range(300)]
        try:
            wait_for(lambda: coordinator.status()["refused_connections"] >= 200)
            for rank in job.ranks:
                hang_up(rank.link._socket)
            job.progress(10)
            job.assert_one_history()
        finally:
            for sock in strangers:
                sock.close()

    @pytest.mark.parametrize(
        "payload",
        [
            encode(Hello(7, 0, 0)),
            encode(Arrive(0, Gradient(0, 0, 0), 0)),
            encode(Go(1, 0, 0, True)),
            b'["Hello",0]',
            b"garbage",
        ],
        ids=["rank 7 of 2", "no hello", "a coordinator's word", "too short", "no message"],
    )
    def test_who_knows_the_secret_but_makes_no_sense_is_cut(self, begin, payload):
        coordinator, _ = begin(2, ranks=False)
        sock, frames = dial(coordinator.address, COORDINATOR, SECRET, 5)
        sock.sendall(frames.seal(MESSAGE, payload))
        assert is_hung_up(sock)
        assert coordinator.status()["ok"]

    def test_a_rank_can_not_speak_for_another(self, begin):
        coordinator, _ = begin(2, ranks=False)
        sock, seal = said_hello(coordinator, 0)
        sock.sendall(seal(MESSAGE, encode(Arrive(1, Gradient(1, 0, 0), 0))))
        assert is_hung_up(sock)

    def test_a_newer_connection_of_a_rank_takes_the_place_of_the_older(self, begin):
        coordinator, _ = begin(2, ranks=False)
        first, _ = said_hello(coordinator, 0)
        second, _ = said_hello(coordinator, 0)
        assert is_hung_up(first)
        assert coordinator.status()["ranks"][0]["state"] == "connected"
        second.close()

    def test_a_rank_that_does_not_read_is_cut(self, begin):
        """It asks without end and takes no answer."""
        coordinator, _ = begin(2, ranks=False, silent_s=0.5)
        sock, frames = dial(coordinator.address, COORDINATOR, SECRET, 5)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sock.settimeout(PATIENCE_S)
        sock.sendall(frames.seal(MESSAGE, encode(Hello(0, 0, 0))))
        with contextlib.closing(sock), pytest.raises((ConnectionResetError, BrokenPipeError)):
            ask_without_end(sock, frames)
        assert coordinator.status()["ok"]
        # It is not heard either while its answers don't leave: whichever is noticed first.
        assert re.search("it reads too slowly|it is silent", coordinator.log())

    def test_visitors_of_the_control_socket_can_say_anything(self, begin):
        coordinator, _ = begin(2, ranks=False)
        for said in (b"\n", b"[1]\n", b"\xff\xfe\n", b"[" * 50_000 + b"\n", b"x" * 200_000):
            with socket.socket(socket.AF_UNIX) as sock, controlsocket.reachable(coordinator.folder) as name:
                sock.settimeout(PATIENCE_S)
                sock.connect(name)
                sock.sendall(said)
                try:
                    answer = sock.recv(1000)
                except ConnectionResetError:
                    answer = b""
                assert b'"ok": false' in answer or not answer
        assert coordinator.status()["ok"]

    def test_only_this_user_can_open_the_control_socket(self, begin):
        coordinator, _ = begin(2, ranks=False)
        assert (coordinator.folder / controlsocket.NAME).stat().st_mode & 0o777 == 0o600


def ask_without_end(sock, frames):
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        sock.sendall(b"".join(frames.seal(PING) for _ in range(100)))
