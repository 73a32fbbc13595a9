"""What the coordinator costs: its share of a core beside a large job, and what a step waits for its word.

    python benchmarks/coordinator.py [--seconds 10] [--ranks 64] [--rounds-per-s 30] [--turns 2000]

The share is that of the process (time on a core, as the scheduler counts it) while ranks under m-sync, m three quarters
of them, make steps of 1 / rate; all ranks are played by one other process. The latency is from before the sending of
the last gradient that a round needs to the decoded word that the round is closed, four ranks over loopback, with the
coordinator idle before: once on a bare socket, once through `CoordinatorLink` up to the training thread that waits.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median, quantiles

from starprof.control import controlsocket
from starprof.control.codec import decode, encode_briefly
from starprof.control.link import CoordinatorLink
from starprof.control.speech import COORDINATOR, MAX_FRAME_BYTES, MESSAGE, PING
from starprof.sync.policies import Gradient
from starprof.sync.protocol.messages import Arrive, Close, Commit, Go, Hello, Prepare, Prepared, ToRank
from starprof.wire.channel import dial
from starprof.wire.frames import Frames

SECRET = b"benchmark"
START = 2
"""First version in rounds: two native steps come before it."""


understood = lru_cache(256)(decode)
"""All ranks are told the same: whoever plays them all reads it once."""


class Coordinator:
    """The process."""

    def __init__(self, ranks: int, mode: str, options: dict[str, object], *, segments: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.state = Path(self._folder.name)
        settings = {"ranks": ranks, "state": str(self.state), "mode": mode, "options": options}
        if segments:
            settings["segments"] = str(self.state)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "starprof.control.coordinator", json.dumps(settings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "STARPROF_CONTROL_TOKEN": SECRET.decode()},
        )
        assert self.process.stdout is not None
        host, port = json.loads(self.process.stdout.readline())["listening"]
        self.address = (str(host), int(port))

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(10)
        self._folder.cleanup()

    def cpu_s(self) -> float:
        """Time on a core so far."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) / 1e9


@dataclass(slots=True)
class Played:
    """A rank without a training."""

    rank: int
    sock: socket.socket
    frames: Frames
    number: int = 0
    version: int = START

    @classmethod
    def connect(cls, rank: int, address: tuple[str, int]) -> Played:
        """Connect and say hello."""
        sock, frames = dial(address, COORDINATOR, SECRET, 10)
        frames.most_bytes = MAX_FRAME_BYTES
        sock.settimeout(30)
        played = cls(rank, sock, frames)
        played.say(Hello(rank, 0, 0))
        return played

    def say(self, message: Hello | Arrive | Prepared) -> None:
        self.sock.sendall(self.frames.seal(MESSAGE, encode_briefly(message)))

    def arrive(self) -> None:
        self.say(Arrive(self.rank, Gradient(self.rank, self.number, self.version), self.version))

    def hear(self) -> list[ToRank]:
        """What has come, at least some bytes."""
        self.frames.feed(self.sock.recv(1 << 16))
        heard = []
        while (frame := self.frames.next()) is not None:
            if frame[0] == MESSAGE:
                heard.append(understood(frame[1]))
        return heard

    def into_rounds(self) -> None:
        """Promise, and wait for the others."""
        while True:
            for message in self.hear():
                if isinstance(message, Prepare):
                    self.say(Prepared(self.rank, message.switch, START))
                elif isinstance(message, Commit):
                    return

    def take(self, message: ToRank) -> bool:
        """Whether it may go on."""
        if isinstance(message, Close) and self.rank in message.release and self.version <= message.round:
            self.version = message.round + 1
        elif isinstance(message, Go) and message.number == self.number:
            self.version = max(self.version, message.version)
        else:
            return False
        self.number += 1
        return True


