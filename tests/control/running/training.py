"""A user's training script, which knows nothing of starprof, in all the forms that its test asks for.

`training.py SETUP`: a JSON object, see `DEFAULTS`. Every rank prints one JSON line about what it has at the end. `ask`
is the one thing that no user's script would do: rank 0 asks for modes after so many of its own iterations, as a user
would by `starprof ctl`.
"""

import collections
import contextlib
import functools
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

import starprof

DEFAULTS = {
    "model": "mlp",
    "dtype": None,
    "device": "cpu",
    "backend": "gloo",
    "optimizer": "sgd",
    "epochs": 3,
    "batches": 40,
    "accumulate": 1,
    "clip": False,
    "schedule": None,
    "scaler": False,
    "average": False,
    "autocast": False,
    "ddp": {},
    "workers": 0,
    "slow_s": 0.012,
    "usual_s": 0.003,
    "ask": {},
    "user": None,
    "rings": False,
    "resume": None,
    "uneven": 0,
    "hidden_every": 30,
    "fault": None,
    "fault_rank": None,
    "fault_at": 0,
}


PROFILED = (30, 38)
"""Iterations between which calls of ours are counted."""


class Unused(nn.Module):
    """Two ways through; which one is taken depends on the batch, and a third is never taken."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(20, 32)
        self.ways = nn.ModuleList([nn.Linear(32, 5), nn.Linear(32, 5), nn.Linear(32, 5)])
        self.frozen = nn.Linear(32, 32).requires_grad_(False)

    def forward(self, x):
        hidden = self.frozen(torch.relu(self.inside(x)))
        return self.ways[int(x[0, 0] > 0)](hidden)


class Tied(nn.Module):
    """One parameter in two places."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(20, 20)
        self.again = nn.Linear(20, 20)
        self.again.weight = self.inside.weight
        self.out = nn.Linear(20, 5)

    def forward(self, x):
        return self.out(torch.tanh(self.again(torch.tanh(self.inside(x)))))


class Half(nn.Module):
    """All of it, or all but its last layer, in another type."""

    def __init__(self, inside, dtype):
        super().__init__()
        self.dtype = torch.float16 if dtype == "float16" else torch.bfloat16
        self.inside = inside.to(self.dtype)
        if dtype == "mixed":
            inside[-1].float()

    def forward(self, x):
        x = x.to(self.dtype)
        for layer in self.inside:
            x = layer(x.to(layer.weight.dtype) if isinstance(layer, nn.Linear) else x)
        return x.float()


def model_of(name, dtype=None):
    if dtype is not None:
        return Half(model_of(name), dtype)
    if name == "bn":
        return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))
    if name == "large":
        return nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 5))
    return {"unused": Unused, "tied": Tied}.get(
        name, lambda: nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))
    )()


def optimizers_of(name, model):
    parameters = list(model.parameters())
    if name == "sgd":
        return [torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)]
    if name == "adamw":
        return [torch.optim.AdamW(parameters, lr=2e-3)]
    if name == "groups":
        rest = [{"params": parameters[:1], "lr": 1e-3}, {"params": parameters[1:], "weight_decay": 0.0}]
        return [torch.optim.AdamW(rest, lr=3e-3)]
    if name == "two":
        return [torch.optim.SGD(parameters[:2], lr=0.05), torch.optim.Adam(parameters[2:], lr=1e-3)]
    raise ValueError(name)


def schedule_of(name, optimizer, steps):
    if name == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    if name == "cycle":
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps + 2)
    return None


def digest(values):
    found = hashlib.sha256()
    for value in values:
        found.update(
            value.detach().cpu().double().numpy().tobytes() if torch.is_tensor(value) else repr(value).encode()
        )
    return found.hexdigest()[:16]


def flat(state):
    """All values of nested state, in order."""
    if isinstance(state, dict):
        for key in sorted(state, key=str):
            yield from flat(state[key])
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from flat(value)
    else:
        yield state


def ask(question, times=600):
    from starprof.control import controlsocket

    folder = controlsocket.folder_of(Path(os.environ["CONTROL_FOLDER"]))
    for _ in range(times):
        with contextlib.suppress(controlsocket.NobodyListensError):
            answer = controlsocket.ask(folder, question)
            assert answer.get("ok"), answer
            return answer
        time.sleep(0.05)
    assert times == 1, "there is no coordinator"
    return {}


