"""`faulty.py SCRIPT ARGS...`: start a training script with a fault in it; the demo's faults, and more for the tests."""

import gc
import os
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from starprof.demo import faults

QUOTA_PERIOD_US = 100_000


def optimizer(inject):
    """The optimizer's own step is slow on one rank."""
    original = torch.optim.SGD.step

    def step(self, *args, **kwargs):
        inject.delay()
        return original(self, *args, **kwargs)

    torch.optim.SGD.step = step


def forward(inject):
    """A layer's forward is slow."""
    original = torch.nn.Linear.forward

    def slow(self, x):
        if self.out_features == 10 and self.training:
            inject.delay()
        return original(self, x)

    torch.nn.Linear.forward = slow


def everything(inject):
    """Reading, forward, backward and optimizer all take longer, a quarter of the delay each."""
    for kind in (faults.loader, forward, faults.backward, optimizer):
        kind(inject)


def collector(inject):
    """The rank holds so many objects that a full garbage collection takes long, and one runs every few steps."""
    heap = [[i] for i in range(2_000_000)] if inject.guilty else []

    def collect(*_):
        assert heap  # keep it
        if inject.due:
            with inject.timed():
                gc.collect()

    if inject.guilty:
        register_optimizer_step_post_hook(collect)


def quota(inject):
    """From the fault's step on, the rank's control group has a CPU quota (cgroup v1)."""
    if not inject.guilty:
        return
    group = Path(os.environ["TEST_CGROUP"])
    (group / "cgroup.procs").write_text(str(os.getpid()))
    before_step(inject, lambda: (group / "cpu.cfs_quota_us").write_text(os.environ["TEST_QUOTA_US"]))


def affinity(inject):
    """From the fault's step on, all threads of the rank share one core."""

    def collapse():
        core = max(os.sched_getaffinity(0))
        for task in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})

    if inject.guilty:
        before_step(inject, collapse)


def before_step(inject, function):
    """Call the function once, when the step before the fault's first has ended."""

    def after_step(*_):
        if inject.step + 1 == inject.fault.step:
            function()

    register_optimizer_step_post_hook(after_step)


KINDS = {
    **faults.KINDS,
    "optimizer": optimizer,
    "forward": forward,
    "everything": everything,
    "gc": collector,
    "quota": quota,
    "affinity": affinity,
}

if __name__ == "__main__":
    faults.main(KINDS)
