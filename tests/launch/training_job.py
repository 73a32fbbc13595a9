"""A small real training job for the tests: runs until the file named by its argument exists.

Each rank prints `ready` after its first step and `steps N` at the end. The parameters' update is acknowledged to the
outside by a counter file: what it says has been stepped.
"""

import mmap
import os
import struct
import sys
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
stop, pause_s = sys.argv[1], float(sys.argv[2])
rank = int(os.environ.get("RANK", "0"))
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
if "WORLD_SIZE" in os.environ:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
with open(f"{stop}.count{rank}", "w+b") as file:
    file.truncate(8)
    counter = mmap.mmap(file.fileno(), 8)

steps, go_on = 0, torch.ones(1)
while go_on.item():
    model(torch.randn(4, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
    counter[:] = struct.pack("<Q", steps)
    if steps == 1:
        os.write(1, b"ready\n")  # torchrun runs us unbuffered: print would mix the ranks' lines
    time.sleep(pause_s)
    go_on[0] = not os.path.exists(stop)
    if dist.is_initialized():
        dist.broadcast(go_on, 0)
os.write(1, b"steps %d\n" % steps)
if dist.is_initialized():
    dist.destroy_process_group()
    # gloo's thread may still hold the last broadcast's tensor; releasing it while Python shuts down aborts the process.
    time.sleep(0.3)
