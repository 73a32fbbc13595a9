"""One worker pushes a gradient and pulls the parameters: ours, bare TCP, and torch.distributed.rpc, in turn."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import torch

from starprof.control.engine.peers import bytes_of
from starprof.ps.wire import Connection, Head, Hub, Line, connect, listen

SECRET = b"of this benchmark"
PUSH = 1
RATE = 1e-3
HERE = Path(__file__)
SIZES_MB = (0.5, 40.0, 400.0)
WAIT_S = 120.0

Ask = Callable[[], None]


def _tuned(sock: socket.socket) -> socket.socket:
    """As fast as this machine's TCP is: Nagle's delay is off, and nothing is paced."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    return sock


def _into(sock: socket.socket, target: memoryview) -> bool:
    while target:
        count = sock.recv_into(target)
        if not count:
            return False
        target = target[count:]
    return True


class Server:
    """What a shard does, as little as there is of it: the gradient is applied, and the parameters go back."""

    def __init__(self, size: int, applies: bool) -> None:
        self.parameters = torch.zeros(size // 4)
        self.gradient = torch.zeros(size // 4) if applies else self.parameters
        self.applies = applies
        self.view, self.place = bytes_of(self.parameters), bytes_of(self.gradient)

    def apply(self) -> None:
        """One step of SGD."""
        if self.applies:
            self.parameters.add_(self.gradient, alpha=-RATE)

    def joined(self, line: Line) -> None:
        """See Owner."""

    def room(self, _line: Line, _head: Head) -> memoryview:
        """See Owner."""
        return self.place

    def came(self, line: Line, _head: Head, _payload: memoryview | None) -> None:
        """See Owner."""
        self.apply()
        line.send(PUSH, b"", self.view)

    def lost(self, _line: Line, _why: str) -> None:
        """See Owner: the only client has gone."""
        os._exit(0)


def serve(way: str, size: int) -> None:
    """A server's process; its address is the first line that it prints."""
    torch.set_num_threads(1)
    server = Server(size, way.endswith("sgd"))
    if way.startswith("tcp"):
        listener = socket.create_server(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        sock = _tuned(listener.accept()[0])
        while _into(sock, server.place):
            server.apply()
            sock.sendall(server.view)
    elif way.startswith("rpc"):
        _serve_rpc(way, size)
    else:
        hub = Hub(listen("127.0.0.1"), SECRET, server)
        print(hub.address[1], flush=True)
        hub.run()


_RPC: list[Server] = []
_KEPT: list[torch.Tensor] = []
"""What views of memory are of."""


def rpc_push_pull(gradient: torch.Tensor) -> torch.Tensor:
    """What the server does for torch.distributed.rpc."""
    server = _RPC[0]
    if server.applies:
        server.parameters.add_(gradient, alpha=-RATE)
        return server.parameters
    return gradient


def _rpc(name: str, rank: int, port: int, way: str) -> None:
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=WAIT_S)
    if "tcp" in way:
        options = rpc.TensorPipeRpcBackendOptions(
            init_method=f"tcp://127.0.0.1:{port}",
            rpc_timeout=WAIT_S,
            _transports=["uv"],
            _channels=["basic"],
        )
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def _serve_rpc(way: str, size: int) -> None:
    from torch.distributed import rpc

    _RPC.append(Server(size, way.endswith("sgd")))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    print(port, flush=True)
    _rpc("server", 0, port, way)
    rpc.shutdown()


def client(way: str, size: int, port: int) -> tuple[Ask, Callable[[], None]]:
    """How to push and pull once, and how to end."""
    gradient, parameters = torch.randn(size // 4), torch.zeros(size // 4)
    _KEPT.extend((gradient, parameters))
    out, into = bytes_of(gradient), bytes_of(parameters)
    if way.startswith("rpc"):
        return _rpc_client(way, gradient, parameters, port)
    if way.startswith("tcp"):
        sock = _tuned(socket.create_connection(("127.0.0.1", port)))

        def bare() -> None:
            sock.sendall(out)
            _into(sock, into)

        return bare, sock.close
    connection: Connection = connect(("127.0.0.1", port), SECRET)

    def ours() -> None:
        connection.send(PUSH, b"", out)
        connection.receive(WAIT_S)
        connection.receive_into(into)

    return ours, connection.close


def _rpc_client(way: str, gradient: torch.Tensor, parameters: torch.Tensor, port: int) -> tuple[Ask, Ask]:
    from torch.distributed import rpc

    _rpc("worker", 1, port, way)
    sys.modules["push_pull"] = sys.modules[__name__]

    def remote() -> None:
        parameters.copy_(rpc.rpc_sync("server", rpc_push_pull, (gradient,)))

    return remote, rpc.shutdown


@contextmanager
def _server(way: str, size: int):
    command = [sys.executable, str(HERE), "serve", way, str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
            process.wait(WAIT_S)
        finally:
            process.kill()


def times(way: str, size: int, least: int, seconds: float) -> list[float]:
    """Milliseconds of pushes with pulls, one after the other."""
    with _server(way, size) as port:
        ask, end = client(way, size, port)
        for _ in range(3):
            ask()
        found: list[float] = []
        until = time.perf_counter() + seconds
        while len(found) < least or time.perf_counter() < until:
            began = time.perf_counter()
            ask()
            found.append(1e3 * (time.perf_counter() - began))
        end()
    return found


WAYS = ("tcp", "ours", "tcp-sgd", "ours-sgd", "rpc-sgd", "rpc-tcp-sgd")


def compare(sizes_mb: tuple[float, ...], rounds: int, seconds: float) -> None:
    """Print the table."""
    print(
        f"{'MB':>6} {'way':12} {'median ms':>10} {'GB/s':>6}  against bare TCP (same work), median of {rounds} rounds"
    )
    for size_mb in sizes_mb:
        size = int(size_mb * 1e6) // 4 * 4
        medians: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                # A process each: torch's rpc begins only once in a process.
                command = [sys.executable, str(HERE), "time", way, str(size), str(seconds)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                medians[way].append(float(done.stdout))
        for way in WAYS:
            against = "tcp-sgd" if way.endswith("sgd") else "tcp"
            ratio = statistics.median(a / b for a, b in zip(medians[against], medians[way], strict=True))
            ms = statistics.median(medians[way])
            print(f"{size_mb:6g} {way:12} {ms:10.3f} {2e-6 * size / ms:6.2f}  {100 * ratio:.0f} %", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        torch.set_num_threads(1)
        print(statistics.median(times(sys.argv[2], int(sys.argv[3]), 3, float(sys.argv[4]))))
