"""A user's training script in HSDP, which knows nothing of starprof: two islands of two ranks each hold a replica.

`islands.py SETUP`: a JSON object, see `DEFAULTS`. Every rank prints what it has at the end, its own shards of it.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from training import ask, digest, flat, optimizers_of, schedule_of

DEFAULTS = {
    "mesh": [2, 2],
    "optimizer": "sgd",
    "epochs": 3,
    "batches": 40,
    "accumulate": 1,
    "clip": False,
    "scaler": False,
    "schedule": None,
    "slow_rank": 3,
    "slow_s": 0.03,
    "usual_s": 0.004,
    "ask": {},
    "evaluate": False,
    "workers": 0,
    "survivors": False,
    "stops": {},
    "waits": False,
}


def model_of(mesh):
    """Sizes that can't be divided evenly: the last shards are smaller."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.Linear(33, 17), nn.Tanh(), nn.Linear(17, 5))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def here(values):
    return [getattr(value, "_local_tensor", value) for value in values]


class Training:
    def __init__(self, setup):
        self.setup = setup
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        shape = setup["mesh"]
        names = ("replicate", "shard")[-len(shape) :]
        self.model = model_of(init_device_mesh("cpu", tuple(shape), mesh_dim_names=names))
        self.optimizers = optimizers_of(setup["optimizer"], self.model)
        steps = setup["epochs"] * setup["batches"] // setup["accumulate"]
        schedules = (schedule_of(setup["schedule"], optimizer, steps) for optimizer in self.optimizers)
        self.schedules = [schedule for schedule in schedules if schedule]
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(setup["batches"] * 8 * self.world, 20, generator=generator)
        self.data = TensorDataset(x, x[:, :5].argmax(1))
        # Every few steps the scale is too large, and an update is left out.
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**122, growth_interval=7)
        self.scaler = scaler if setup["scaler"] else None
        self.executed, self.evaluations = 0, 0
        self.waiting = dict(setup["ask"])
        self.stops_from = setup["stops"].get(str(self.rank))

    def iterate(self, index, batch, target):
        setup, accumulate = self.setup, self.setup["accumulate"]
        last = (index + 1) % accumulate == 0
        self.model.set_requires_gradient_sync(last)
        loss = nn.functional.cross_entropy(self.model(batch), target) / accumulate
        time.sleep(setup["slow_s"] if self.rank == setup["slow_rank"] else setup["usual_s"])
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if not last:
            return
        if self.scaler is not None:
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
        if setup["clip"]:
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            norm.full_tensor()
        for optimizer in self.optimizers:
            optimizer.step() if self.scaler is None else self.scaler.step(optimizer)
        if self.scaler is not None:
            self.scaler.update()
        for schedule in self.schedules:
            schedule.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.executed += 1
        print(f"AT {time.monotonic():.3f} {self.executed}", flush=True)
        while self.setup["waits"] and not (Path(os.environ["CONTROL_FOLDER"]).parent / "go").exists():
            time.sleep(0.05)
        question = self.waiting.pop(str(self.executed), None) if self.rank == 0 else None
        if question is not None:
            ask({"do": "mode", "mode": question[0], "options": question[1], "reason": ""})

    def stop_in_rounds(self):
        """Once, until somebody lets it go on."""
        if ask({"do": "status"}, times=1).get("state") == "rounds":
            self.stops_from = None
            print("STOPS", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

    def evaluate(self):
        """By all ranks together."""
        x, y = self.data.tensors
        with torch.no_grad():
            right = (self.model(x).argmax(1) == y).float().mean()
        dist.all_reduce(right)
        self.evaluations += 1
        return float(right) / self.world

    def run(self):
        setup = self.setup
        sampler = DistributedSampler(self.data, self.world, self.rank)
        loader = DataLoader(self.data, 8, sampler=sampler, num_workers=setup["workers"])
        for epoch in range(setup["epochs"]):
            sampler.set_epoch(epoch)
            for index, (batch, target) in enumerate(loader):
                self.iterate(index, batch, target)
                if self.stops_from is not None and self.stops_from <= epoch and index < setup["batches"] // 2:
                    self.stop_in_rounds()
            states = digest(here(flat([o.state_dict() for o in self.optimizers])))
            print(f"EPOCH {epoch} {digest(here(self.model.parameters()))} {states}", flush=True)
            if setup["evaluate"]:
                self.evaluate()

    def result(self):
        return {
            "executed": self.executed,
            "parameters": digest(here(self.model.parameters())),
            "optimizers": digest(here(flat([o.state_dict() for o in self.optimizers]))),
            "schedules": [s.state_dict()["last_epoch"] for s in self.schedules],
            "rates": [g["lr"] for o in self.optimizers for g in o.param_groups],
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "accuracy": None if self.setup["survivors"] else self.evaluate(),
        }


def main(setup):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training(setup)
    training.run()
    told = training.result()
    if not setup["survivors"]:
        dist.barrier()
        dist.destroy_process_group()
    print("TOLD " + json.dumps(told), flush=True)


if __name__ == "__main__":
    main({**DEFAULTS, **json.loads(sys.argv[1])})
