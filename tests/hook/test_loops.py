"""Training loops of one process."""

from itertools import pairwise
from statistics import median
from types import SimpleNamespace

import pytest
import torch

from starprof.hook.patches.optimizer import momentum_of
from starprof.model.schema import STEP_SPANS

SETUP = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
def net():
    return nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2))
def train(model, optimizer, steps, after=lambda step: None):
    for step in range(steps):
        loss = model(torch.randn(4, 20)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(step)
"""


def test_a_plain_loop_needs_no_change(job):
    rank = job.python(
        SETUP
        + """
model = net()
optimizer = torch.optim.AdamW(model.parameters())
for x, y in DataLoader(TensorDataset(torch.randn(48, 20), torch.zeros(48)), batch_size=8):
    model(x).sum().backward()
    optimizer.step()
"""
    ).only
    assert rank.column("step") == list(range(6))
    assert rank.column("samples") == [None, 8, 8, 8, 8, 8]  # the first batch came before the first sign of training
    for step in rank.steps[1:]:
        assert sum(step[c] for c in STEP_SPANS) == step["dur_us"]
        assert min(step[c] for c in ("data_wait_us", "forward_us", "backward_us", "optimizer_us")) > 0
        assert step["blocked_us"] == 0
        assert step["arrival_us"] is not None
    assert rank.description["framework"] == "none"
    assert (rank.description["rank"], rank.description["world_size"], rank.description["attempt"]) == (0, 1, 0)


def test_tokens_of_a_batch_of_sequences_are_counted(job):
    rank = job.python(
        SETUP
        + """
model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [{"input_ids": torch.zeros(7, dtype=torch.long)} for _ in range(12)]
for batch in DataLoader(data, batch_size=3):
    model(batch["input_ids"]).sum().backward()
    optimizer.step()
"""
    ).only
    assert rank.column("samples", since=1) == [3, 3, 3]
    assert rank.column("tokens", since=1) == [21, 21, 21]


def test_slow_data_is_data_wait(job):
    rank = job.python(
        SETUP
        + """
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 5
    def __getitem__(self, i):
        time.sleep(0.1)
        return torch.randn(20)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in DataLoader(Slow()):
    model(x).sum().backward()
    optimizer.step()
"""
    ).only
    assert min(rank.column("data_wait_us", since=1)) >= 100_000


def test_evaluation_and_checkpoint_are_spans_of_their_own(job):
    rank = job.python(
        SETUP
        + """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
validation = DataLoader(TensorDataset(torch.randn(40, 20)), batch_size=4)
def after(step):
    if step == 3:
        model.eval()
        with torch.no_grad():
            for (x,) in validation:
                model(x)
                time.sleep(0.01)
        model.train()
    if step == 5:
        torch.save(model, "model.pt")
        time.sleep(0.05)
train(model, optimizer, 8, after)
"""
    ).only
    by_step = {s["step"]: s for s in rank.steps}
    assert by_step[4]["eval_us"] >= 100_000
    assert by_step[4]["data_wait_us"] == 0
    assert [s["step"] for s in rank.steps if s["eval_us"]] == [4]
    assert [s["step"] for s in rank.steps if s["checkpoint_us"]] == [6]
    assert by_step[6]["unaccounted_us"] >= 50_000
    assert rank.event("eval")[1:3] == (4, by_step[4]["eval_us"])
    assert rank.event("checkpoint")[1:3] == (6, by_step[6]["checkpoint_us"])


def test_training_in_eval_mode_is_training(job):
    rank = job.python(
        SETUP
        + """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(model, optimizer, 3)
model.eval()
train(model, optimizer, 4)
"""
    ).only
    assert all(s["forward_us"] > 0 for s in rank.steps[1:])
    assert sum(rank.column("eval_us", since=4)) == 0


def test_another_last_gradient_is_learned_when_the_first_layers_are_frozen(job):
    rank = job.python(
        SETUP
        + """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(model, optimizer, 6)
model[0].requires_grad_(False)
train(model, optimizer, 6)
"""
    ).only
    missing = [s["step"] for s in rank.steps if s["arrival_us"] is None]
    assert missing == [0, 6, 7]


def test_several_optimizers_make_one_step_and_a_vanished_one_is_replaced(job):
    rank = job.python(
        SETUP
        + """
first, second = net(), net()
one, two = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.SGD(second.parameters(), lr=0.1)
def both(x):
    return first(x) + second(x)
for _ in range(5):
    both(torch.randn(4, 20)).sum().backward()
    one.step()
    two.step()
del one
for _ in range(4):
    second(torch.randn(4, 20)).sum().backward()
    two.step()
"""
    ).only
    assert rank.column("step") == list(range(9))


def test_a_step_that_the_gradient_scaler_skips_is_a_step(job):
    rank = job.python(
        SETUP
        + """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for i in range(6):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 20)).sum()
    if i == 3:
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    ).only
    assert rank.column("step") == list(range(6))
    assert set(rank.column("micro_batches")) == {1}
    assert min(rank.column("optimizer_us")) > 0


