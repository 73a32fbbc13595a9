"""Each thing that makes rounds impossible is told with its own sentence. Real process groups in real processes."""

import os
import re
import subprocess
import sys

import pytest
from free_ports import free_port
from torch import nn

from starprof.control.engine.refusals import NATIVE_STEPS, Seen, reasons

PRELUDE = """
import sys, threading
import torch, torch.distributed as dist
from datetime import timedelta
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from starprof.control.engine.refusals import Seen, UserCollectives, notes, reasons
from starprof.hook.boundary import Guard
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
def told(model, *optimizers, seen=None, **kwargs):
    if rank == 0:
        for reason in reasons(model, optimizers, seen or Seen(), **kwargs):
            print(reason)
"""


def ranks(source, size=2):
    """What rank 0 prints."""
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    end = "\ndist.barrier()\ndist.destroy_process_group()\n"
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PRELUDE + source + end],
            env={**environment, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return outputs[0][0].splitlines()


DDP_CASES = """
model = DDP(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
told(model, optim.SGD(model.parameters(), lr=0.1))
print("== sync bn")
model.module[1] = nn.SyncBatchNorm(2)  # DDP does not take one on the CPU
told(model)
print("== python hook")
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
model = DDP(nn.Linear(2, 2))
model.register_comm_hook(None, default_hooks.fp16_compress_hook)
told(model)
print("== power")
model = DDP(nn.Linear(2, 2))
model.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
told(model)
print("== built-in hook")
model = DDP(nn.Linear(2, 2))
model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
told(model)
print("== delayed")
inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
first, second = inner[0].weight, inner[1].weight
told(DDP(inner, delay_all_reduce_named_params=[("0.weight", first)], param_to_hook_all_reduce=second))
print("== ignored")
inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
DDP._set_params_and_buffers_to_ignore_for_model(inner, ["1.bias"])
told(DDP(inner))
print("== join")
model = DDP(nn.Linear(2, 2))
with model.join():
    told(model)
print("== unused")
model = DDP(nn.Linear(2, 2), find_unused_parameters=True)
told(model)
print("note:", *notes(model))
print("== optimizer")
from torch.distributed.optim import ZeroRedundancyOptimizer
model = DDP(nn.Linear(2, 2))
told(model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=optim.SGD, lr=0.1))
print("== sparse")
told(DDP(nn.Embedding(4, 2, sparse=True)))
print("== complex")
told(DDP(nn.Linear(2, 2, dtype=torch.complex64)))
print("== frozen integers")
inner = nn.Linear(2, 2)
inner.register_parameter("codes", nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False))
told(DDP(inner))
print("== group")
groups = [dist.new_group([place]) for place in range(size)]
told(DDP(nn.Linear(2, 2), process_group=groups[rank]))
print("== whole group")
told(DDP(nn.Linear(2, 2), process_group=dist.new_group([0, 1])))
print("== several")
told(DDP(nn.Linear(2, 2)), seen=Seen(models=2))
print("== mesh")
told(DDP(nn.Linear(2, 2)), seen=Seen(mesh_dimensions=("dp", "tp", "pp")))
print("== in backward")
from torch.distributed.optim import _apply_optimizer_in_backward
inner = nn.Linear(2, 2)
_apply_optimizer_in_backward(optim.SGD, inner.parameters(), {"lr": 0.1})
told(DDP(inner))
print("== python reducer")
import torch._dynamo
with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
    told(DDP(nn.Linear(2, 2)))
print("== habits")
steps = dict(steps=10, synchronisations=40, steps_with_collectives=9, collectives={"barrier": 1, "all_reduce": 9})
told(DDP(nn.Linear(2, 2)), seen=Seen(batches="no batches.", updating="no updates.", **steps))
print("== first steps unseen")
told(DDP(nn.Linear(2, 2)), seen=Seen(steps=8, synchronisations=11))
print("== fsdp2")
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("copies", "shards"))
told(fully_shard(nn.Linear(2, 2), mesh=mesh["shards"]))
print("== hsdp")
told(fully_shard(nn.Linear(2, 2), mesh=mesh))
print("== fsdp1")
told(FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu")))
"""


@pytest.fixture(scope="module")
def told():
    """What is told of each case."""
    cases, name = {}, "plain"
    for line in ranks(DDP_CASES):
        if line.startswith("== "):
            name = line[3:]
        else:
            cases.setdefault(name, []).append(line)
    return cases


@pytest.mark.parametrize("case", ["plain", "frozen integers", "whole group"])
def test_a_usual_model_is_not_refused(told, case):
    assert case not in told


def test_find_unused_parameters_is_noted(told):
    assert len(told["unused"]) == 1
    assert told["unused"][0].startswith("note: find_unused_parameters is on")


@pytest.mark.parametrize(
    ("case", "pattern"),
    [
        ("sync bn", r"SyncBatchNorm \(1\) waits for all ranks .* use BatchNorm"),
        ("python hook", "communication hook fp16_compress_hook"),
        ("power", "communication hook powerSGD_hook"),
        ("built-in hook", r"communication hook BuiltinCommHookType\.FP16_COMPRESS"),
        ("delayed", "delay_all_reduce_named_params reduces"),
        ("ignored", r"ignores 1 parameters or buffers \(first: 1\.bias\)"),
        ("join", "in a Join context"),
        ("optimizer", "ZeroRedundancyOptimizer calls collectives"),
        ("sparse", "Embedding has sparse gradients; make it with sparse=False"),
        ("complex", r"parameter weight is torch\.complex64"),
        ("group", "a process group that is not the whole world"),
        ("several", "2 DistributedDataParallel modules"),
        ("mesh", "device mesh with 'tp', 'pp'"),
        ("in backward", "steps inside of the backward pass"),
        ("python reducer", "uses its Python reducer"),
        ("fsdp2", "DTensors over mesh dimensions 'shards': only resource actions"),
        ("fsdp1", "in FSDP, where every rank owns a part of each parameter: only resource actions"),
        ("hsdp", r"copies along mesh dimension 'copies' \(HSDP\): only resource actions"),
    ],
)
def test_what_is_refused(told, case, pattern):
    assert len(told[case]) == 1
    assert re.search(pattern, told[case][0])


def test_habits_of_the_loop(told):
    batches, updating, syncs, collectives = told["habits"]
    assert (batches, updating) == ("no batches.", "no updates.")
    assert "reduced 4.0 times per optimizer step" in syncs
    assert "calls all_reduce in most steps" in collectives


def test_one_rank_has_nobody_to_wait_for():
    assert ranks("told(DDP(nn.Linear(2, 2)))", size=1) == ["there is one rank only: nobody to wait for"]


def test_a_model_without_ddp():
    (reason,) = reasons(nn.Linear(2, 2), [], Seen())
    assert "isn't in DistributedDataParallel" in reason


OWN = """
from torch.distributed import all_reduce as imported_before
calls = []
own = UserCollectives(Guard(), calls.append)
original = dist.all_gather_object
own.install()
x = torch.ones(2)
alone = [dist.new_group([place]) for place in range(size)][rank]
print(own.take())
model = DDP(nn.Linear(2, 2))
for _ in range(3):
    model(torch.randn(4, 2)).sum().backward()
print(own.take())
dist.all_reduce(x)
imported_before(x)
dist.all_gather_object([None] * size, "text")
dist.barrier(group=dist.group.WORLD)
dist.all_reduce(x, dist.ReduceOp.SUM, alone)
with own.ours():
    dist.barrier()
thread = threading.Thread(target=dist.barrier)
thread.start()
thread.join()
from torch.distributed._functional_collectives import all_reduce
all_reduce(x, "sum", list(range(size))).sum().item()
if rank == 0:
    dist.send(x, 1)
else:
    dist.recv(x, 0)
print(own.take())
print(calls[-6:])
own.restore()
dist.barrier()
print(own.take(), dist.all_gather_object is original)
"""


def test_the_users_own_collectives_are_counted_and_nothing_else():
    groups, native, own, calls, after = ranks(OWN)
    assert groups == "{'new_group': 2}"
    assert native == "{}"
    assert own == "{'all_reduce': 3, 'all_gather_object': 1, 'barrier': 1, 'send': 1}"
    assert calls == "['all_reduce', 'all_reduce', 'all_gather_object', 'barrier', 'all_reduce', 'send']"
    assert after == "{} True"


FREQUENT = """
seen, own = Seen(counted_together=sys.argv[2] == "together"), UserCollectives(Guard(), lambda name: None)
own.install()
model = DDP(nn.Linear(2, 2))
optimizer = optim.SGD(model.parameters(), lr=0.1)
own.take()
for step in range(16):
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    if step % int(sys.argv[1]) == 0:
        dist.all_reduce(torch.ones(()))
    called = own.take()
    seen.steps += 1
    seen.synchronisations += 1
    seen.steps_with_collectives += bool(called)
    for name, count in called.items():
        seen.collectives[name] = seen.collectives.get(name, 0) + count
told(model, optimizer, seen=seen)
"""


@pytest.mark.parametrize(
    ("every", "counted", "refused"),
    [
        (1, "together", ["calls all_reduce in most steps"]),
        (1, "alone", ["calls all_reduce in most steps"]),
        (4, "alone", ["calls all_reduce by a count of its own"]),
        (4, "together", []),
    ],
)
def test_collectives_in_most_steps_are_refused_and_others_where_each_rank_counts_alone(every, counted, refused):
    told = ranks(FREQUENT.replace("int(sys.argv[1])", str(every)).replace("sys.argv[2]", repr(counted)))
    assert len(told) == len(refused)
    assert all(part in line for part, line in zip(refused, told, strict=True))


def test_steps_that_were_not_seen_yet_are_no_habit(told):
    assert "first steps unseen" not in told


def test_habits_are_not_judged_by_the_first_steps():
    seen = Seen(steps=NATIVE_STEPS - 1, synchronisations=99)
    assert not any("reduced" in reason for reason in reasons(nn.Linear(2, 2), [], seen))
