"""A user's training script that goes on, epoch after epoch, until there is a file that says that it is enough.

`until_told.py SETUP`: a JSON object with `stop`, the file; `width` of the model; `compute_s`, the mean of what steps
take, between half and one and a half of it; `batches` of an epoch. Every rank prints one JSON line: the digest of its
parameters and when its steps ended.
"""

import hashlib
import json
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(setup):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    width, world = setup["width"], dist.get_world_size()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = TensorDataset(torch.randn(4 * setup["batches"] * world, 20))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    ends_s = []
    for epoch in range(100_000):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            optimizer.zero_grad()
            time.sleep(setup["compute_s"] * random.uniform(0.5, 1.5))
            model(x).square().mean().backward()
            optimizer.step()
            ends_s.append(time.monotonic())
        enough = torch.tensor([float(Path(setup["stop"]).exists())])
        dist.broadcast(enough, 0)
        if enough.item():
            break
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    print("TOLD " + json.dumps({"digest": digest, "ends_s": ends_s}), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
