"""Beside the recorder, whose wrappers sit on the same methods of torch's data loaders."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "hook"))
from hook_job import Job

TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from starprof.control.engine.batches import Batches
from starprof.hook.boundary import Guard
from starprof.hook import install

torch.set_num_threads(1)
recorder = {recorder_first} and install.install()
batches, guard = Batches(), Guard()
batches.install(guard)
recorder = recorder or install.install()
model = nn.Linear(1, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
for epoch in range(2):
    for batch in DataLoader(torch.arange(20.0), batch_size=2, num_workers={workers}):
        seen.append(int(batch[0]) // 2)
        model(batch[:, None]).sum().backward()
        batches.mark_sync()
        batches.skip(2 if batches.executed == 4 else 0)
        optimizer.step()
print(seen)
assert guard.errors == recorder.hook.guard.errors == 0
assert batches.epoch == 2
"""


@pytest.mark.alone
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("recorder_first", [True, False])
def test_either_may_come_first(tmp_path, recorder_first, workers):
    job = Job(tmp_path)
    script = TRAIN.format(recorder_first=recorder_first, workers=workers)
    kept = {"PYTHONPATH": str(Path(__file__).parents[2])}  # not injected: here the script decides on the order
    done = job.python(script, **kept)
    first = [0, 1, 2, 3, 4, 5, 8, 9] if workers else [0, 1, 2, 3, 6, 7, 8, 9]
    assert done.stdout.strip() == str(first + list(range(10)))
    assert len(done.only.steps) == 18
    assert done.only.column("samples", since=1) == [2] * 17
    assert all(wait > 0 for wait in done.only.column("data_wait_us", since=1))
