"""Jobs without DDP: plain all-reduce, FSDP2, and collectives of the user's own."""

from statistics import median

SETUP = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
def net():
    return nn.Sequential(nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 50))
def done():
    print("DONE", flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""
DELAY_US = 100_000
SAVE_US = 500_000


def test_a_plain_all_reduce_loop_blocks_in_its_collectives(job):
    ranks = job.ranks(
        SETUP
        + """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    model(torch.randn(4, 50)).sum().backward()
    if rank == 1:
        time.sleep(0.1)
    works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    for work in works:
        work.wait()
    optimizer.step()
    optimizer.zero_grad()
done()
""",
        2,
    ).ranks
    for rank in ranks.values():
        assert rank.column("step") == list(range(6))
        assert set(rank.column("collectives")) == {6}
        assert rank.description["framework"] == "collectives"
    assert median(ranks[0].column("blocked_us", since=1)) > 0.8 * DELAY_US
    assert median(ranks[1].column("blocked_us", since=1)) < 0.3 * DELAY_US
    # Ready to reduce is when the first reduction is called, not when the last gradient was there.
    assert median(ranks[1].column("arrival_us", since=1)) > DELAY_US
    assert median(ranks[0].column("arrival_us", since=1)) < 0.5 * DELAY_US


def test_fsdp2_blocks_in_its_collectives_and_has_no_arrival(job):
    ranks = job.ranks(
        SETUP
        + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp_shard",))
model = net()
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
class Sleepy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, grad):
        if rank == 1:
            time.sleep(0.1)
        return grad
for _ in range(6):
    Sleepy.apply(model(torch.randn(4, 50))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
done()
""",
        2,
    ).ranks
    for number, rank in ranks.items():
        assert rank.description["framework"] == "fsdp2"
        assert rank.description["role_dp"] == number
        assert set(rank.column("arrival_us", since=1)) == {None}
        assert min(rank.column("collectives", since=1)) > 0
    assert median(ranks[0].column("blocked_us", since=1)) > 0.8 * DELAY_US
    assert median(ranks[1].column("blocked_us", since=1)) < 0.3 * DELAY_US
    own = {n: median(r.column("backward_us", since=1)) for n, r in ranks.items()}
    assert own[1] - own[0] > 0.7 * DELAY_US


def test_a_barrier_while_rank_0_saves_is_waiting_for_the_others(job):
    ranks = job.ranks(
        SETUP
        + """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
import starprof
for step in range(6):
    model(torch.randn(4, 50)).sum().backward()
    optimizer.step()
    if step == 2:
        dist.barrier()
    if step == 3:
        if rank == 0:
            torch.save(model.state_dict(), "model.pt")
            with starprof.span("checkpoint"):
                time.sleep(0.5)
        dist.barrier()
done()
""",
        2,
    ).ranks
    # The barrier a step earlier has taken up how much later than rank 0 the other came out of its first steps.
    assert ranks[0].steps[4]["checkpoint_us"] > SAVE_US
    assert ranks[1].steps[4]["checkpoint_us"] == 0
    assert ranks[1].steps[4]["blocked_us"] > 0.6 * SAVE_US
    assert ranks[0].steps[4]["blocked_us"] < 0.3 * SAVE_US
