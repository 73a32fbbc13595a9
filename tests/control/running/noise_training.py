"""A user's loop whose parameters hardly move, so that the noise of its gradients can be computed directly.

Batches are drawn with replacement, so that they are independent; two of them make up a step's gradient, scaled by a
GradScaler. Rank 0 asks for each mode once enough was seen in the one before, and tells at the end what per-sample
gradients say.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from training import ask

BATCH, ACCUMULATE = 8, 2


def directly(model, data):
    """Trace of the covariance of one sample's gradient, and squared norm of the mean of all."""
    gradients = []
    for x, y in zip(*data.tensors, strict=True):
        found = torch.autograd.grad(nn.functional.cross_entropy(model(x[None]), y[None]), list(model.parameters()))
        gradients.append(torch.cat([g.flatten() for g in found]).double())
    stacked = torch.stack(gradients)
    mean = stacked.mean(0)
    return float(((stacked - mean) ** 2).sum(1).mean()), float(mean @ mean)


def looks():
    """How many updates the noise was looked at in so far."""
    noise = ask({"do": "status"}, times=1).get("noise")  # nothing while there is no coordinator
    return noise["updates"] if noise else 0


def main(setup):
    plan = setup["ask"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    x = torch.randn(256, 20)
    data = TensorDataset(x, (x[:, :5] + torch.randn(256, 5)).argmax(1))
    model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 5))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10_000)
    generator = torch.Generator().manual_seed(100 + rank)
    drawn = RandomSampler(data, replacement=True, num_samples=setup["steps"] * BATCH * ACCUMULATE, generator=generator)
    made = 0
    for number, (batch, target) in enumerate(DataLoader(data, BATCH, sampler=drawn)):
        last = (number + 1) % ACCUMULATE == 0
        ddp.require_backward_grad_sync = last
        loss = nn.functional.cross_entropy(ddp(batch), target) / ACCUMULATE
        time.sleep(0.004 if rank == 3 else 0.001)
        scaler.scale(loss).backward()
        if not last:
            continue
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        made += 1
        if rank == 0 and made % 4 == 0 and plan and looks() >= plan[0][0]:
            _, mode, options = plan.pop(0)
            ask({"do": "mode", "mode": mode, "options": options, "reason": ""})
    dist.barrier()
    told = {"rank": rank, "folder": os.environ["CONTROL_FOLDER"]}
    if rank == 0:
        told["noise"], told["signal"] = directly(model, data)
    dist.destroy_process_group()
    print("TOLD " + json.dumps(told), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
