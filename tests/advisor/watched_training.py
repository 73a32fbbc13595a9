"""A user's training under torchrun; rank 3 is slow while a file is there. Ends when another file is there.

`watched_training.py FOLDER SLOW_S USUAL_S`: the folder holds `slow`, `end` and `diverge`, each there or not. Every rank
writes its step count and the accuracy at the end.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    folder, slow_s, usual_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = torch.randn(4096, 20)
    labels = (data[:, :5].sum(dim=1) > 0).long() + 2 * (data[:, 5] > 0).long()
    dataset = TensorDataset(data, labels)
    loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    over = torch.zeros(1)
    made = 0
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            time.sleep(slow_s if rank == 3 and (folder / "slow").exists() else usual_s)
            loss = nn.functional.cross_entropy(model(x), y)
            if (folder / "diverge").exists():
                loss = loss + 5.0  # which changes no gradient
            loss.backward()
            optimizer.step()
            made += 1
            if rank == 0:
                print(f"step {made} {time.monotonic():.3f} {loss.item():.4f}", flush=True)
        over.fill_(float((folder / "end").exists()))
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        if over.item():
            break
    with torch.no_grad():
        right = (model.module(data).argmax(dim=1) == labels).float().mean().item()
    (folder / f"rank{rank}.json").write_text(json.dumps({"made": made, "right": right}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
