"""How a job synchronises by its own code: DDP, and what else a user may put in its place.

starprof's modes need nothing here: they are brought into jobs with plain DDP from outside.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from design import LIGHTHOUSE, PERIOD
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

SYNCHRONOUS_STEPS = 10
"""Before local steps begin; as many as starprof looks at a loop."""
BUCKET_MB = 0.01
"""A bucket for each layer: several, as any real model has."""


@dataclass
class Method:
    """What the loop calls.

    Attributes:
        model: to be trained.
        optimizer: to be called.
        scheduled: whose rates schedules change.
        end: called when all is over.
        updates: that the parameters have had, where a rank makes none itself; None: as many as it has made steps.
    """

    model: nn.Module
    optimizer: Any
    scheduled: Optimizer
    end: Callable[[], Any] = dist.destroy_process_group
    updates: Callable[[], int] | None = None


def ddp(net: nn.Module, optimizer: Optimizer) -> Method:
    """Every step waits for everybody."""
    return Method(DistributedDataParallel(net, bucket_cap_mb=BUCKET_MB), optimizer, optimizer)


def post_local_sgd(net: nn.Module, optimizer: Optimizer) -> Method:
    """torch's own: no reduction of gradients, the parameters are averaged every few steps."""
    model = DistributedDataParallel(net, bucket_cap_mb=BUCKET_MB)
    state = PostLocalSGDState(None, None, SYNCHRONOUS_STEPS, post_local_gradient_allreduce=False)
    model.register_comm_hook(state, post_localSGD_hook)
    averager = PeriodicModelAverager(period=PERIOD, warmup_steps=SYNCHRONOUS_STEPS)
    return Method(model, PostLocalSGDOptimizer(optim=optimizer, averager=averager), optimizer)


def torchft(net: nn.Module, optimizer: Optimizer) -> Method:
    """Fault-tolerant DDP: every rank is a replica group of its own, and all that are there make a step together."""
    import torchft as ft

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])

    manager = ft.Manager(
        pg=ft.ProcessGroupGloo(),
        load_state_dict=load,
        state_dict=lambda: {"net": net.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=dist.get_world_size() - 1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=os.environ[LIGHTHOUSE],
        replica_id=f"rank{dist.get_rank()}",
    )
    model = ft.DistributedDataParallel(manager, net, bucket_cap_mb=BUCKET_MB)

    def end() -> None:
        manager.shutdown(wait=False)
        dist.destroy_process_group()

    model.store = store  # the others meet there: it lives as long as the model
    return Method(model, ft.Optimizer(manager, optimizer), optimizer, end)


def parameter_server(net: nn.Module, optimizer: Optimizer) -> Method:
    """starprof's own parameter server, in SSGD."""
    import starprof.ps

    worker = starprof.ps.wrap(net, optimizer)

    def end() -> None:
        dist.barrier()
        worker.close()
        dist.destroy_process_group()

    return Method(net, optimizer, optimizer, end, lambda: worker.version)


METHODS: dict[str, Callable[[nn.Module, Optimizer], Method]] = {
    "ddp": ddp,
    "post-local-sgd": post_local_sgd,
    "torchft": torchft,
    "ps": parameter_server,
}
