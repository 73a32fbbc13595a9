"""Children and their parent over real connections; what reaches the server, alone or in sums, is only remembered."""

import signal
import subprocess
import sys
import threading

import pytest
import torch

from starprof.control.engine.peers import bytes_of
from starprof.ps.tree import Child, Parent
from starprof.sync.policies import Gradient

SECRET = b"of this test"
SIZE = 1000
WAIT_S = 60.0


def numbers(value):
    return torch.full((SIZE,), float(value))


class Job:
    """One parent, rank 0, and children in threads; what reaches the server, by itself or in sums."""

    def __init__(self, children):
        self.parent = Parent(SECRET, SIZE)
        self.parent.expect(children)
        self.children = {rank: Child(rank, SECRET) for rank in children}
        self.alone = []
        self.lock = threading.Lock()
        for child in self.children.values():
            child.follow(self.parent.address)

    def child_step(self, rank, version):
        gradient, flat = Gradient(rank, version, version), numbers(10**rank)
        if not self.children[rank].hand_in(gradient, bytes_of(flat), WAIT_S):
            with self.lock:
                self.alone.append(gradient)

    def start(self, rank, version):
        thread = threading.Thread(target=self.child_step, args=(rank, version))
        thread.start()
        return thread

    def step(self, version, ranks=None):
        """One step of all; the sum, and who is in it."""
        running = [self.start(rank, version) for rank in (self.children if ranks is None else ranks)]
        total = numbers(1)
        inside = self.parent.collect(version, total, WAIT_S)
        self.parent.sent()
        for thread in running:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        return float(total[0]), inside

    def close(self):
        for child in self.children.values():
            child.close()
        self.parent.close()


@pytest.fixture
def job():
    job = Job([1, 2, 3])
    yield job
    job.close()


def meet(job):
    """All children are connected: what they handed in before the parent knew them was sent by themselves."""
    version = 0
    while True:
        before = len(job.alone)
        total, inside = job.step(version)
        version += 1
        if len(inside) == len(job.children):
            return version
        assert len(job.alone) == before + len(job.children) - len(inside)
        assert total == 1 + sum(10**g.worker for g in inside)


def test_every_gradient_is_in_one_sum_or_sent_alone_and_never_both(job):
    begin = meet(job)
    for version in range(begin, begin + 10):
        job.alone.clear()
        total, inside = job.step(version)
        assert sorted(g.worker for g in (*inside, *job.alone)) == [1, 2, 3]
        assert total == 1 + sum(10**g.worker for g in inside)
        assert all(g.version == version for g in inside)
        assert [g.worker for g in inside] == sorted(g.worker for g in inside)


def test_a_switch_while_it_runs_sends_a_child_back_to_sending_alone_and_again_into_the_sum(job):
    version = meet(job)
    job.parent.expect([1, 3])
    job.alone.clear()
    assert [g.worker for g in job.step(version)[1]] == [1, 3]
    assert [g.worker for g in job.alone] == [2]
    job.parent.expect([1, 2, 3])
    assert [g.worker for g in job.step(version + 1)[1]] == [1, 2, 3]
    job.children[1].follow(None)
    job.alone.clear()
    assert [g.worker for g in job.step(version + 2)[1]] == [2, 3]
    assert [g.worker for g in job.alone] == [1]


def test_a_late_child_is_not_waited_for_beyond_the_limit_and_sends_alone(job):
    version = meet(job)
    job.alone.clear()
    total = numbers(1)
    assert job.parent.collect(version, total, 0.0) == ()
    job.parent.sent()
    late = [job.start(rank, version) for rank in (1, 2, 3)]
    for thread in late:
        thread.join(WAIT_S)
    assert sorted(g.worker for g in job.alone) == [1, 2, 3]
    assert job.parent.refused >= 3
    assert total.eq(1).all()


def test_a_sum_that_does_not_arrive_is_sent_in_parts_by_its_children(job):
    version = meet(job)
    job.alone.clear()
    running = [job.start(rank, version) for rank in (1, 2, 3)]
    inside = job.parent.collect(version, numbers(1), WAIT_S)
    job.parent.failed()
    for thread in running:
        thread.join(WAIT_S)
    assert sorted(job.alone, key=lambda g: g.worker) == list(inside)
    assert len(inside) == 3


def test_a_gradient_of_other_parameters_gets_into_no_sum(job):
    version = meet(job)
    job.alone.clear()
    old = job.start(2, version - 1)
    old.join(WAIT_S)
    assert [(g.worker, g.version) for g in job.alone] == [(2, version - 1)]
    assert len(job.step(version)[1]) == 3


def test_a_child_that_dies_is_not_waited_for(job):
    version = meet(job)
    job.children[3].close()
    total, inside = job.step(version, [1, 2])
    assert [g.worker for g in inside] == [1, 2]
    assert total == 111


def test_strangers_and_wrong_sizes_get_into_no_sum(job):
    version = meet(job)
    stranger = Child(2, b"another secret")
    stranger.follow(job.parent.address)
    assert not stranger.hand_in(Gradient(2, 0, version), bytes_of(numbers(5)), WAIT_S)
    for rank, size in ((4, SIZE), (5, SIZE - 1)):
        other = Child(rank, SECRET)
        other.follow(job.parent.address)
        flat = torch.ones(size)
        assert not other.hand_in(Gradient(rank, 0, -1), bytes_of(flat), WAIT_S)
        other.close()
    assert job.step(version)[0] == 1111


PARENT = """
import sys, torch
from starprof.ps.tree import Parent
parent = Parent(b"of this test", 1000)
parent.expect([1])
print(parent.address[1], flush=True)
sys.stdin.read()
"""


def test_a_parent_that_is_killed_leaves_its_child_to_send_alone():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            child = Child(1, SECRET)
            child.follow(("127.0.0.1", int(process.stdout.readline())))
            said = []
            flat = numbers(1)
            thread = threading.Thread(
                target=lambda: said.append(child.hand_in(Gradient(1, 0, 0), bytes_of(flat), WAIT_S))
            )
            thread.start()
            process.send_signal(signal.SIGKILL)
            thread.join(WAIT_S)
            assert said == [False]
            assert not child.hand_in(Gradient(1, 1, 1), bytes_of(flat), WAIT_S)
        finally:
            process.kill()
