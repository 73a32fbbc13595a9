"""A user's training on a parameter server under torchrun; rank 3 is slow while a file is there.

`watched_server_training.py FOLDER SLOW_S USUAL_S`: the folder holds `slow` and `end`, each there or not.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import starprof.ps


def main():
    folder, slow_s, usual_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    worker = starprof.ps.wrap(model, optimizer)
    for made in itertools.count(1):
        x = torch.randn(4, 20)
        labels = (x[:, :5].sum(dim=1) > 0).long() + 2 * (x[:, 5] > 0).long()
        optimizer.zero_grad()
        time.sleep(slow_s if rank == 3 and (folder / "slow").exists() else usual_s)
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {made} {time.monotonic():.3f} {loss.item():.4f}", flush=True)
        if (folder / "end").exists():
            break
    dist.barrier()
    worker.pull()
    right = float(sum(value.double().sum() for value in model.parameters()))
    (folder / f"rank{rank}.json").write_text(json.dumps({"made": made, "right": right}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
