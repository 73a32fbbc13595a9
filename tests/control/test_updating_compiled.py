"""torch.compile sees none of it: the same graphs, breaks and recompilations."""

import json
import subprocess
import sys

import pytest

TRAIN = """
import json, sys
import torch
from torch import nn
from torch._dynamo.utils import counters
from starprof.control.engine.updating import Updating
from starprof.hook.boundary import Guard
torch.manual_seed(0)
kind, watched = sys.argv[1], sys.argv[2] == "watched"
model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
guard = Guard()
updating = Updating(guard, model, [optimizer])
if watched:
    updating.install()
call, step = model, optimizer.step
def whole(x):
    model(x).pow(2).mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
def broken(x):
    y = model(x)
    torch._dynamo.graph_break()
    return y * 2
compiled = dict(backend="aot_eager")
if kind == "model":
    call = torch.compile(model, **compiled)
elif kind == "step":
    step = torch.compile(lambda: optimizer.step(), **compiled)
elif kind == "graph break":
    call = torch.compile(broken, **compiled)
elif kind == "whole":
    whole = torch.compile(whole, **compiled)
for i in range(10):
    optimizer.zero_grad()
    x = torch.randn(4, 20)
    if kind == "whole":
        whole(x)
        if watched:
            updating.learn()
    else:
        call(x).pow(2).mean().backward()
        if watched:
            updating.learn()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step() if kind == "step" else optimizer.step()
    schedule.step()
assert guard.errors == 0
weights = [p.sum().item() for p in model.parameters()]
print(json.dumps([counters["stats"], counters["recompiles"], counters["graph_break"], weights]))
if updating.ready:
    call(x).pow(2).mean().backward()
    updating.learn()
    updating.skip_own()
    before = [p.clone() for p in model.parameters()]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    step() if kind == "step" else optimizer.step()
    schedule.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before))
print(json.dumps([updating.ready, updating.refusal]))
"""


def run(kind, watched):
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TRAIN, kind, "watched" if watched else "alone"],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert result.returncode == 0, result.stderr
    graphs, seen = result.stdout.splitlines()
    return json.loads(graphs), json.loads(seen)


@pytest.mark.parametrize("kind", ["model", "graph break", "step", "whole"])
def test_compiled_code_has_the_same_graphs(kind):
    graphs, (ready, refusal) = run(kind, watched=True)
    assert graphs == run(kind, watched=False)[0]
    # Inside of a graph nothing can be watched: that is noticed, and refused.
    assert ready == (refusal is None)
    assert ready or kind == "whole"
