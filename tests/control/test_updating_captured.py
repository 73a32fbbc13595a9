"""Calls that were described before are recognised, and only those."""

import torch
from torch import nn, optim

from starprof.control.engine.updating.operations import Captured, Kind, capture
from starprof.control.engine.updating.parts import Parts


def test_a_call_is_described_once_and_as_it_always_was():
    model = nn.Linear(2, 2)
    first, second = (optim.SGD([parameter], lr=0.1) for parameter in model.parameters())
    schedule = optim.lr_scheduler.StepLR(first, 10)
    parts = Parts(model, [first, second])
    captured = Captured(parts)
    calls = [(Kind.STEP, first), (Kind.STEP, second), (Kind.SCHEDULE, schedule)]
    seen = [captured.of(kind, (target,), {}) for kind, target in calls]
    assert seen == [capture(kind, (target,), {}, parts) for kind, target in calls]
    assert all(captured.of(kind, (target,), {}) is known for (kind, target), known in zip(calls, seen, strict=True))
    closure = captured.of(Kind.STEP, (first, torch.no_grad()), {})
    assert closure is not None
    assert closure.problem
    assert captured.of(Kind.STEP, (first,), {}) is seen[0]


def test_an_optimizer_is_known_once_it_is_one_of_the_models():
    model = nn.Linear(2, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    parts = Parts(model, [])
    captured = Captured(parts)
    assert captured.of(Kind.STEP, (optimizer,), {}) is None
    parts.add(optimizer)
    assert captured.of(Kind.STEP, (optimizer,), {}) is not None


def test_another_object_in_the_place_of_one_that_is_gone_is_not_taken_for_it():
    model = nn.Linear(2, 2)
    parts = Parts(model, [])
    captured = Captured(parts)
    for _ in range(50):
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        parts.add(optimizer)
        operation = captured.of(Kind.STEP, (optimizer,), {})
        assert operation is not None
        assert operation.of(optimizer)
        del optimizer, operation
