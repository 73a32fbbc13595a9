"""Host-to-device copies; the device is torch's own "meta", which needs no hardware."""


def test_only_copies_from_the_host_to_the_device_count(job):
    rank = job.python(
        """
import time
import torch
from torch import nn
import starprof
from starprof.hook.install import install
from starprof.hook.patches.copies import wrap_copies
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
starprof.watch(model, optimizer)
original = torch.Tensor.to
def slow(self, *args, **kwargs):
    time.sleep(0.2)
    return original(self, *args, **kwargs)
torch.Tensor.to = slow
wrap_copies(install().hook, "meta")
x = torch.randn(2, 4)
def step(*copies):
    for copy in copies:
        copy()
    model(x).sum().backward()
    optimizer.step()
step()
step(lambda: x.to("meta"), lambda: x.to(device="meta"), lambda: x.to(torch.device("meta")))
step(lambda: x.to(torch.float64), lambda: x.to("cpu"), lambda: x.to(x))
meta = original(x, "meta")
step(lambda: x.to(meta), lambda: meta.to("meta"))
"""
    ).only
    assert [us // 200_000 for us in rank.column("h2d_us")] == [0, 3, 0, 1]
