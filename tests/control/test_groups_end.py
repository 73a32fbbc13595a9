"""A process that ends right after a reduction ends as its script does: no thread of gloo's is on its way to Python."""

import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

from starprof.control.engine.groups import Groups

SCRIPT = """
import threading, time
import torch
import torch.distributed as dist
from starprof.control.engine.groups import Groups

store = dist.TCPStore("127.0.0.1", 0, 1, True)
groups = Groups(store, 0)
begun, tensor = threading.Event(), torch.ones(4)


def done(complete):
    begun.set()
    time.sleep(0.5)  # as on a machine that has other things to do


groups.reduce((0,), "first", 0, tensor, done)
assert begun.wait(20)
groups.settle()
print("over", flush=True)
"""


def test_the_end_of_a_process_waits_for_reductions():
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (0, "over\n"), result.stderr


def test_a_member_that_does_not_come_is_not_waited_for_at_the_end():
    """At this attempt it has a minute."""
    groups = Groups(dist.HashStore(), 0)
    ended, told = threading.Event(), []
    groups.reduce((0, 1), "first", 5, torch.ones(4), lambda complete: (told.append(complete), ended.set()))
    groups.settle(0.1)
    assert ended.wait(10)
    assert told == [False]
    deadline_s = time.monotonic() + 10
    while groups._queued and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not groups._queued, "its thread still makes the group"


def test_a_group_that_was_made_before_is_used():
    store, sums = dist.HashStore(), {}
    all_groups = [Groups(store, rank) for rank in range(2)]
    ended = threading.Barrier(3)

    def done(rank, tensor):
        return lambda complete: (sums.update({rank: (complete, tensor.tolist())}), ended.wait(30))

    for groups in all_groups:
        groups.prepare([(0, 1)])
    deadline_s = time.monotonic() + 30
    while any(groups._queued for groups in all_groups):
        assert time.monotonic() < deadline_s, "the group is not made"
        time.sleep(0.01)
    before = [groups._made[0, 1] for groups in all_groups]
    for rank, groups in enumerate(all_groups):
        tensor = torch.full((2,), rank + 1.0)
        groups.reduce((0, 1), "first", 0, tensor, done(rank, tensor))
    ended.wait(30)
    assert sums == {rank: (True, [3.0, 3.0]) for rank in range(2)}
    assert [groups._made[0, 1] for groups in all_groups] == before
    for groups in all_groups:
        groups.settle()
        groups.close()
