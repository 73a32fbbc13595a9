"""The state that a rank takes from another one: everything that its updates depend on, in the types it had."""

import torch
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel

from starprof.control.engine.state import State, kind_of


class Master(torch.optim.Optimizer):
    """Keeps a float32 copy of every parameter, as optimizers for half precision do."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["master"], state["steps"] = parameter.float(), 0
                state["master"] -= group["lr"] * parameter.grad.float()
                state["steps"] += 1
                parameter.copy_(state["master"])


def trained(seed, steps):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).bfloat16()
    optimizer = Master(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4).bfloat16()).square().mean().backward()
        optimizer.step()
    return model, optimizer


def test_state_keeps_the_type_that_it_had():
    giver, takes = trained(0, 5), trained(1, 2)
    State(takes[0], [takes[1]]).load(bytearray(State(giver[0], [giver[1]]).save()))
    for mine, theirs in zip(takes[0].parameters(), giver[0].parameters(), strict=True):
        assert torch.equal(mine, theirs)
        state, original = takes[1].state[mine], giver[1].state[theirs]
        assert state["steps"] == original["steps"]
        assert state["master"].dtype == torch.float32
        assert torch.equal(state["master"], original["master"])
    for mine, theirs in zip(takes[0].buffers(), giver[0].buffers(), strict=True):
        assert torch.equal(mine, theirs)


def test_an_average_that_only_the_giver_has_used_so_far_is_told_and_nothing_else_is_missed():
    giver, takes = trained(0, 5), trained(1, 2)
    average, theirs, mine = AveragedModel(giver[0]), StepLR(giver[1], 7), StepLR(takes[1], 9)
    average.update_parameters(giver[0])
    saved = State(giver[0], [giver[1]], [average, theirs]).save()
    ((kind, state),) = State(takes[0], [takes[1]], [mine]).load(bytearray(saved))
    assert mine.step_size == 7
    late = AveragedModel(takes[0])
    assert kind == kind_of(late)
    late.load_state_dict(state)
    assert int(late.n_averaged) == 1


def test_an_average_that_only_the_taker_has_used_so_far_stays_as_it_is():
    giver, takes = trained(0, 5), trained(1, 2)
    average = AveragedModel(takes[0])
    average.update_parameters(takes[0])
    assert State(takes[0], [takes[1]], [average]).load(bytearray(State(giver[0], [giver[1]]).save())) == []
    assert int(average.n_averaged) == 1
