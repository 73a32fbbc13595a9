"""A real parameter server in its own processes, and workers that are threads of the test, or processes too."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import torch

from starprof.control.controlsocket import ask
from starprof.errors import StarprofError
from starprof.ps.api import replace_step
from starprof.ps.server import Server
from starprof.ps.worker.worker import Worker

SECRET = "only for this test"
PATIENCE_S = 120.0
SEEDED = threading.Lock()


def until(condition, what):
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(StarprofError, KeyError, StopIteration):
            found = condition()
            if found:
                return found
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.02)


class Lab:
    """One job's server."""

    def __init__(self, folder: Path, workers: int, shards: int = 2, **told):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        told = {"workers": workers, "shards": shards, "folder": str(folder), "state": str(folder / "state"), **told}
        self.server = Server(told, SECRET)
        self.address = self.server.start()
        self._thread = threading.Thread(target=self.server.run, daemon=True)
        self._thread.start()
        self.others = []

    def ask(self, do, **more):
        answer = ask(self.folder, {"do": do, **more})
        assert answer["ok"], answer
        return answer

    def status(self):
        return self.ask("status")

    def mode(self, name, **options):
        return self.ask("mode", mode=name, options=options, by="test")

    def spare(self, folder, shards=1):
        """Processes on what could be another machine."""
        told = {"head": "{}:{}".format(*self.address), "shards": shards, "state": str(folder)}
        other = Server(told, SECRET)
        other.start()
        thread = threading.Thread(target=other.run, daemon=True)
        thread.start()
        self.others.append((other, thread))
        return other

    def shard_process(self, number):
        """The process of a shard by its number, which may be any of ours."""
        told = next(one for one in self.status()["shards"] if one["shard"] == number)
        return int(told["process"].partition("-")[0])

    def kill(self, pid, how=signal.SIGKILL):
        os.kill(pid, how)

    def worker(self, rank, model, optimizer, **more):
        worker = Worker(model, optimizer, rank, self.address, SECRET.encode(), **more)
        worker.begin()
        replace_step(optimizer, worker)
        return worker

    def end(self):
        for other, thread in [*self.others, (self.server, self._thread)]:
            other.stop()
            thread.join(30)


class Job:
    """Workers as threads, each with its own model and data.

    Attributes:
        models: of the workers, by rank.
        steps: that each has made.
        errors: of threads that failed.
    """

    def __init__(self, lab, make, workers, **more):
        self.lab, self.make, self.more = lab, make, more
        self.models, self.workers, self.steps, self.errors = {}, {}, {}, {}
        self.at = None
        self._stopping = False
        self._lock = threading.Lock()
        self._threads = {}
        for rank in range(workers):
            self.begin(rank)

    def begin(self, rank):
        self.steps[rank] = 0
        thread = threading.Thread(target=self._train, args=(rank,), daemon=True)
        self._threads[rank] = thread
        thread.start()

    def _train(self, rank):
        try:
            model, optimizer, schedule = self.make(rank)
            self.models[rank] = model
            self.workers[rank] = worker = self.lab.worker(rank, model, optimizer, **self.more)
            while not self._ends(rank):
                inputs, targets = batch(rank, self.steps[rank])
                optimizer.zero_grad()
                loss_of(model, inputs, targets).backward()
                optimizer.step()
                schedule.step()
                self.steps[rank] += 1
            worker.pull()
            worker.close()
        except Exception as error:
            self.errors[rank] = error

    def _ends(self, rank):
        """Synchronous workers are never more than a step apart: all of them see the same end before it comes."""
        with self._lock:
            if self._stopping and self.at is None:
                self.at = self.steps[rank] + 2
            return self.at is not None and self.steps[rank] >= self.at

    def all_reach(self, steps):
        def there():
            assert not self.errors, self.errors
            return all(done >= steps for done in self.steps.values())

        until(there, f"all workers have made {steps} steps")

    def stop(self):
        """All make equally many steps, and end."""
        self._stopping = True
        self.join()
        return self.at

    def join(self):
        for rank, thread in self._threads.items():
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"worker {rank} has not ended: {self.steps}"
        assert not self.errors, self.errors


def batch(rank, step):
    generator = torch.Generator().manual_seed(1_000 * rank + step)
    return torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def loss_of(model, inputs, targets):
    return torch.nn.functional.cross_entropy(model(inputs.to(next(model.parameters()).dtype)), targets)


def small_model(seed=0, dtype=torch.float64):
    with SEEDED:  # workers are threads, and torch has one generator for all
        torch.manual_seed(seed)
        layers = torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8), torch.nn.Linear(8, 3)
    return torch.nn.Sequential(*layers).to(dtype)


def sgd(rank):
    """Every worker begins with other parameters: the first one's count."""
    model = small_model(seed=rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)


def adamw(rank):
    model = small_model(seed=rank)
    groups = [{"params": [p], "weight_decay": 0.1 * place} for place, p in enumerate(model.parameters())]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)


def alone(make, workers, steps, clip=0.0):
    """The same training in one process, with the mean of all workers' gradients."""
    model, optimizer, schedule = make(0)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(workers):
            (loss_of(model, *batch(rank, step)) / workers).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()
    return model


def difference(one, other):
    return max(float((a - b).detach().abs().max()) for a, b in zip(one.parameters(), other.parameters(), strict=True))
