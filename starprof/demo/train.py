"""Train a small CNN on scikit-learn's handwritten digits with DistributedDataParallel.

This is the job that `starprof demo` records: a plain training script, with nothing of starprof in it. Start it with
torchrun, or with the usual RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment.

One thing is emulated: the accelerator. Every step waits `--accelerator-ms` for it in the middle of forward and
backward, asleep, so that four ranks fit on two cores without slowing each other down. `--host-rank R` makes rank R
do the same amount of work on its CPU instead.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FORWARD_SHARE = 1 / 3
HELD_OUT = 360
BUCKET_MB = 0.01  # a gradient bucket for each layer: several, as any real model has


class Accelerator(torch.autograd.Function):  # type: ignore[misc]
    """Identity that takes `forward_s` in forward and `backward_s` in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, work: Any, forward_s: float, backward_s: float) -> Tensor:
        """Identity; `work` computes for `forward_s`."""
        ctx.work, ctx.backward_s = work, backward_s
        work(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Identity; computes for `backward_s`."""
        ctx.work(ctx.backward_s)
        return grads[0], None, None, None


class OnCpu:
    """Work that takes CPU time instead of sleeping: as much on each of `threads` threads, however long that takes."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads)

    def __call__(self, seconds: float) -> None:
        """Compute for `seconds` of CPU time on each thread."""
        if self.threads == 1:
            self._compute(seconds)
        else:
            list(self.pool.map(self._compute, [seconds] * self.threads))

    def _compute(self, seconds: float) -> None:
        a = torch.ones(192, 192)
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            torch.mm(a, a)


class Net(nn.Module):  # type: ignore[misc]
    """Two convolutions and two linear layers, with the emulated accelerator in between."""

    def __init__(self, accelerator_s: float, work: Any) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 16, 320)
        self.head = nn.Linear(320, 10)
        self.accelerator_s, self.work = accelerator_s, work

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, shape (N, 10), of images of shape (N, 1, 8, 8)."""
        x = functional.relu(self.conv1(x))
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        if self.training:
            in_forward = self.accelerator_s * FORWARD_SHARE
            x = Accelerator.apply(x, self.work, in_forward, self.accelerator_s - in_forward)
        return self.head(functional.relu(self.hidden(x.flatten(1))))


def digits() -> tuple[TensorDataset, TensorDataset]:
    """The 1,797 digits that ship with scikit-learn, as (training, held-out) sets."""
    package = find_spec("sklearn")  # only its file is wanted: importing it takes every rank more than a second
    if package is None or package.origin is None:
        raise SystemExit("the digits come with scikit-learn: pip install scikit-learn")
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    x = torch.tensor(table[:, :64], dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(table[:, 64], dtype=torch.int64)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    train, test = order[HELD_OUT:], order[:HELD_OUT]
    return TensorDataset(x[train], y[train]), TensorDataset(x[test], y[test])


def batches(
    loader: DataLoader[Any], sampler: DistributedSampler[Any], steps: int, end: Path | None
) -> Iterator[tuple[int, Any]]:
    """Exactly `steps` batches, over as many epochs as that takes; with `end` whole epochs, until that file is there."""
    step = 0
    for epoch in range(steps):
        sampler.set_epoch(epoch)
        for batch in loader:
            yield step, batch
            step += 1
            if step == steps and end is None:
                return
        if end is not None and agreed(end.exists() or step >= steps):
            return


def agreed(wish: bool) -> bool:
    """Whether any rank wants to."""
    told = torch.tensor([float(wish)])
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return bool(told.item())


def accuracy(net: nn.Module, test: TensorDataset) -> float:
    """Share of the held-out digits that are recognised."""
    x, y = test.tensors
    net.eval()
    with torch.no_grad():
        right = (net(x).argmax(1) == y).float().mean().item()
    net.train()
    return float(right)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a small CNN on digits with DDP.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--accelerator-ms", type=float, default=40.0, help="emulated accelerator time of a step")
    parser.add_argument("--host-rank", type=int, default=-1, help="this rank computes on its CPU instead")
    parser.add_argument("--host-threads", type=int, default=1, help="threads of that rank")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps between two checkpoints by rank 0")
    parser.add_argument("--checkpoint-mb", type=int, default=0, help="more state in it, as large models have")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--end", type=Path, help="train whole epochs, until this file is there")
    parser.add_argument("--log-dir", type=Path, help="write each rank's step times (seconds) there")
    return parser.parse_args()


def main() -> None:
    """Train, and print how it goes on rank 0."""
    args = arguments()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, test = digits()
    sampler: DistributedSampler[Any] = DistributedSampler(train, world, rank, seed=3)
    loader: DataLoader[Any] = DataLoader(train, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    net = Net(args.accelerator_ms / 1e3, OnCpu(args.host_threads) if rank == args.host_rank else time.sleep)
    model = DistributedDataParallel(net, bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    padding = torch.zeros(args.checkpoint_mb * 2**20 // 4)

    times = []
    began = time.perf_counter()
    for step, (x, y) in batches(loader, sampler, args.steps, args.end):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if args.checkpoint_every and rank == 0 and (step + 1) % args.checkpoint_every == 0:
            torch.save(
                {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "more": padding}, args.checkpoint
            )
        now = time.perf_counter()
        times.append(now - began)
        began = now
        if rank == 0:
            print(f"step {step + 1}/{args.steps} loss {loss.item():.3f}", flush=True)
    if args.log_dir:
        (args.log_dir / f"steps-{rank}.json").write_text(json.dumps(times))
    # Every rank looks at the result: torch aborts in a rank that exits in the very moment a collective ends.
    right = accuracy(net, test)
    if rank == 0:
        print(f"accuracy {right:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
