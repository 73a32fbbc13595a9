"""A job of the benchmark: a plain training script, with nothing of starprof's control in it.

Every rank writes what it has seen to `--out` as `rank<R>.json`: when each of its steps ended, the accuracy of its
parameters over time (rank 0), and what it has at the end. Times are of the clock that all processes share.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from compute import EMULATED, Accelerator, between
from disturb import GROUP, QUOTA, STRAGGLER, core_of
from methods import METHODS, Method
from tasks import TASKS, Task, burn
from torch.utils.data import DataLoader, DistributedSampler, default_collate

BEGUN = "begun"
"""File that says that the training has begun; its text is when."""
SETTLED_STEPS = 40
"""From here on the CPU time of our threads is counted."""
SNAPSHOTS_EVERY = 6
"""Steps of rank 0 from one copy of the parameters to the next; looked at when all is over."""


class Log:
    """What a rank remembers of its steps."""

    def __init__(self, rank: int, task: Task) -> None:
        self.rank = rank
        self.task = task
        self.ends_s: list[float] = []
        self.epochs_s: list[float] = []
        self.snapshots: list[tuple[float, dict[str, Any]]] = []
        self.settled = (0.0, 0.0)

    def step(self) -> None:
        """A step is made."""
        self.ends_s.append(time.monotonic())
        if len(self.ends_s) == SETTLED_STEPS:
            self.settled = (time.monotonic(), threads_cpu_s())
        if self.rank == 0 and len(self.ends_s) % SNAPSHOTS_EVERY == 0:
            state = {name: value.clone() for name, value in self.task.net.state_dict().items()}
            self.snapshots.append((self.ends_s[-1], state))

    def thread_share(self) -> float | None:
        """CPU time of Python's other threads in this process, as a part of the time; None: too few steps."""
        began_s, cpu_s = self.settled
        passed_s = time.monotonic() - began_s
        return (threads_cpu_s() - cpu_s) / passed_s if began_s else None

    def accuracies(self, began_s: float) -> list[tuple[float, float]]:
        """(seconds of training, accuracy) of all copies."""
        kept = {name: value.clone() for name, value in self.task.net.state_dict().items()}
        seen = []
        for at_s, state in self.snapshots:
            self.task.net.load_state_dict(state)
            right, all_ = self.task.right()
            seen.append((round(at_s - began_s, 4), right / all_))
        self.task.net.load_state_dict(kept)
        return seen


def threads_cpu_s() -> float:
    """CPU time of all Python threads but this one."""
    spent_ns = 0
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.native_id is not None:
            try:
                text = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
            except OSError:
                continue  # it has just ended
            spent_ns += int(text.split()[0])
    return spent_ns / 1e9


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A job of the synchronisation benchmark.")
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument("--method", choices=METHODS, default="ddp")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compute-ms", type=float, default=20.0)
    parser.add_argument("--straggler", choices=EMULATED, default="none")
    parser.add_argument("--factor", type=float, default=4.0, help="of a slow step's compute")
    parser.add_argument("--bout", type=float, nargs=2, help="the last rank is slow between these seconds, instead")
    parser.add_argument("--bout-of", choices=("compute", "loader"), default="compute", help="what is slow in the bout")
    parser.add_argument("--good", type=float, help="accuracy whose time is taken, instead of the task's own")
    parser.add_argument("--on-cpu", type=int, nargs="*", default=[], help="ranks that compute on the CPU instead")
    parser.add_argument("--pin", action="store_true", help="the last rank has a core of its own, the others share")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def train(method: Method, loader: Any, epochs: int, log: Log, work: Accelerator) -> list[float]:
    """All epochs; the accuracy after each, measured by all ranks together."""
    rank, world, task = dist.get_rank(), dist.get_world_size(), log.task
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(method.scheduled, epochs * len(loader))
    after_epochs = []
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for inputs, answers in loader:
            step(method, inputs, answers, task, work)
            schedule.step()
            log.step()
        log.epochs_s.append(time.monotonic())
        counts = torch.tensor(task.right(rank, world), dtype=torch.float64)
        dist.all_reduce(counts)
        after_epochs.append(float(counts[0] / counts[1]))
    return after_epochs