def gathered(count: int, address: tuple[str, int]) -> list[Played]:
    """All ranks, in rounds."""
    ranks = [Played.connect(rank, address) for rank in range(count)]
    threads = [threading.Thread(target=played.into_rounds) for played in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return ranks


def share(count: int, rounds_per_s: float, seconds: float) -> None:
    """Steps of the given length with some noise, every rank on its own."""
    noise = random.Random(1)
    with Coordinator(count, "m-sync", {"m": max(1, 3 * count // 4)}, segments=True) as coordinator:
        ranks = gathered(count, coordinator.address)
        chooser = selectors.DefaultSelector()
        due: list[tuple[float, int]] = []
        for played in ranks:
            chooser.register(played.sock, selectors.EVENT_READ, played)
            heapq.heappush(due, (time.monotonic() + noise.random() / rounds_per_s, played.rank))
        marks = []
        begun_s = time.monotonic()
        for end_s in (begun_s + 2, begun_s + 2 + seconds):
            play(ranks, chooser, due, noise, rounds_per_s, end_s)
            status = controlsocket.ask(coordinator.state, {"do": "status"})
            marks.append((time.monotonic(), coordinator.cpu_s(), status["updates"]))
        (t0, cpu0, u0), (t1, cpu1, u1) = marks
        busy = (cpu1 - cpu0) / (t1 - t0)
        print(
            f"{count} ranks, {(u1 - u0) / (t1 - t0):.1f} rounds/s: {100 * busy:.2f} % of a core, "
            f"{1e6 * (cpu1 - cpu0) / (u1 - u0) / count:.0f} us for each rank and round"
        )
        for played in ranks:
            played.sock.close()


def play(
    ranks: list[Played],
    chooser: selectors.BaseSelector,
    due: list[tuple[float, int]],
    noise: random.Random,
    rounds_per_s: float,
    end_s: float,
) -> None:
    """Hand in what is due, and begin a step with each release, until then."""
    pinged_s = time.monotonic()
    while (now_s := time.monotonic()) < end_s:
        while due and due[0][0] <= now_s:
            ranks[heapq.heappop(due)[1]].arrive()
        if now_s - pinged_s > 1:
            pinged_s = now_s
            for played in ranks:
                played.sock.sendall(played.frames.seal(PING))
        for key, _ in chooser.select(max(0.0, min(due[0][0], end_s) - now_s) if due else 0.01):
            played = key.data
            for message in played.hear():
                if played.take(message):
                    step_s = (0.9 + 0.2 * noise.random()) / rounds_per_s
                    heapq.heappush(due, (time.monotonic() + step_s, played.rank))


def system_calls(count: int, rounds: int) -> None:
    """What waiting, receiving and sending alone cost a process that does nothing else: the floor of a share."""
    word, arrival = bytes(900), bytes(110)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        played = [socket.create_connection(listener.getsockname()) for _ in range(count)]
        served = [listener.accept()[0] for _ in range(count)]
    child = os.fork()
    if not child:
        for _ in range(rounds):
            for sock in played:
                time.sleep(1e-4)  # each comes by itself
                sock.sendall(arrival)
            for sock in played:
                sock.recv(len(word), socket.MSG_WAITALL)
        os._exit(0)
    chooser = selectors.DefaultSelector()
    for sock in served:
        chooser.register(sock, selectors.EVENT_READ, sock)
    buffer = bytearray(1 << 16)
    begun_s = time.process_time()
    for _ in range(rounds):
        there = 0
        while there < count:
            there += sum(key.fileobj.recv_into(buffer) // len(arrival) for key, _ in chooser.select())
        for sock in served:
            sock.sendall(word)
    took_s = time.process_time() - begun_s
    os.waitpid(child, 0)
    print(f"system calls alone: {1e6 * took_s / rounds / count:.0f} us for each rank and round")
    for sock in [*played, *served]:
        sock.close()


def told(us: list[float]) -> str:
    """Median and 99th percentile."""
    return f"median {median(us):.0f} us, p99 {quantiles(us, n=100)[98]:.0f} us, least {min(us):.0f} us"


def latency(turns: int) -> None:
    """Three ranks hand in, and then the fourth."""
    with Coordinator(4, "m-sync", {"m": 4}) as coordinator:
        ranks = gathered(4, coordinator.address)
        us = []
        for _ in range(turns):
            for played in ranks[:3]:
                played.arrive()
            time.sleep(0.002)
            begun_ns = time.perf_counter_ns()
            ranks[3].arrive()
            heard = [m for m in ranks[3].hear() if isinstance(m, Close)] or ranks[3].hear()
            us.append((time.perf_counter_ns() - begun_ns) / 1e3)
            for played in ranks:
                for message in heard if played is ranks[3] else played.hear():
                    played.take(message)
        print(f"arrive -> close, 4 ranks, bare socket: {told(us)}")
        for played in ranks:
            played.sock.close()


def link_latency(turns: int) -> None:
    """The same with the fourth rank's training thread behind a link."""
    with Coordinator(4, "m-sync", {"m": 4}) as coordinator:
        ranks: list[Played] = []
        said, lock = threading.Semaphore(0), threading.RLock()
        in_rounds = threading.Event()
        switch: list[int] = []

        def on_message(message: ToRank) -> None:
            if isinstance(message, Prepare):
                switch.append(message.switch)
                link.send(Prepared(3, message.switch, START))
            elif isinstance(message, Commit):
                in_rounds.set()
            elif isinstance(message, Close):
                said.release()

        link = CoordinatorLink(
            lambda: coordinator.address,
            SECRET,
            3,
            hello=lambda: Hello(3, 0, 0),
            on_message=on_message,
            on_lost=lambda: None,
            lock=lock,
        )
        link.start()
        ranks = gathered(3, coordinator.address)
        assert in_rounds.wait(30)
        us = []
        for turn in range(turns):
            for played in ranks:
                played.arrive()
            time.sleep(0.002)
            begun_ns = time.perf_counter_ns()
            link.send(Arrive(3, Gradient(3, turn, START + turn), START + turn))
            assert said.acquire(timeout=30)
            us.append((time.perf_counter_ns() - begun_ns) / 1e3)
            for played in ranks:
                for message in played.hear():
                    played.take(message)
        print(f"arrive -> close, 4 ranks, through the link to the training thread: {told(us)}")
        link.close()
        for played in ranks:
            played.sock.close()


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rounds-per-s", type=float, default=30)
    parser.add_argument("--turns", type=int, default=2000)
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}")
    latency(asked.turns)
    link_latency(asked.turns)
    share(4, asked.rounds_per_s, asked.seconds)
    share(asked.ranks, asked.rounds_per_s, asked.seconds)
    system_calls(asked.ranks, round(asked.rounds_per_s * asked.seconds))


if __name__ == "__main__":
    main()