def test_a_closure_runs_forward_and_backward_inside_the_optimizer(job):
    rank = job.python(
        SETUP
        + """
model = net()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
x = torch.randn(64, 20)
def closure():
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    return loss
for _ in range(3):
    optimizer.step(closure)
"""
    ).only
    last = rank.steps[-1]
    assert last["micro_batches"] >= 2
    assert min(last[c] for c in ("forward_us", "backward_us", "optimizer_us")) > 0


def test_the_exception_that_ends_the_loop_is_an_event(job):
    done = job.python(
        SETUP
        + """
model = net()
def after(step):
    if step == 2:
        raise RuntimeError("out of luck")
train(model, torch.optim.SGD(model.parameters(), lr=0.1), 9, after)
""",
        check=False,
    )
    assert done.returncode == 1
    assert "RuntimeError: out of luck" in done.stderr
    assert done.only.event("exception") == ("exception", 3, None, "RuntimeError")
    assert done.only.column("step") == [0, 1, 2]


def test_a_caught_exception_in_the_forward_pass_leaves_the_spans_right(job):
    rank = job.python(
        SETUP
        + """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def after(step):
    try:
        model(torch.randn(4, 21))
    except RuntimeError:
        time.sleep(0.02)
train(model, optimizer, 5, after)
"""
    ).only
    assert min(rank.column("unaccounted_us", since=1)) >= 20_000
    assert "exception" not in rank.kinds()[:-2]


def test_a_full_garbage_collection_is_its_own_span_and_an_event(job):
    rank = job.python(
        SETUP
        + """
import gc
model = net()
def after(step):
    if step == 1:
        gc.collect()
train(model, torch.optim.SGD(model.parameters(), lr=0.1), 4, after)
"""
    ).only
    assert rank.steps[2]["gc_us"] > 0
    assert rank.event("gc")[2] > 0


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)"], ids=["os._exit", "SIGKILL"])
def test_a_kill_loses_nothing(job, end):
    done = job.python(
        SETUP
        + f"""
import os
model = net()
train(model, torch.optim.SGD(model.parameters(), lr=0.1), 5)
{end}
""",
        check=False,
    )
    assert done.returncode in (3, -9)
    assert done.only.column("step") == list(range(5))


def test_a_process_that_wraps_no_step_says_so(job):
    rank = job.python(
        SETUP
        + """
net()(torch.randn(4, 20)).sum().backward()
"""
    ).only
    assert rank.event("hook-note")[3] == "no step boundary seen"
    assert rank.steps == []


def test_the_cost_of_the_hook_is_sampled(job):
    rank = job.python(
        SETUP
        + """
model = net()
train(model, torch.optim.SGD(model.parameters(), lr=0.1), 130)
"""
    ).only
    sampled = [s["step"] for s in rank.steps if s["hook_ns"] is not None]
    assert sampled == [64, 128]
    assert all(0 < s["hook_ns"] < 1000 * s["dur_us"] for s in rank.steps if s["step"] in sampled)


def test_records_of_one_rank_never_overlap(job):
    rank = job.python(
        SETUP
        + """
model = net()
train(model, torch.optim.SGD(model.parameters(), lr=0.1), 20)
"""
    ).only
    assert all(b["start_mono_ns"] > a["start_mono_ns"] for a, b in pairwise(rank.steps))
    assert median(rank.column("dur_us")) > 0


@pytest.mark.parametrize(
    ("groups", "momentum"),
    [
        ([{"momentum": 0.9}], 0.9),
        ([{"momentum": 0}, {"momentum": 0.5}], 0.5),
        ([{"betas": (0.8, 0.999)}], 0.8),
        ([{"momentum": 0.85, "max_momentum": 0.95}], 0.95),
        ([{"lr": 0.1}], None),
        ([{"momentum": torch.tensor(0.9)}], None),
    ],
)
def test_an_optimizers_momentum_is_what_it_repeats_of_its_last_move(groups, momentum):
    assert momentum_of(SimpleNamespace(param_groups=groups)) == momentum
