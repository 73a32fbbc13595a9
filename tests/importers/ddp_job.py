"""A real DDP job under torch.profiler: one process a rank over gloo, one of them delayed inside backward."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule


def main(rank, world, port, steps, slow, delay_s, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    model = DistributedDataParallel(layers, bucket_cap_mb=0.02)
    if rank == slow:
        layers[1].weight.register_hook(lambda grad: (time.sleep(delay_s), grad)[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = schedule(wait=1, warmup=1, active=steps)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/{rank}.pt.trace.json"),
    ) as profiler:
        for _ in range(steps + 2):
            optimizer.zero_grad()
            model(torch.randn(16, 64)).pow(2).mean().backward()
            optimizer.step()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    rank, world, port, steps, slow, delay_s, folder = sys.argv[1:]
    main(int(rank), int(world), int(port), int(steps), int(slow), float(delay_s), folder)
