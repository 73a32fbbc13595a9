"""The job of the benchmark: a perceptron on handwritten digits; `train.py FOLDER SEED USUAL_MS SLOW_MS STEPS`."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from starprof.demo.train import digits


def main() -> None:
    """Train whole epochs until rank 0 has made its steps, and write what was reached."""
    folder, seed, usual_ms, slow_ms, steps = Path(sys.argv[1]), *map(int, sys.argv[2:6])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    train, test = digits()
    train = TensorDataset(train.tensors[0].repeat(2, 1, 1, 1), train.tensors[1].repeat(2))
    loader = DataLoader(train, batch_size=8, sampler=DistributedSampler(train, seed=seed), drop_last=True)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    made, over, held_out = 0, torch.zeros(1), []
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            time.sleep((slow_ms if rank == 3 and (folder / "slow").exists() else usual_ms) / 1e3)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            made += 1
            if rank == 0:
                print(f"step {made} {time.monotonic():.4f} {loss.item():.4f}", flush=True)
                if made % 10 == 0:
                    held_out.append((time.monotonic(), _loss(net, test)))
        over.fill_(float(rank == 0 and made >= steps))
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        if over.item():
            break
    if rank == 0:
        with torch.no_grad():
            accuracy = (net(test.tensors[0]).argmax(1) == test.tensors[1]).float().mean().item()
        (folder / "rank0.json").write_text(json.dumps({"accuracy": accuracy, "held_out": held_out}))
    dist.barrier()
    dist.destroy_process_group()


def _loss(net: nn.Module, test: TensorDataset) -> float:
    with torch.no_grad():
        return float(nn.functional.cross_entropy(net(test.tensors[0]), test.tensors[1]))


if __name__ == "__main__":
    main()
