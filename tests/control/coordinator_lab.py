"""A real coordinator process, and ranks with a real `Member` and a real link each; a reduction exchanges names only."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

from starprof.control import controlsocket
from starprof.control.codec import encode
from starprof.control.link import CoordinatorLink
from starprof.control.speech import COORDINATOR, MESSAGE
from starprof.sync.protocol.actions import Apply, Begin, Deliver, Fetch, PullState, Reduce, Resume, Send
from starprof.sync.protocol.member import Member
from starprof.sync.protocol.messages import Hello
from starprof.wire.channel import dial

SECRET = b"a secret of the test"
PATIENCE_S = 30.0
M_SYNC = {"mode": "m-sync", "options": {"m": 3}}


def wait_for(condition, patience_s=PATIENCE_S):
    """Until it is true, which must not take for ever."""
    deadline_s = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, "it does not happen"
        time.sleep(0.01)
    return value


class Coordinator:
    """The process; it may be killed and started again, on another port."""

    def __init__(self, folder, ranks, **settings):
        self.folder = folder
        self.settings = {"ranks": ranks, "state": str(folder), "epoch": 0, **settings}
        self.process = None
        self.address = ("127.0.0.1", 1)
        self.start()

    def start(self, **changes):
        """A new reign."""
        self.settings |= changes
        self.settings["epoch"] += 1
        log = (self.folder / "coordinator.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "starprof.control.coordinator", json.dumps(self.settings)],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "STARPROF_CONTROL_TOKEN": SECRET.decode()},
        )
        log.close()
        line = self.process.stdout.readline()
        assert line, self.log()
        self.address = tuple(json.loads(line)["listening"])

    def log(self):
        """What it said."""
        return (self.folder / "coordinator.log").read_text()

    def ask(self, do, **more):
        """Over the control socket."""
        return controlsocket.ask(self.folder, {"do": do, **more})

    def status(self):
        """Ditto."""
        return self.ask("status")

    def kill(self):
        """SIGKILL."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.process.stdout.close()

    def end(self):
        """However the test has ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_S)
        self.kill()


class Rank:
    """One rank: its training thread, a thread for what others send, and the link's."""

    def __init__(self, rank, world, job, address_of):
        self.rank, self.job = rank, job
        self.lock = threading.RLock()
        self.member = Member(rank, world)
        self.compute_s = 0.001
        self.applied = {}
        self.native_steps = []
        self.resumed = []
        self.pause = threading.Event()
        self.lost_connections = 0
        self._begin = None
        self._may_begin = threading.Event()
        self._inbox = queue.Queue()
        self._stop = threading.Event()
        self.link = CoordinatorLink(
            address_of,
            SECRET,
            rank,
            hello=self.member.hello,
            on_message=lambda message: self.do(self.member.told, message),
            on_lost=self._lost,
            lock=self.lock,
        )
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._train, self._data)]

    def start(self):
        self.link.start()
        for thread in self._threads:
            thread.start()

    def end(self):
        self._stop.set()
        self.link.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def do(self, event, *args):
        """Something has happened: carry out what follows."""
        with self.lock:
            for action in event(*args):
                self._carry_out(action)

    def _carry_out(self, action):
        match action:
            case Send(message=message):
                self.link.send(message)
            case Reduce(close=close):
                self.do(self.member.reduced, close)
            case Deliver(to=to, close=close):
                self.job.post(to, lambda other: other.do(other.member.received, close))
            case Fetch(holder=holder, round=number):
                self.job.post(holder, lambda other: other.give(number, self.rank))
            case Apply(close=close):
                assert close.round not in self.applied
                self.applied[close.round] = close.gradients
            case Begin() | Resume():
                self._begin = action  # said again where it was said before the training thread asked
                self._may_begin.set()
            case PullState(holder=holder):
                self.job.post(holder, lambda other: other.give_state(self.rank))

    def give(self, number, to):
        with self.lock:
            close = self.member.can_deliver(number)
        if close is not None:
            self.job.post(to, lambda other: other.do(other.member.received, close))

    def give_state(self, to):
        with self.lock:
            version, applied = self.member.version, dict(self.applied)
        self.job.post(to, lambda other: other.take_state(version, applied))

    def take_state(self, version, applied):
        with self.lock:
            self.applied = applied
            self.do(self.member.pulled, version, [])

    def _lost(self):
        self.lost_connections += 1

    def _train(self):
        self.do(self.member.boundary)
        while not self._stop.is_set():
            if not self._may_begin.wait(0.05):
                continue
            with self.lock:
                self._may_begin.clear()
                begin = self._begin
            if isinstance(begin, Resume):
                self.resumed.append(begin.version)
            if self.pause.is_set() and not isinstance(begin, Resume):
                self.pause.clear()
                self.do(self.member.pause, 0)
            elif begin.native:
                if not self.job.native_step():
                    return
                self.native_steps.append(begin.version)
                self.do(self.member.native_done)
            else:
                self._stop.wait(self.compute_s)
                self.do(self.member.gradient)

    def _data(self):
        while not self._stop.is_set():
            with contextlib.suppress(queue.Empty):
                self._inbox.get(timeout=0.05)(self)

    def post(self, what):
        self._inbox.put(what)


class Job:
    """All ranks."""

    def __init__(self, size, address_of):
        world = tuple(range(size))
        self._native = threading.Barrier(size)
        self.ranks = [Rank(rank, world, self, address_of) for rank in world]
        for rank in self.ranks:
            rank.start()

    def native_step(self):
        """The framework's own reduction: everybody, together."""
        try:
            self._native.wait(PATIENCE_S)
        except threading.BrokenBarrierError:
            return False
        time.sleep(0.001)
        return True

    def post(self, to, what):
        self.ranks[to].post(what)

    def end(self):
        self._native.abort()
        for rank in self.ranks:
            rank.end()

    def version(self):
        """What the slowest has."""
        return min(rank.member.version for rank in self.ranks)

    def meet(self):
        """Let all pause, and say with which version each went on."""
        before = [len(rank.resumed) for rank in self.ranks]
        for rank in self.ranks:
            rank.pause.set()
        wait_for(lambda: all(len(rank.resumed) > count for rank, count in zip(self.ranks, before, strict=True)))
        return [rank.resumed[-1] for rank in self.ranks]

    def progress(self, by):
        """Wait until everybody is further by so much."""
        target = self.version() + by
        wait_for(lambda: self.version() >= target)

    def assert_one_history(self):
        """All who have applied a round have applied the same."""
        with contextlib.ExitStack() as locked:
            for rank in self.ranks:
                locked.enter_context(rank.lock)
            rounds = {number for rank in self.ranks for number in rank.applied}
            for number in rounds:
                assert len({rank.applied[number] for rank in self.ranks if number in rank.applied}) == 1
            for rank in self.ranks:
                assert sorted(rank.applied) == [n for n in sorted(rounds) if n < rank.member.version]


def state_of(coordinator):
    """What is going on there."""
    return coordinator.status()["state"]


def in_rounds(coordinator, **asked):
    """Move its job to rounds, by default of the first three."""
    assert coordinator.ask("mode", **(asked or M_SYNC))["ok"]
    wait_for(lambda: state_of(coordinator) == "rounds")


def said_hello(coordinator, rank, **hello):
    """A rank's connection by hand."""
    sock, frames = dial(coordinator.address, COORDINATOR, SECRET, 5)
    sock.settimeout(5)
    sock.sendall(frames.seal(MESSAGE, encode(Hello(rank, 0, 0, **hello))))
    wait_for(lambda: coordinator.status()["ranks"][rank]["state"] == "connected")
    return sock, frames.seal
