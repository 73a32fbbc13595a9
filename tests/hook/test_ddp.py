"""DDP jobs of real gloo processes: who arrives late, who waits."""

from statistics import median

import pytest
from hook_job import Job

from starprof.model.schema import STEP_SPANS

DELAY_US = 200_000

SETUP = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()

class Sleepy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, grad):
        if rank == 1:
            time.sleep(0.2)
        return grad

class Net(nn.Module):
    def __init__(self, slow=None, layers=6, width=600):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.slow = slow
    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i == self.slow:
                x = Sleepy.apply(x)
            x = x.relu()
        return x

def done():
    print("DONE", flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""

SLOW_BACKWARD = (
    SETUP
    + """
model = DDP(Net(slow=int(sys.argv[1])), bucket_cap_mb=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(8):
    model(torch.randn(8, 600)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
done()
"""
)


@pytest.mark.parametrize("layer", [0, 5], ids=["first layer", "last layer"])
def test_a_rank_that_is_slow_inside_its_backward_pass_arrives_late_and_the_others_wait(job, layer):
    ranks = job.ranks(SLOW_BACKWARD, 2, layer).ranks
    victim, culprit = ranks[0], ranks[1]

    def middle(rank, column):
        return median(rank.column(column, since=1))

    assert middle(culprit, "arrival_us") > DELAY_US > 3 * middle(victim, "arrival_us")
    assert middle(victim, "blocked_us") > 0.9 * DELAY_US
    assert middle(culprit, "blocked_us") < 0.2 * DELAY_US
    assert middle(culprit, "backward_us") - middle(victim, "backward_us") == pytest.approx(DELAY_US, rel=0.2)
    # Their steps take equally long: step time names nobody.
    assert sum(culprit.column("dur_us", since=1)) == pytest.approx(sum(victim.column("dur_us", since=1)), rel=0.1)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return (
        Job(tmp_path_factory.mktemp("healthy"))
        .ranks(
            SETUP
            + """
from torch.utils.data import DataLoader, TensorDataset
model = DDP(Net(width=300, layers=10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (x,) in DataLoader(TensorDataset(torch.randn(80, 300)), batch_size=8):
    model(x).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
done()
""",
            2,
        )
        .ranks
    )


def test_every_step_of_every_rank_is_recorded_and_its_spans_add_up(healthy):
    for rank in healthy.values():
        assert rank.column("step") == list(range(10))
        for step in rank.steps:
            assert sum(step[c] for c in STEP_SPANS) == step["dur_us"]
            assert step["samples"] == 8
            assert step["tokens"] is None
            assert step["micro_batches"] == 1
            assert 0 < step["forward_us"] < step["dur_us"]
            assert 0 < step["arrival_us"] <= step["dur_us"]


def test_a_step_begins_where_the_one_before_ends(healthy):
    for rank in healthy.values():
        for step, following in zip(rank.steps, rank.steps[1:], strict=False):
            assert (following["start_mono_ns"] - step["start_mono_ns"]) // 1000 == step["dur_us"]


def test_the_first_bucket_is_ready_before_the_last_gradient(healthy):
    learned = [s for s in healthy[0].steps if s["first_bucket_us"] is not None]
    assert len(learned) >= 5
    assert all(s["first_bucket_us"] < s["arrival_us"] for s in learned)


def test_the_ring_says_who_the_rank_is(healthy):
    description = healthy[1].description
    assert description["rank"] == description["local_rank"] == description["role_dp"] == 1
    assert (description["world_size"], description["backend"]) == (2, "gloo")
    assert (description["framework"], description["device"], description["gpu_uuid"]) == ("ddp", "cpu", None)
    assert description["detail"]["parameters"] == 10 * 300 * 301
    assert description["detail"]["timeout_s"] > 0
    assert description["cpus"]


def test_start_first_step_and_exit_are_events(healthy):
    for rank in healthy.values():
        assert rank.event("rank-start")[2] == rank.description["pid"]
        assert rank.event("first-step")[2] > 0
        assert rank.event("rank-exit")[3] == "exit"


def test_accumulated_micro_batches_wait_only_at_the_last(job):
    ranks = job.ranks(
        SETUP
        + """
import contextlib
model = DDP(Net(slow=3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    for micro in range(3):
        with contextlib.nullcontext() if micro == 2 else model.no_sync():
            model(torch.randn(8, 600)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
done()
""",
        2,
    ).ranks
    assert set(ranks[0].column("micro_batches")) == {3}
    assert median(ranks[1].column("backward_us", since=1)) > 3 * DELAY_US
    assert median(ranks[1].column("blocked_us", since=1)) < 0.3 * DELAY_US
    assert median(ranks[0].column("blocked_us", since=1)) == pytest.approx(3 * DELAY_US, rel=0.15)


def test_broadcasting_buffers_is_waiting_for_rank_0(job):
    ranks = job.ranks(
        SETUP
        + """
model = DDP(nn.Sequential(nn.Linear(20, 20), nn.BatchNorm1d(20)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5):
    if rank == 0:
        time.sleep(0.1)
    model(torch.randn(8, 20)).pow(2).mean().backward()
    optimizer.step()
done()
""",
        2,
    ).ranks
    assert median(ranks[1].column("forward_us")) < 50_000
    assert median(ranks[1].column("blocked_us")) > 80_000


def test_two_models_with_two_optimizers_make_one_step_and_both_arrivals_count(job):
    ranks = job.ranks(
        SETUP
        + """
def made():
    model = DDP(Net(slow=1, layers=3, width=50))
    return model, torch.optim.Adam(model.parameters())
(first, first_optimizer), (second, second_optimizer) = made(), made()
for _ in range(6):
    x = torch.randn(4, 50)
    for model, optimizer in ((first, first_optimizer), (second, second_optimizer)):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
done()
""",
        2,
    ).ranks
    for rank in ranks.values():
        assert rank.column("step") == list(range(6))
        assert rank.column("micro_batches", since=1) == [2] * 5
        assert rank.description["detail"]["optimizers"] == 2
        assert rank.description["detail"]["momentum"] == 0.9
    assert median(ranks[1].column("backward_us", since=1)) == pytest.approx(2 * DELAY_US, rel=0.15)
    assert median(ranks[0].column("blocked_us", since=1)) == pytest.approx(2 * DELAY_US, rel=0.15)


def test_one_loss_over_two_models_arrives_with_the_last_of_both(job):
    ranks = job.ranks(
        SETUP
        + """
encoder, decoder = DDP(Net(slow=0, layers=3, width=50)), DDP(Net(layers=3, width=50))
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.01)
for _ in range(6):
    decoder(encoder(torch.randn(4, 50))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
done()
""",
        2,
    ).ranks
    assert median(ranks[1].column("backward_us", since=1)) > 0.95 * DELAY_US
    assert median(ranks[0].column("blocked_us", since=1)) > 0.9 * DELAY_US


def test_activation_checkpointing_recomputes_inside_the_backward_pass(job):
    ranks = job.ranks(
        SETUP
        + """
from torch.utils.checkpoint import checkpoint
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Net(slow=0, layers=3, width=50)
    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=sys.argv[1] == "reentrant")
model = DDP(Checkpointed(), static_graph=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    model(torch.randn(4, 50, requires_grad=True)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
done()
""",
        2,
        "reentrant",
    ).ranks
    assert set(ranks[0].column("micro_batches")) == {1}
    assert median(ranks[1].column("backward_us", since=1)) > 0.95 * DELAY_US
    assert median(ranks[0].column("blocked_us", since=1)) > 0.9 * DELAY_US
