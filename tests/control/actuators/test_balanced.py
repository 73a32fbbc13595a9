"""Samples divided by speed: each is seen once, and the mean over all of them stays exact."""

import json

import pytest
import torch
from actuators_lab import until
from torch import nn

from starprof.control.actuators.change import RefusedError
from starprof.control.actuators.resplit import parts_by_speed


def drawn(job):
    """(epoch, batch in it) -> samples and gradient of each rank."""
    found = {}
    for rank in range(2):
        at = {}
        for line in (job.folder / f"seen{rank}.txt").read_text().splitlines():
            epoch, numbers, gradient = json.loads(line)
            batch = at[epoch] = at.get(epoch, -1) + 1
            found.setdefault((epoch, batch), {})[rank] = numbers, gradient
    return found


def test_ranks_change_together_and_the_gradient_is_that_of_all_samples(running):
    job = running(arguments=("balanced",)).ready()
    job.act("resplit", "0=4,1=28")
    until(lambda: job.told(0).get("sizes") == [4, 28], "the division")
    until(lambda: job.told(1).get("sizes") == [4, 28], "the division")
    job.act("undo")
    until(lambda: job.told(0).get("sizes") == [16, 16], "equal parts again")
    (job.folder / "stop").touch()
    assert [process.wait(60) for process in job.ranks] == [0, 0]
    steps = drawn(job)
    torch.manual_seed(0)
    model = nn.Linear(20, 4)
    data = torch.randn(512, 20, generator=torch.Generator().manual_seed(3))
    divisions = set()
    for (epoch, batch), ranks in steps.items():
        assert len(ranks) == 2, (epoch, batch)
        numbers = ranks[0][0] + ranks[1][0]
        assert len(set(numbers)) == len(numbers) == 32, "each sample is one rank's"
        divisions.add((len(ranks[0][0]), len(ranks[1][0])))
        model.zero_grad()
        model(data[numbers]).square().mean().backward()
        exact = [p.grad.double().sum().item() for p in model.parameters()]
        for rank in range(2):
            assert ranks[rank][1] == pytest.approx(exact, rel=1e-4, abs=1e-6)
    assert divisions == {(16, 16), (4, 28)}


def test_parts_follow_the_samples_per_second_of_a_ranks_own_work():
    assert parts_by_speed({0: 0.03, 1: 0.01}, {0: 16, 1: 16}) == {0: 9, 1: 23}  # one is everybody's
    assert sum(parts_by_speed({0: 0.031, 1: 0.01, 2: 0.011}, {0: 16, 1: 16, 2: 16}).values()) == 48
    with pytest.raises(RefusedError, match="speeds are not known"):
        parts_by_speed({0: 0.03, 1: 0.01}, {0: 16, 1: 0})
