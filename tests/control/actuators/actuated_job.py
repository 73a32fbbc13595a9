"""A user's training loop that goes on until a file says stop: `actuated_job.py FOLDER [balanced|epochs]`."""

import contextlib
import gc
import json
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import starprof

FOLDER = Path(sys.argv[1])
STOP_TOGETHER_EVERY = 10


class Told:
    """What this process sees of itself, written when it changes."""

    def __init__(self, rank):
        self.path = FOLDER / f"told{rank}.json"
        self.last = None

    def tell(self, **values):
        if values != self.last:
            self.last = values
            aside = self.path.with_suffix(".new")
            aside.write_text(json.dumps(values))
            aside.replace(self.path)


def sleeper():
    """A thread of the job's own, as loaders and loggers have them."""
    thread = threading.Thread(target=lambda: time.sleep(600), daemon=True)
    thread.start()


def plain(model, optimizer, told, rank):
    x = torch.ones(8, 20)
    step = 0
    while True:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.002)
        step += 1
        told.tell(threads=torch.get_num_threads(), gc=gc.isenabled())
        if over(step):
            return


def balanced(model, optimizer, told, rank):
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(512, 20, generator=generator), torch.arange(512))
    batches = starprof.balanced(data, 16, agree_every=5)
    loader = DataLoader(data, batch_sampler=batches)
    step = epoch = 0
    seen = (FOLDER / f"seen{rank}.txt").open("w")
    with contextlib.closing(seen):
        while True:
            batches.set_epoch(epoch)
            for x, number in loader:
                loss = model(x).square().mean() * batches.weight(len(x))
                loss.backward()
                gradient = [p.grad.double().sum().item() for p in model.parameters()]
                seen.write(json.dumps([epoch, number.tolist(), gradient]) + "\n")
                optimizer.zero_grad()  # the parameters stay: gradients can be computed again by the test
                optimizer.step()
                batches.step()
                step += 1
                told.tell(sizes=batches.sizes)
                if over(step):
                    return
            epoch += 1


def in_epochs(model, optimizer, told, rank):
    """A loop that can be moved to rounds: ranks come together at the end of an epoch only."""
    data = TensorDataset(torch.randn(400, 20))
    epoch = 0
    while True:
        for (x,) in DataLoader(data, 8):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.004)
        epoch += 1
        told.tell(threads=torch.get_num_threads(), gc=gc.isenabled(), epochs=min(epoch, 2))
        if over(0):
            return


def over(step):
    if step % STOP_TOGETHER_EVERY:
        return False
    stop = torch.tensor(float((FOLDER / "stop").exists()))
    dist.all_reduce(stop)
    return bool(stop)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    sleeper()
    model = DistributedDataParallel(nn.Linear(20, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    told = Told(rank)
    loop = {"balanced": balanced, "epochs": in_epochs}.get(sys.argv[-1], plain)
    loop(model, optimizer, told, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
