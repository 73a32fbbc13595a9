"""States of ranks that step on their own: what is averaged, what is one rank's, and what some have not begun."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from starprof.control.engine.flat import Flat
from starprof.control.engine.states import States


class Loop:
    def __init__(self, optimizers, others=()):
        self.optimizers, self.others = optimizers, list(others)


def rank(make, steps, used=slice(None), average=False, scaler=False):
    """A rank that has made so many steps; all are equal before the first three are over."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = make(model.parameters())
    averaged = AveragedModel(model) if average else None
    scale = torch.amp.GradScaler("cpu", init_scale=64.0) if scaler else None
    loop = Loop([optimizer], [other for other in (averaged, scale) if other is not None])
    if scale is not None:
        scale.scale(torch.zeros(()))
    begun = list(model.parameters())[used]

    def step(parameters):
        for place, parameter in enumerate(model.parameters()):
            there = any(parameter is p for p in parameters)
            parameter.grad = torch.full_like(parameter, 0.1 * (place + 1)) if there else None
        optimizer.step()
        if averaged is not None:
            averaged.update_parameters(model)

    for _ in range(3):
        step(begun)
    states = States(model, loop)
    for _ in range(steps):
        step(list(model.parameters()))
    return model, optimizer, loop, states


def averaged(ranks, reference=0):
    """As a round does it: weighted sum, settings of one contributor."""
    total = None
    for place, (_, _, _, states) in enumerate(ranks):
        flat, part = Flat(states.layout), Flat(states.layout)
        exact = states.collect(flat)
        part.take(flat, 1.0 / len(ranks))
        if place == reference:
            part.settings = exact
        total = part.tensor.clone() if total is None else total + part.tensor
    for _, _, _, states in ranks:
        flat = Flat(states.layout)
        flat.tensor.copy_(total)
        states.put(flat)


def values(ranks):
    return [(list(model.parameters()), optimizer.state_dict()["state"]) for model, optimizer, _, _ in ranks]


MAKERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "plain sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_all_ranks_have_the_same_bits_and_moments_are_means(make):
    ranks = [rank(make, steps) for steps in (1, 4, 2)]
    before = values(ranks)
    expected = torch.stack([parameters[0].detach() for parameters, _ in before]).mean(0)
    steps = [state[0].get("step") for _, state in before if state]
    averaged(ranks, reference=1)
    after = values(ranks)
    for parameters, state in after[1:]:
        assert all(torch.equal(a, b) for a, b in zip(parameters, after[0][0], strict=True))
        assert state.keys() == after[0][1].keys()
        for place in state:
            for key, value in state[place].items():
                other = after[0][1][place][key]
                assert torch.equal(value, other) if torch.is_tensor(value) else value == other, key
    torch.testing.assert_close(after[0][0][0].detach(), expected)
    if steps and steps[1] is not None:
        assert after[0][1][0]["step"] == steps[1], "a count of steps has no mean"


def test_a_parameter_that_some_have_not_used_yet_gets_the_state_of_those_who_have():
    make = MAKERS["adamw"]
    ranks = [rank(make, 0, used=slice(0, 2)), rank(make, 2, used=slice(0, 2))]
    assert [len(optimizer.state) for _, optimizer, _, _ in ranks] == [2, 4]
    there = ranks[1][1].state[list(ranks[1][0].parameters())[3]]["exp_avg"].clone()
    averaged(ranks, reference=1)
    for model, optimizer, _, _ in ranks:
        state = optimizer.state[list(model.parameters())[3]]
        torch.testing.assert_close(state["exp_avg"], there / 2)
        assert state["step"] == 2


def test_what_nobody_has_begun_stays_so():
    ranks = [rank(MAKERS["adamw"], 0, used=slice(0, 2)) for _ in range(2)]
    averaged(ranks)
    assert [len(optimizer.state) for _, optimizer, _, _ in ranks] == [2, 2]


def test_averaged_models_go_along_and_the_scale_of_the_loss_is_one_rank_s():
    ranks = [rank(MAKERS["sgd"], steps, average=True, scaler=True) for steps in (1, 3)]
    models = [loop.others[0] for _, _, loop, _ in ranks]
    expected = torch.stack([next(iter(model.parameters())).detach() for model in models]).mean(0)
    ranks[1][2].others[1].load_state_dict({**ranks[1][2].others[1].state_dict(), "scale": 32.0, "_growth_tracker": 5})
    averaged(ranks, reference=1)
    for model in models:
        torch.testing.assert_close(next(iter(model.parameters())).detach(), expected)
        assert int(model.n_averaged) == 6
    assert {loop.others[1].get_scale() for _, _, loop, _ in ranks} == {32.0}
    assert {loop.others[1].state_dict()["_growth_tracker"] for _, _, loop, _ in ranks} == {5}


def test_half_precision_is_averaged_in_single_precision():
    ranks = []
    for value in (1.0, 1.0078125, 1.015625):
        model = nn.Linear(2, 2).to(torch.bfloat16)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ranks.append((model, optimizer, None, States(model, Loop([optimizer]))))
    averaged(ranks)
    assert {float(p.detach().flatten()[0]) for model, _, _, _ in ranks for p in model.parameters()} == {1.0078125}


def test_running_statistics_are_averaged_and_constants_stay_as_they_are():
    ranks = []
    for value in (1.0, 2.0, 6.0):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model.register_buffer("constant", torch.full((3,), 0.1 * value))
        model(torch.full((4, 2), value))
        with torch.no_grad():
            model[1].running_mean.fill_(value)
            model[1].num_batches_tracked.fill_(int(value))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ranks.append((model, optimizer, None, States(model, Loop([optimizer]))))
    variances = torch.stack([model[1].running_var for model, *_ in ranks]).mean(0)
    averaged(ranks, reference=1)
    for model, *_ in ranks:
        torch.testing.assert_close(model[1].running_mean, torch.full((2,), 3.0))
        torch.testing.assert_close(model[1].running_var, variances)
        assert torch.equal(model[1].running_var, ranks[0][0][1].running_var)
        assert int(model[1].num_batches_tracked) == 2
    assert [round(float(model.constant[0]), 6) for model, *_ in ranks] == [0.1, 0.2, 0.6]
