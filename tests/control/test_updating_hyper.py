"""The hyper-parameters of an update: of the round that it belongs to, and of nothing else."""

import json

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as schedules
from updating_loop import gradients, loop_of

from starprof.control.engine.updating import same
from starprof.control.engine.updating.hyper import marks, snapshot


def test_the_updates_hyper_parameters_hold_for_that_update_only():
    seen = []

    def make(parameters):
        optimizer = optim.AdamW(parameters, lr=0.1)
        optimizer.register_step_pre_hook(lambda o, _a, _k: seen.append((o.param_groups[0]["lr"], o.defaults["lr"])))
        return optimizer

    with loop_of(lambda _m, o, _i: o.step(), make=make) as loop:
        for _ in range(5):
            loop.native()
        group = loop.training.optimizers[0].param_groups[0]
        told = loop.updating.hyper()
        told[0][0].update(lr=0.025, betas=[0.5, 0.75])
        seen.clear()
        loop.updating.learn()
        loop.updating.replay(lambda: loop.put(gradients(loop.model, 1)), told)
        assert (group["lr"], group["betas"]) == (0.1, (0.9, 0.999))
        loop.put(gradients(loop.model, 2))
        loop.updating.own(told)
        assert (group["lr"], group["betas"]) == (0.025, (0.5, 0.75))
        loop.training.update()
        assert (group["lr"], group["betas"]) == (0.1, (0.9, 0.999))
        assert [rate for rate, _ in seen] == [0.025, 0.025]
        loop.native()
        assert loop.updating.refusal is None


@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.parametrize(("first", "rate"), [("step", 0.05), ("schedule", 0.0125)])
def test_a_schedule_moves_the_rate_that_is_there_when_it_is_called(first, rate, replayed):
    """After the update's last step that is the rank's own rate again, before it the update's."""

    def body(_model, optimizer, _i, schedule):
        for operation in (optimizer, schedule) if first == "step" else (schedule, optimizer):
            operation.step()

    def made(_model, optimizer):
        optimizer._opt_called = True  # stepped before its schedule, as the old order has it
        return schedules.ExponentialLR(optimizer, 0.5)

    with loop_of(body, schedule=made) as loop:
        for _ in range(5):
            loop.native()
        group = loop.training.optimizers[0].param_groups[0]
        group["lr"] = 0.1
        told = loop.updating.hyper()
        told[0][0]["lr"] = 0.025
        loop.backward()
        loop.updating.learn()
        if replayed:
            loop.updating.replay(lambda: loop.put(gradients(loop.model, 1)), told)
        else:
            loop.put(gradients(loop.model, 1))
            loop.updating.own(told)
            loop.training.update()
        assert group["lr"] == rate


def test_a_rate_that_the_loop_sets_before_the_forward_pass_is_accepted():
    with loop_of(lambda _m, o, _i: o.step()) as loop:
        for i in range(8):
            loop.training.optimizers[0].param_groups[0]["lr"] = 0.1 / (i + 1)
            loop.native()
        assert loop.updating.ready


def test_hyper_parameters_are_json_and_compare():
    weights = nn.Linear(2, 2).parameters()
    optimizer = optim.AdamW(weights, lr=torch.tensor(0.25), betas=(0.1, 1 / 3), fused=True)
    optimizer.param_groups[0]["weight_decay"] = float("nan")
    taken = snapshot([optimizer])
    told = json.loads(json.dumps(taken))
    assert same(told, taken)
    assert told[0][0]["lr"] == 0.25
    assert told[0][0]["betas"] == [0.1, 1 / 3]
    schedules.OneCycleLR(optimizer, max_lr=0.5, total_steps=9)
    assert set(snapshot([optimizer])[0][0]) == set(told[0][0]) == {"lr", "betas", "eps", "weight_decay"}
    told[0][0]["betas"][1] = 0.5
    assert not same(told, taken)
    assert not same([], taken)


def test_another_number_of_groups_is_an_error_before_anything_is_changed():
    with loop_of(lambda _m, o, _i: o.step()) as loop:
        for _ in range(5):
            loop.native()
        before = loop.state()
        with pytest.raises(ValueError, match="other parameter groups"):
            loop.updating.replay(lambda: None, [])
        assert loop.state() == before


def test_hyper_parameters_on_a_device_are_compared_without_reading_them():
    # A tensor on the meta device can't be read at all.
    rate = torch.zeros((), device="meta")
    optimizer = optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.param_groups[0]["lr"] = rate
    before = marks([optimizer])
    assert same(before, marks([optimizer]))
    rate.fill_(1.0)
    assert not same(before, marks([optimizer]))
