"""What a look at the gradient noise costs: CPU time of a native DDP step with one, against the step before without.

`python benchmarks/noise_cost.py [--pairs N]`, one process; a job with control looks at one step of a hundred. Steps
come in pairs, with and without, so that what else runs on the machine slows down both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from starprof.control.engine.noise import EVERY, NoiseLooks
from starprof.hook.boundary import Guard


class Nobody:
    """Takes what is said."""

    def send(self, _message: object) -> None:
        """It is not kept."""


def models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Some with much computation for each parameter, some with hardly any; each with a batch."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    convolutions = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    return {
        "large perceptron, batch of 4": (
            nn.Sequential(nn.Linear(1024, 4096), nn.Linear(4096, 1024)),
            torch.randn(4, 1024),
        ),
        "large perceptron, batch of 64": (
            nn.Sequential(nn.Linear(1024, 4096), nn.Linear(4096, 1024)),
            torch.randn(64, 1024),
        ),
        "small perceptron, batch of 32": (nn.Sequential(nn.Linear(20, 32), nn.Linear(32, 5)), torch.randn(32, 20)),
        "transformer, 8 x 64 tokens": (nn.TransformerEncoder(layer, 6), torch.randn(8, 64, 256)),
        "convolutions, batch of 16": (
            nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(65536, 10)),
            torch.randn(16, 3, 32, 32),
        ),
    }


def measured(model: nn.Module, batch: torch.Tensor, pairs: int) -> tuple[float, float]:
    """Median CPU time of a step in seconds, and of what a look adds, as a share of it."""
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    looks = NoiseLooks(0, list(model.parameters()), Guard(), 1)
    looks.link = Nobody()  # type: ignore[assignment]

    def step(look: bool) -> float:
        began_s = time.process_time()
        if look:
            looks.before_native(0)
        ddp(batch).square().mean().backward()
        looks.after_native(0, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - began_s

    for look in (False, True) * 3:
        step(look)
    pairs_s = [(step(False), step(True)) for _ in range(pairs)]
    plain_s = statistics.median(plain for plain, _ in pairs_s)
    return plain_s, statistics.median(looked - plain for plain, looked in pairs_s) / plain_s


def main() -> None:
    """Print one line for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(os.path.join(folder, "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        for name, (model, batch) in models().items():
            step_s, share = measured(model, batch, pairs)
            print(
                f"{name:<32} step {1e3 * step_s:8.2f} ms of CPU, a look {100 * share:6.1f} % of it, "
                f"one in {EVERY}: {100 * share / EVERY:.2f} %"
            )
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