def fault(what):
    """Something goes wrong in this rank."""
    if what == "exception":
        raise RuntimeError("of the user's own making")
    if what == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    elif what == "kill once" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)


class Training:
    def __init__(self, setup):
        self.setup = setup
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        self.device = setup["device"]
        self.model = model_of(setup["model"], setup["dtype"]).to(self.device)
        self.ddp = DistributedDataParallel(self.model, **setup["ddp"])
        if setup["user"] == "attach":
            starprof.attach(self.ddp)
        self.trained = torch.compile(self.ddp, backend="eager") if setup["user"] == "compile" else self.ddp
        self.optimizers = optimizers_of(setup["optimizer"], self.model)
        steps = setup["epochs"] * setup["batches"] // setup["accumulate"]
        schedules = (schedule_of(setup["schedule"], optimizer, steps) for optimizer in self.optimizers)
        self.schedules = [schedule for schedule in schedules if schedule]
        scaler = functools.partial(torch.amp.GradScaler, self.device, init_scale=1024.0, growth_interval=20)
        self.scaler = scaler() if setup["scaler"] else None
        self.average = None
        if setup["average"]:
            self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(setup["batches"] * 8 * self.world, 20, generator=generator)
        self.data = TensorDataset(x.to(self.device), x[:, :5].argmax(1).to(self.device))
        self.executed, self.evaluations = 0, 0
        self.calls = collections.Counter()
        self.waiting = dict(setup["ask"])

    def loader(self):
        setup = self.setup
        if setup["uneven"]:
            # The last rank has fewer batches, as where nobody pads.
            batches = setup["batches"] - (self.rank == self.world - 1) * setup["uneven"]
            return DataLoader(Subset(self.data, range(8 * batches)), 8), None
        sampler = DistributedSampler(self.data, self.world, self.rank)
        return DataLoader(self.data, 8, sampler=sampler, num_workers=setup["workers"]), sampler

    def resumed(self):
        """The epoch to begin with."""
        if not self.setup["resume"] or not Path(self.setup["resume"]).exists():
            return 0
        saved = torch.load(self.setup["resume"], weights_only=True)
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        return saved["epoch"] + 1

    def save(self, epoch):
        states = [o.state_dict() for o in self.optimizers]
        checkpoint = Path(os.environ["CONTROL_FOLDER"]).parent / "checkpoint.pt"
        aside = checkpoint.with_suffix(".new")
        torch.save({"model": self.model.state_dict(), "optimizers": states, "epoch": epoch}, aside)
        aside.replace(checkpoint)

    def no_host_waits(self, numbered):
        """Native steps in which whatever waits for the GPU is an error."""
        for index, (batch, target) in numbered:
            torch.cuda.set_sync_debug_mode("error")
            self.iterate(index, batch, target)
            torch.cuda.set_sync_debug_mode("default")

    def iterate(self, index, batch, target):
        setup, accumulate, scaler = self.setup, self.setup["accumulate"], self.scaler
        last = (index + 1) % accumulate == 0
        with contextlib.nullcontext() if last else self.ddp.no_sync():
            with torch.autocast(self.device, torch.bfloat16, enabled=setup["autocast"]):
                loss = nn.functional.cross_entropy(self.trained(batch), target) / accumulate
            time.sleep(setup["slow_s"] if self.rank == self.world - 1 else setup["usual_s"])
            (scaler.scale(loss) if scaler else loss).backward()
        if not last:
            return
        if scaler:
            for optimizer in self.optimizers:
                scaler.unscale_(optimizer)
        if setup["clip"]:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        for optimizer in self.optimizers:
            scaler.step(optimizer) if scaler else optimizer.step()
        if scaler:
            scaler.update()
        for schedule in self.schedules:
            schedule.step()
        if self.average:
            self.average.update_parameters(self.model)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.executed += 1
        self.told()

    def told(self):
        print(f"AT {time.monotonic():.3f} {self.executed}", flush=True)
        if self.setup["user"] == "profile" and self.executed in PROFILED:
            sys.setprofile(self.count if self.executed == PROFILED[0] else None)
        if self.rank == self.setup["fault_rank"] and self.executed == self.setup["fault_at"]:
            fault(self.setup["fault"])
        question = self.waiting.pop(str(self.executed), None) if self.rank == 0 else None
        if question is not None:
            ask({"do": "mode", "mode": question[0], "options": question[1], "reason": ""})

    def count(self, frame, event, _argument):
        """Every call of a function of ours."""
        _, ours, path = frame.f_code.co_filename.rpartition("/starprof/")
        # A checkout may be called so too, and hold the environment with everybody else's packages.
        if event == "call" and ours and "site-packages" not in path:
            module = path.removesuffix(".py").replace("/", ".")
            self.calls[f"{module}.{frame.f_code.co_name}"] += 1

    def plain(self, numbered):
        for index, (batch, target) in numbered:
            self.iterate(index, batch, target)

    def with_barriers(self, numbered):
        for index, (batch, target) in numbered:
            self.iterate(index, batch, target)
            if index % 10 == 9:
                dist.barrier()
                self.evaluations += 1

    def with_hidden_barriers(self, numbered):
        """By a count of its own, and called in a way that nobody sees in the code."""
        for index, (batch, target) in numbered:
            self.iterate(index, batch, target)
            if (index + 1) % self.setup["hidden_every"] == 0:
                getattr(dist, "bar" + "rier")()
                self.evaluations += 1

    def stopped_early(self, numbered):
        """Rank 1 has enough."""
        for index, (batch, target) in numbered:
            self.iterate(index, batch, target)
            if self.rank == 1 and self.executed == 30:
                return

    def evaluate(self):
        """By all ranks together."""
        x, y = self.data.tensors
        right = (self.ddp(x).argmax(1) == y).sum().float()
        dist.all_reduce(right)
        self.evaluations += 1

    def run(self):
        loader, sampler = self.loader()
        user = self.setup["user"]
        for epoch in range(self.resumed(), self.setup["epochs"]):
            if sampler is not None:
                sampler.set_epoch(epoch)
            numbered = starprof.steps(loader) if user == "steps with a barrier" else enumerate(loader)
            loops = {
                "barrier": self.with_barriers,
                "steps with a barrier": self.with_barriers,
                "hidden barrier": self.with_hidden_barriers,
                "early stop": self.stopped_early,
                "no host waits": self.no_host_waits,
            }
            loops.get(user, self.plain)(numbered)
            if user == "early stop" and self.rank == 1:
                return
            if user == "checkpoints" and self.rank == 0:
                self.save(epoch)
            optimizer = digest(flat(self.optimizers[0].state_dict()))
            print(f"EPOCH {epoch} {digest(self.model.parameters())} {optimizer}", flush=True)
            if user == "evaluation":
                self.evaluate()

    def result(self):
        x, y = self.data.tensors
        return {
            "rank": self.rank,
            "executed": self.executed,
            "parameters": digest(self.model.parameters()),
            "optimizers": digest(flat([o.state_dict() for o in self.optimizers])),
            "schedules": [s.state_dict()["last_epoch"] for s in self.schedules],
            "rates": [g["lr"] for o in self.optimizers for g in o.param_groups],
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "average": digest(self.average.parameters()) if self.average else None,
            "accuracy": float((self.model.eval()(x).argmax(1) == y).float().mean()),
            "evaluations": self.evaluations,
            "calls": {name: times / (PROFILED[1] - PROFILED[0]) for name, times in self.calls.items()},
        }


def main(setup):
    torch.set_num_threads(1)
    if setup["rings"]:
        from starprof.control.engine import star

        star.STAR_BYTES = 0  # as if the model were a large one
    dist.init_process_group(setup["backend"])
    training = Training(setup)
    training.run()
    told = training.result()
    if setup["user"] == "keeps its parameters":
        path = Path(os.environ["CONTROL_FOLDER"]).parent / "parameters.pt"
        if told["rank"] == 0:
            torch.save([parameter.detach().cpu() for parameter in training.model.parameters()], path)
    if setup["user"] != "survivors":
        dist.barrier()
        told["at_last"] = digest(training.model.parameters())
        dist.destroy_process_group()
    print("TOLD " + json.dumps(told), flush=True)


if __name__ == "__main__":
    main({**DEFAULTS, **json.loads(sys.argv[1])})
