"""More workers on the same server: where it is full, and what a second shard does about it.

Network namespaces are hosts. Each shard's interface sends at a fixed rate, so that what limits is the server and not
the cores of the machine that all of it runs on. Workers "compute" by sleeping, then push a gradient to every shard
and pull the parameters, each for itself (ASGD).
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from starprof.demo.netlab import NetLab
from starprof.ps.wire import Connection, Head, Hub, Line, connect, listen

HERE = Path(__file__)
SECRET = b"of this benchmark"
PORT = 29_400
COMPUTE_S = 0.1
MODEL_BYTES = 1 << 20
RATE_MBIT = 210.0
"""One shard sends 25 models a second."""
PUBLISHED = (11.5, 22.6, 34.6, 40.7, 44.5, 44.0, 47.1, 43.1)
"""Updates a second of ResNet-32 on 1 to 8 P100 with one server, as CM-DARE published them (Apache-2.0)."""


class Shard:
    """One that applies each gradient and gives the parameters back; see `Owner`."""

    def __init__(self, size: int) -> None:
        import torch

        from starprof.control.engine.peers import bytes_of

        self._parameters = torch.zeros(size // 4)
        self._size = size
        self._torch = torch
        self._view = bytes_of(self._parameters)

    def joined(self, line: Line) -> None:
        """A worker: its gradients have a place of their own."""
        line.data = bytearray(self._size)

    def room(self, line: Line, _head: Head) -> memoryview:
        """That place."""
        return memoryview(line.data)

    def came(self, line: Line, _head: Head, _payload: memoryview | None) -> None:
        """A step, and the parameters."""
        self._parameters.add_(self._torch.frombuffer(line.data, dtype=self._torch.float32), alpha=-1e-3)
        line.send(1, b"", self._view)

    def lost(self, _line: Line, _why: str) -> None:
        """It is no matter."""


def serve(host: str, size: int) -> None:
    """A shard's process; it lives until its standard input ends."""
    hub = Hub(listen(host, PORT), SECRET, Shard(size))
    threading.Thread(target=lambda: (sys.stdin.read(), hub.stop()), daemon=True).start()
    print("ready", flush=True)
    hub.run()


def work(seconds: float, size: int, hosts: list[str]) -> None:
    """A worker's process: prints how many updates it made a second."""
    shards: list[Connection] = [connect((host, PORT), SECRET) for host in hosts]
    part = bytearray(size // len(hosts))
    view = memoryview(part)
    begun, done = 0.0, 0
    while not begun or time.monotonic() < begun + seconds:
        time.sleep(COMPUTE_S)
        for shard in shards:
            shard.send(1, b"", view)
        for shard in shards:
            shard.receive(60.0)
            shard.receive_into(view)
        if not begun:
            begun = time.monotonic()  # connecting and the first are not counted
        else:
            done += 1
    print(done / (time.monotonic() - begun), flush=True)


def speed(lab: NetLab, shards: int, workers: int, seconds: float) -> float:
    """Updates a second of all workers together; hosts 0 and 1 are the shards'."""
    hosts = [lab.address(at) for at in range(shards)]
    me = [sys.executable, str(HERE)]
    with ExitStack() as stack:
        for at, host in enumerate(hosts):
            command = lab.inside(at, [*me, "serve", host, str(MODEL_BYTES // shards)])
            server = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(server.kill)
            assert server.stdout is not None
            server.stdout.readline()
        command = lab.inside(2, [*me, "work", str(seconds), str(MODEL_BYTES), *hosts])
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(workers)]
        return sum(float(one.communicate()[0]) for one in running)


def scale(most: int, seconds: float) -> None:
    """Print the table."""
    print("workers   1 shard updates/s   2 shards   against one worker: 1 shard, 2 shards; CM-DARE, 1 server")
    first: dict[int, float] = {}
    with NetLab(3) as lab:
        for at in range(2):
            lab.shape(at, RATE_MBIT)
        for workers in range(1, most + 1):
            found = {shards: speed(lab, shards, workers, seconds) for shards in (1, 2)}
            first = first or found
            published = PUBLISHED[workers - 1] / PUBLISHED[0]
            gains = ", ".join(f"{found[shards] / first[shards]:.2f}x" for shards in (1, 2))
            print(f"{workers:7d} {found[1]:19.1f} {found[2]:10.1f}   {gains}; {published:.2f}x", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        work(float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
