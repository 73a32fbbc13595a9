"""Ranks as threads of one process: real engines, gloo groups and connections; the coordinator is called directly."""

import queue
import threading
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from starprof.control.engine.engine import Engine
from starprof.control.engine.flat import Layout
from starprof.control.engine.groups import Groups
from starprof.control.engine.peers import Peers
from starprof.control.engine.states import States
from starprof.sync.policies import create
from starprof.sync.protocol.coordinator import Coordinator
from starprof.sync.protocol.member import Member

SECRET = b"only for this test"
LATE = 4


class Updates:
    """A loop that does nothing but step its optimizer."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.left_out = False
        self.paces = 0
        self.others = []

    def hyper(self):
        return [[{"lr": group["lr"]} for group in self.optimizer.param_groups]]

    def scale(self):
        return 1.0

    def replay(self, put, hyper, *, paced):
        put()
        for group, values in zip(self.optimizer.param_groups, hyper[0], strict=True):
            group.update(values)
        self.optimizer.step()

    def own(self, hyper, *, paced):
        for group, values in zip(self.optimizer.param_groups, hyper[0], strict=True):
            group.update(values)

    def skip_own(self):
        self.left_out = True

    def local(self):
        self.left_out = False

    def iteration_over(self):
        self.left_out = False

    def keep_pace(self, iterations):
        self.paces += iterations

    @property
    def optimizers(self):
        return [self.optimizer]

    def state(self):
        from starprof.control.engine.state import State

        return State(self.model, [self.optimizer]).save()

    def load(self, state):
        from starprof.control.engine.state import State

        State(self.model, [self.optimizer]).load(state)


class Data:
    def __init__(self):
        self.to_skip = 0

    def skip(self, iterations):
        self.to_skip += iterations


class Office:
    """The coordinator, and a mailbox for each rank."""

    def __init__(self, ranks, *, lease_s=2.0, lag=None):
        self.lag = lag
        self.coordinator = Coordinator(range(ranks), lag=lag)
        self.lock = threading.Lock()
        self.boxes = {}
        self.cut = {}
        self.lease_s = lease_s
        self.closing = False
        self.closes = []
        threading.Thread(target=self._alarms, daemon=True).start()

    def connect(self, rank, engine, member, lock):
        box = queue.SimpleQueue()

        def deliver():
            while (message := box.get()) is not None:
                engine.told(message)

        with lock:
            hello = member.hello()
            with self.lock:
                self.boxes[rank] = box
                self.cut.pop(rank, None)
                self._send(self.coordinator.told(hello, time.monotonic()))
        threading.Thread(target=deliver, daemon=True).start()

    def disconnect(self, rank):
        with self.lock:
            self.boxes.pop(rank).put(None)
            self.cut[rank] = time.monotonic()
            self._send(self.coordinator.disconnected(rank))

    def gone(self, rank):
        with self.lock:
            box = self.boxes.pop(rank, None)
            if box is not None:
                box.put(None)
            self._send(self.coordinator.gone(rank, time.monotonic()))

    def said(self, rank, message):
        with self.lock:
            if rank in self.boxes:
                self._send(self.coordinator.told(message, time.monotonic()))

    def switch(self, mode, **options):
        make = None if mode is None else (lambda ranks, version: create(mode, ranks, options, version))
        if make is not None:
            make(range(len(self.coordinator.ranks)), 0)
        with self.lock:
            self._send(self.coordinator.switch(make, time.monotonic()))

    def _send(self, out):
        for rank, message in out:
            if type(message).__name__ == "Close" and (not self.closes or self.closes[-1].serial != message.serial):
                self.closes.append(message)
            if rank in self.boxes:
                self.boxes[rank].put(message)

    def _alarms(self):
        while not self.closing:
            time.sleep(0.005)
            now = time.monotonic()
            with self.lock:
                due = self.coordinator.wake_at_s
                if due is not None and due <= now:
                    self._send(self.coordinator.woken(now))
                for rank, since in list(self.cut.items()):
                    if now - since > self.lease_s:
                        del self.cut[rank]
                        self._send(self.coordinator.lease_over(rank, now))


@dataclass
class Line:
    office: Office
    rank: int

    def send(self, message):
        self.office.said(self.rank, message)


@dataclass
class Rank:
    rank: int
    world: int
    office: Office
    store: object
    seed: int = 0
    delay_s: object = lambda step: 0.0
    momentum: float = 0.9
    log: list = field(default_factory=list)

    def build(self):
        torch.manual_seed(self.seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=self.momentum)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()  # changes nothing, but now there is what is there after native steps
        self.updates, self.data = Updates(self.model, self.optimizer), Data()
        lock = threading.RLock()
        self.lock = lock
        self.member = Member(self.rank, tuple(range(self.world)))
        groups = Groups(self.store, self.rank)
        layout, states = Layout(list(self.model.parameters())), States(self.model, self.updates)
        self.engine = Engine(self.member, layout, states, groups, self.updates, self.data, lock, self.office.lag)
        self.peers = Peers(dist.PrefixStore("peers", self.store), self.rank, SECRET, self.engine)
        self.peers.tell()
        self.engine.connect(self.peers, Line(self.office, self.rank))
        self.groups = groups
        self.office.connect(self.rank, self.engine, self.member, lock)
        return self

    def batch(self, index):
        generator = torch.Generator().manual_seed(1000 * self.rank + index)
        return torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)

    def parameters(self):
        return [p.detach().clone() for p in self.model.parameters()]

    def moments(self):
        return [s["momentum_buffer"].clone() for s in self.optimizer.state.values() if "momentum_buffer" in s]


def train(ranks, epochs, iterations, *, after=lambda rank, index: None):
    """Every rank's loop in a thread; native steps are summed by a group of all, as DDP would."""
    errors = []

    def loop(rank):
        try:
            everybody = tuple(range(rank.world))
            native = Groups(dist.PrefixStore("native", rank.store), rank.rank)
            index = 0
            for _ in range(epochs):
                at = 0
                while at < iterations:
                    if rank.data.to_skip:
                        step = min(rank.data.to_skip, iterations - at)
                        rank.data.to_skip -= step
                        at, index = at + step, index + step
                        continue
                    rank.engine.before_step()
                    rank.optimizer.zero_grad()
                    time.sleep(rank.delay_s(index))
                    x, y = rank.batch(index)
                    torch.nn.functional.cross_entropy(rank.model(x), y).backward()
                    if rank.engine.native:
                        total = torch.cat([p.grad.flatten() for p in rank.model.parameters()])
                        done = queue.SimpleQueue()
                        # Where the machine is loaded, the others may begin late: a later attempt has more time.
                        native.reduce(everybody, str(index), 0 if native._made else LATE, total, done.put)
                        assert done.get(timeout=60), "the native reduction has failed"
                        offset = 0
                        for p in rank.model.parameters():
                            p.grad.copy_(total[offset : offset + p.numel()].view_as(p) / rank.world)
                            offset += p.numel()
                        rank.engine.native_done()
                    else:
                        rank.engine.synchronise()
                    if rank.updates.left_out:
                        rank.updates.left_out = False
                    else:
                        rank.optimizer.step()
                    at, index = at + 1, index + 1
                    after(rank, index)
                rank.optimizer.zero_grad()
                rank.engine.meet(index)
                assert all(p.grad is None for p in rank.model.parameters()), "the next backward pass would add to it"
                rank.data.to_skip = 0
            rank.engine.done()
        except BaseException as error:
            errors.append((rank.rank, error))

    threads = [threading.Thread(target=loop, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    for thread in threads:
        thread.join(max(0.1, deadline - time.monotonic()))
    assert not errors, errors
    assert not any(thread.is_alive() for thread in threads), "a rank stands still"
