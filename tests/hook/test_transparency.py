"""The user's program is the same with and without the hook."""

import json
import subprocess
import sys

import pytest

TRAIN = """
import copy, io, pickle, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
def net():
    return nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Dropout(), nn.Linear(20, 2))
def train(model, optimizer, steps=5):
    for (x,) in DataLoader(TensorDataset(torch.randn(4 * steps, 20)), batch_size=4, shuffle=True):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_the_result_of_training_is_bit_identical(job):
    source = (
        TRAIN
        + """
import hashlib
model = net()
optimizer = torch.optim.AdamW(model.parameters())
train(model, optimizer, 40)
digest = hashlib.sha256()
for tensor in [*model.state_dict().values(), torch.get_rng_state()]:
    digest.update(tensor.numpy().tobytes())
print(digest.hexdigest())
"""
    )
    with_hook = job.python(source)
    assert len(with_hook.only.steps) == 40
    assert with_hook.stdout == job.python(source, hook=False).stdout


def test_saved_copied_and_pickled_models_know_nothing_of_the_hook(job):
    job.python(
        TRAIN
        + """
model = net()
optimizer = torch.optim.AdamW(model.parameters())
train(model, optimizer)
assert "_compiled_call_impl" in vars(model)  # the hook is at work
twin = copy.deepcopy(model)
assert vars(twin).get("_compiled_call_impl") is None
assert all(not p._post_accumulate_grad_hooks for p in twin.parameters())
assert torch.equal(twin.eval()(torch.ones(1, 20)), model.eval()(torch.ones(1, 20)))
shallow = copy.copy(model)
assert vars(shallow).get("_compiled_call_impl") is None
torch.save(model, "model.pt")
torch.save(optimizer.state_dict(), "optimizer.pt")
with open("optimizer.pickle", "wb") as file:
    pickle.dump(optimizer, file)
assert b"starprof" not in open("model.pt", "rb").read() + open("optimizer.pickle", "rb").read()

class Own(nn.Linear):
    def __getstate__(self):
        return self.__dict__.copy()
own = Own(20, 2)
train(own, torch.optim.SGD(own.parameters(), lr=0.1))
assert vars(pickle.loads(pickle.dumps(own)))["_compiled_call_impl"] is None
"""
    )
    loading = """
import sys, pickle, torch
model = torch.load("model.pt", weights_only=False)
model(torch.ones(1, 20))
torch.load("optimizer.pt")
pickle.load(open("optimizer.pickle", "rb"))
assert not any(name.startswith("starprof") for name in sys.modules)
"""
    environment = job.environment(hook=False)
    subprocess.run([sys.executable, "-c", loading], cwd=job.folder, env=environment, check=True)


def test_a_model_is_freed_as_soon_as_it_was_without_the_hook(job):
    job.python(
        TRAIN
        + """
import gc, weakref
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(model, optimizer, 30)
gc.collect()
gc.disable()
alive = weakref.ref(model)
weight = weakref.ref(model[0].weight)
del model, optimizer
assert alive() is None
assert weight() is None
"""
    )


def test_replicas_of_data_parallel_call_themselves(job):
    job.python(
        TRAIN
        + """
model = net()
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
replica = model._replicate_for_data_parallel()
replica.forward = lambda x: "mine"
assert replica(torch.ones(1, 20)) == "mine"
"""
    )


COMPILED = (
    TRAIN
    + """
import json
import torch._dynamo.utils
from torch._dynamo.utils import counters
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()
    def forward(self, x):
        return self.layers(x) * 2
model = Net()
kind = sys.argv[1]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def once(call, x):
    call(x).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
step = once
if kind == "module":
    call = torch.compile(model, backend="aot_eager")
elif kind == "in place":
    model.compile(backend="aot_eager")
    call = model
elif kind == "late":
    train(model, optimizer)
    call = torch.compile(model, backend="aot_eager")
elif kind == "late in place":
    train(model, optimizer)
    model.compile(backend="aot_eager")
    call = model
elif kind == "whole step":
    call = model
    step = torch.compile(once, backend="aot_eager")
elif kind == "graph break":
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model
        def forward(self, x):
            x = self.inner(x)
            torch._dynamo.graph_break()
            return x * 2
    call = torch.compile(Broken(), backend="aot_eager")
for i in range(12):
    step(call, torch.randn(4, 20))
breaks, frames = len(counters["graph_break"]), counters["frames"]["total"]
print(json.dumps([counters["stats"], counters["recompiles"], breaks, frames]))
"""
)


@pytest.mark.parametrize("kind", ["module", "in place", "late", "late in place", "whole step", "graph break"])
def test_compiled_models_have_the_same_graphs_and_recompilations(job, kind):
    with_hook = job.python(COMPILED, kind)
    without = job.python(COMPILED, kind, hook=False)
    *graphs, frames = json.loads(with_hook.stdout)
    *same_graphs, frames_without = json.loads(without.stdout)
    assert graphs == same_graphs
    assert frames <= frames_without
    rank = with_hook.only
    if kind == "whole step":
        # The optimizer is inside the graph: nothing of ours may be.
        assert rank.event("hook-note")[3] == "no step boundary seen"
    else:
        assert sum(rank.column("compile_us")) > 0
        assert all(s["forward_us"] > 0 for s in rank.steps[-8:])
        assert all(s["backward_us"] > 0 for s in rank.steps[-8:])
