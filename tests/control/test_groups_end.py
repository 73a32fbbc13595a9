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
