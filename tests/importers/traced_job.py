"""A real job under torch.profiler: one process a rank over gloo, one of them slow in some part of its step.

python traced_job.py RANK WORLD PORT FOLDER 'JSON of the rest'
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

WIDTH, LAYERS, BATCH = 64, 4, 16


class Slowed(nn.Module):
    """A layer that takes longer going forward."""

    def __init__(self, delay_s):
        super().__init__()
        self.delay_s = delay_s

    def forward(self, values):
        time.sleep(self.delay_s)
        return values


class SlowedBack(torch.autograd.Function):
    """What takes longer going backward; a hook of a weight would not run under FSDP2, which replaces the weights."""

    @staticmethod
    def forward(context, values, delay_s):
        context.delay_s = delay_s
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.delay_s)
        return gradient, None


class Back(nn.Module):
    """A layer that takes longer going backward."""

    def __init__(self, delay_s):
        super().__init__()
        self.delay_s = delay_s

    def forward(self, values):
        return SlowedBack.apply(values, self.delay_s)


class Samples(Dataset):
    """Samples of which each batch takes a while to load."""

    def __init__(self, count, delay_s):
        self.count, self.delay_s = count, delay_s

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.delay_s / BATCH)
        return torch.randn(WIDTH)


def layers(where, delay_s):
    """A stack of linear layers, slow where it is said."""
    stack = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    if where in ("forward", "backward"):
        stack.insert(2, (Slowed if where == "forward" else Back)(delay_s))
    return nn.Sequential(*stack)


def sharded(stack):
    """FSDP2: each layer's weights gathered before, its gradients scattered after."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in stack:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(stack, mesh=mesh)


def main(rank, world, port, folder, steps=14, slow=None, where="", delay_s=0.0, marks=True, fsdp=False):
    """Train for a few steps and leave a trace."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mine = where if rank == slow else ""
    stack = layers(mine, delay_s)
    model = sharded(stack) if fsdp else DistributedDataParallel(stack, bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wait, warm_up = (1, 1) if marks else (0, 0)
    data = DataLoader(Samples(BATCH * (steps + wait + warm_up), delay_s if mine == "loader" else 0.0), BATCH)
    plan = schedule(wait=wait, warmup=warm_up, active=steps) if marks else None
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
        for batch in data:
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
            if marks:
                profiler.step()
    profiler.export_chrome_trace(f"{folder}/{rank}.pt.trace.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    rank, world, port, folder, rest = sys.argv[1:]
    main(int(rank), int(world), int(port), folder, **json.loads(rest))