def train_apart(method: Method, loader: Any, epochs: int, log: Log, work: Accelerator) -> None:
    """Until the parameters have had so many updates as they get in these epochs, where ranks don't keep step."""
    assert method.updates is not None
    task, updates, all_of_them = log.task, method.updates, epochs * len(loader)

    def rate(_: int) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, updates() / all_of_them)))

    schedule = torch.optim.lr_scheduler.LambdaLR(method.scheduled, rate)
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        for inputs, answers in loader:
            step(method, inputs, answers, task, work)
            schedule.step()
            log.step()
            if updates() >= all_of_them:
                return


def step(method: Method, inputs: Any, answers: Any, task: Task, work: Accelerator) -> None:
    """One of a rank."""
    method.optimizer.zero_grad()
    work.next_step()
    task.loss(method.model(inputs), answers).backward()
    if task.clip is not None:
        torch.nn.utils.clip_grad_norm_(task.net.parameters(), task.clip)
    method.optimizer.step()


def begin(args: argparse.Namespace, rank: int) -> float:
    """All ranks start together; when that was."""
    straggler = rank == dist.get_world_size() - 1
    if straggler:
        (args.out / STRAGGLER).write_text(str(os.getpid()))
    moment = torch.tensor([time.monotonic()], dtype=torch.float64)
    dist.broadcast(moment, 0)
    dist.barrier()
    if straggler and GROUP in os.environ:
        Path(os.environ[GROUP], "cgroup.procs").write_text(str(os.getpid()))
        Path(os.environ[GROUP], "cpu.cfs_quota_us").write_text(os.environ[QUOTA])
    if rank == 0:
        partial_file = args.out / f"{BEGUN}.part"
        partial_file.write_text(repr(moment.item()))
        partial_file.rename(args.out / BEGUN)
    return float(moment.item())


def digest(net: torch.nn.Module) -> str:
    """Of all parameters, bit for bit."""
    found = hashlib.sha256()
    for value in net.state_dict().values():
        found.update(value.numpy().tobytes())
    return found.hexdigest()[:16]


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if args.pin:
        os.sched_setaffinity(0, {core_of(rank, world)})
    torch.manual_seed(args.seed)
    own_work = burn if rank in args.on_cpu else time.sleep
    slow = EMULATED[args.straggler](rank, world)
    bout = between(rank, world, *args.bout) if args.bout else slow
    if args.bout_of == "compute":
        slow = bout
    accelerator = Accelerator(slow, args.factor, args.seed * 1000 + rank, own_work)
    task = TASKS[args.task](args.seed, world, args.compute_ms / 1e3, accelerator)
    sampler: DistributedSampler[Any] = DistributedSampler(task.train, world, rank, seed=args.seed, drop_last=True)
    task.good = args.good or task.good
    late_s = (args.factor - 1) * args.compute_ms / 1e3 if args.bout_of == "loader" else 0.0

    def collate(samples: list[Any]) -> Any:
        if late_s and bout(time.monotonic() - accelerator.began_s, accelerator.random):
            time.sleep(late_s)
        return default_collate(samples)

    loader: DataLoader[Any] = DataLoader(task.train, task.batch, sampler=sampler, drop_last=True, collate_fn=collate)
    method = METHODS[args.method](task.net, task.optimizer)
    log = Log(rank, task)
    accelerator.began_s = began_s = begin(args, rank)
    after_epochs: list[float] = []
    if method.updates is None:
        after_epochs = train(method, loader, args.epochs, log, accelerator)
    else:
        train_apart(method, loader, args.epochs, log, accelerator)
    ended_s = log.ends_s[-1]
    share = log.thread_share()
    dist.barrier()
    right, all_ = task.right()
    seen = {
        "began_s": began_s,
        "seconds": ended_s - began_s,
        "steps": len(log.ends_s),
        "iterations": args.epochs * len(loader),
        "ends_s": [round(at_s - began_s, 5) for at_s in log.ends_s],
        "epochs_s": [round(at_s - began_s, 5) for at_s in log.epochs_s],
        "after_epochs": after_epochs,
        "accuracy": right / all_,
        "good": task.good,
        "digest": digest(task.net),
        "thread_share": share,
        "snapshots": log.accuracies(began_s),
    }
    (args.out / f"rank{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    method.end()


if __name__ == "__main__":
    main()
