"""Collectives that a loop may call are found in its code: in its body and in what that calls, and nowhere else."""

import functools
import sys
import types

import torch
import torch.distributed as dist
from torch.distributed import all_reduce

from starprof.control.engine.loopscan import collective_in


class Fetched:
    """An iterator that looks at its loop, as a loader's would."""

    def __init__(self, items=2):
        self.items = items
        self.found = []

    def __iter__(self):
        return self

    def __next__(self):
        self.items -= 1
        if self.items < 0:
            raise StopIteration
        self.found.append(collective_in(sys._getframe(1)))
        return self.items


def log(values):
    if values > 100:
        report(values)


def report(values):
    dist.all_gather_object([], values)


class Trainer:
    def evaluate(self):
        if torch.rand(()) > 2:
            dist.barrier()

    def loop(self, fetched):
        for index in fetched:
            if index > 100:
                self.evaluate()


def test_a_loop_without_any():
    fetched = Fetched()
    for _ in fetched:
        torch.zeros(3).gather(0, torch.zeros(1, dtype=torch.long))
        functools.reduce(max, [1, 2])
    dist.is_available()
    assert fetched.found == [None, None]


def test_what_comes_after_the_loop_is_not_in_it():
    fetched = Fetched()
    for epoch in range(1):
        for index, _ in enumerate(fetched):
            assert index >= epoch
        if len(fetched.found) > 100:
            dist.barrier()
    assert fetched.found == [None, None]


def test_one_in_the_body_under_whatever_name():
    fetched = Fetched()
    for index in fetched:
        if index > 100:
            all_reduce(torch.zeros(1))
        if index > 200:
            dist.broadcast(torch.zeros(1), 0)
    assert fetched.found == ["all_reduce"] * 2


def test_one_in_a_function_that_the_body_calls():
    fetched = Fetched()
    for index in fetched:
        log(index)
    assert fetched.found == ["all_gather_object"] * 2


def test_one_in_a_method_of_the_loops_own_object():
    fetched = Fetched()
    Trainer().loop(fetched)
    assert fetched.found == ["barrier"] * 2


def test_a_name_that_others_have_too_counts_where_it_is_torch_s():
    fetched = Fetched()
    for index in fetched:
        if index > 100:
            dist.broadcast(torch.zeros(1), 0)
    assert fetched.found == ["broadcast"] * 2


def test_through_a_generator_of_the_users_and_a_lambda():
    fetched = Fetched()

    def prepared():
        for item in fetched:
            yield item + 1

    for index in prepared():
        later = lambda: dist.barrier()  # noqa: E731
        if index > 100:
            later()
    assert fetched.found == ["barrier"] * 2


def test_a_loop_that_asks_for_the_next_batch_itself():
    fetched = Fetched(3)
    while len(fetched.found) < 3:
        for _ in range(1):
            next(fetched)
        if len(fetched.found) > 100:
            dist.barrier()
    assert fetched.found == ["barrier"] * 3


def test_the_loop_of_a_library_is_not_known():
    fetched = Fetched()
    library = types.ModuleType("some_trainer")
    source = "def fit(fetched):\n    for _ in fetched:\n        pass\n"
    exec(compile(source, functools.__file__.replace("functools", "some_trainer"), "exec"), vars(library))
    library.fit(fetched)
    assert fetched.found == ["a collective inside some_trainer"] * 2
