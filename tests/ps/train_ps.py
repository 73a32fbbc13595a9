"""A small training on a parameter server, until a file appears."""

import os
import sys
import time
from pathlib import Path

import torch

import starprof.ps

torch.set_num_threads(1)
rank = int(os.environ.get("RANK", "0"))
torch.manual_seed(rank)
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.9)
worker = starprof.ps.wrap(model, optimizer, shards=2)
while not Path(sys.argv[1]).exists():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 3, (8,))).backward()
    time.sleep(0.01 + 0.02 * (rank == 2))
    optimizer.step()
    schedule.step()
worker.pull()
print(f"worker {rank} ends with version {worker.version}", flush=True)
