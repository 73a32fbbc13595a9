"""Which loops are understood, and which are refused with what reason."""

import gc
import json
import os
import threading
import weakref

import pytest
import torch
from torch import nn, optim
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import AveragedModel
from updating_loop import Loop, Net, Training, gradients

from starprof.control.engine.updating import Kind, Updating, UpdatingError, same
from starprof.control.engine.updating.hyper import snapshot
from starprof.hook.boundary import Guard

held_elsewhere = [clip_grad_norm_]


def loop_of(body, make=lambda p: optim.SGD(p, lr=0.1, momentum=0.9), **parts):
    """A loop whose `body(model, optimizer, iteration, **parts)` follows each backward pass."""

    def recipe(model):
        optimizer = make(model.parameters())
        made = {name: part(model, optimizer) for name, part in parts.items()}
        count = iter(range(10**6))
        return Training(model, [optimizer], lambda: body(model, optimizer, next(count), **made), *made.values())

    return Loop(recipe)


def refusal_of(body, steps=30, **kwargs):
    with loop_of(body, **kwargs) as loop:
        for _ in range(steps):
            loop.native()
        loop.updating.learn()
        assert (loop.updating.refusal is None) == loop.updating.ready
        return loop.updating.refusal


def halved(model, optimizer, _i):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(0.5)
    optimizer.step()


def halved_behind_its_back(model, optimizer, _i):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.data.mul_(0.5)
    optimizer.step()


def zeroed(_model, optimizer, _i):
    optimizer.zero_grad()
    optimizer.step()


def clipped_by_a_function_that_is_out_of_reach(model, optimizer, _i):
    held_elsewhere[0](model.parameters(), 0.001)
    optimizer.step()


def changed_after_clipping(model, optimizer, _i):
    clip_grad_norm_(model.parameters(), 1.0)
    model.first.weight.grad += 1.0
    optimizer.step()


def rate_set_late(_model, optimizer, i):
    optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)
    optimizer.step()


def with_closure(_model, optimizer, _i):
    optimizer.step(lambda: torch.zeros(()))


def twice(_model, optimizer, _i):
    optimizer.step()
    optimizer.step()


def every_fourth(_model, optimizer, i):
    if i % 4 == 3:
        optimizer.step()


def weights_clamped(model, optimizer, _i):
    optimizer.step()
    with torch.no_grad():
        for p in model.parameters():
            p.clamp_(-0.1, 0.1)


def another_norm_each_time(model, optimizer, i):
    clip_grad_norm_(model.parameters(), 1.0 + i)
    optimizer.step()


def nothing(_model, _optimizer, _i):
    pass


REFUSED = {
    halved: "changes gradients between the backward pass and SGD.step",
    halved_behind_its_back: "changes gradients through .data",
    zeroed: "sets gradients to None",
    clipped_by_a_function_that_is_out_of_reach: "changes gradients between",
    changed_after_clipping: "changes gradients between",
    rate_set_late: "hyper-parameters are set between the backward pass and SGD.step",
    with_closure: "SGD.step can't be replayed: it is called with a closure",
    twice: "SGD.step is called more than once",
    every_fourth: "inside of no_sync()",
    weights_clamped: "changes parameters outside of the optimizer's step",
    another_norm_each_time: "clip_grad_norm_ is not called with the same arguments",
    nothing: "no optimizer step of the model was seen",
}


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.__name__)
def test_what_cannot_be_replayed_is_refused_with_the_reason(body):
    assert REFUSED[body] in refusal_of(body)


def test_a_schedule_that_moves_in_some_iterations_only_is_refused():
    def body(_model, optimizer, i, schedule):
        optimizer.step()
        if i % 5 == 4:
            schedule.step()

    reason = refusal_of(body, schedule=lambda _m, o: schedules.StepLR(o, 2))
    assert "StepLR.step is called in some iterations only" in reason


def test_a_plateau_schedule_is_for_epochs():
    def body(_model, optimizer, i, schedule):
        optimizer.step()
        schedule.step(1.0 + i)

    reason = refusal_of(body, schedule=lambda _m, o: schedules.ReduceLROnPlateau(o))
    assert "ReduceLROnPlateau.step can't be replayed: it depends on a metric of this rank" in reason


def test_parameters_that_are_not_the_models_are_refused():
    head = nn.Linear(2, 2)

    def make(parameters):
        return optim.SGD([*parameters, *head.parameters()], lr=0.1)

    reason = refusal_of(lambda _m, optimizer, _i: optimizer.step(), make=make)
    assert "SGD also trains parameters that are not the model's" in reason


def test_an_optimizer_beside_the_models_is_refused():
    def body(_model, optimizer, _i, other):
        optimizer.step()
        other.step()

    reason = refusal_of(body, other=lambda _m, _o: optim.Adam(nn.Linear(2, 2).parameters()))
    assert "Adam trains parameters outside of the model" in reason


def test_a_step_that_was_taken_hold_of_before_is_refused():
    steps = {}

    def make(parameters):
        optimizer = optim.SGD(parameters, lr=0.1)
        steps["it"] = optimizer.step
        return optimizer

    assert "makes the step" in refusal_of(lambda _m, _o, _i: steps["it"](), make=make)


def test_two_scalers_are_refused():
    def body(_model, optimizer, i, one, other):
        scaler = (one, other)[i % 2]
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()

    scalers = {name: lambda _m, _o: torch.amp.GradScaler("cpu", init_scale=1.0) for name in ("one", "other")}
    assert "GradScaler" in refusal_of(body, **scalers)


def test_accepted_loops():
    def body(model, optimizer, _i, schedule):
        schedule.step()
        clip_grad_norm_(model.parameters(), 1.0)
        clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()

    with loop_of(body, schedule=lambda _m, o: schedules.LambdaLR(o, lambda _: 1.0)) as loop:
        optimizer = loop.training.optimizers[0]
        optimizer._opt_called = True  # stepped before its schedule, as the old order has it
        for _ in range(6):
            loop.native()
        loop.updating.learn()
        kinds = [operation.kind for operation in loop.updating.recorded]
        assert kinds == [Kind.SCHEDULE, Kind.CLIP_NORM, Kind.CLIP_VALUE, Kind.STEP]
        assert loop.updating.refusal is None
        assert loop.updating.ready


def epochs(loop, schedule, *args, count=3):
    for _ in range(count):
        for _ in range(5):
            loop.native()
        loop.updating.epoch_ended()
        schedule.step(*args)


@pytest.mark.parametrize("plateau", [False, True])
def test_a_schedule_that_moves_after_the_loaders_end_belongs_to_the_epoch(plateau):
    made = schedules.ReduceLROnPlateau if plateau else (lambda o: schedules.ExponentialLR(o, 0.5))
    args = (1.0,) if plateau else ()
    with loop_of(lambda _m, o, _i, schedule: o.step(), schedule=lambda _m, o: made(o)) as loop:
        schedule = loop.training.stateful[0]
        epochs(loop, schedule, *args)
        assert loop.updating.ready
        loop.rounds([])
        loop.updating.epoch_ended()
        before = schedule.last_epoch
        schedule.step(*args)
        assert schedule.last_epoch == before + 1
        loop.native()
        assert loop.updating.refusal is None


def test_an_average_that_begins_later_is_learned_anew():
    def body(model, optimizer, i, average):
        optimizer.step()
        if i >= 10:
            average.update_parameters(model)

    with loop_of(body, average=lambda m, _o: AveragedModel(m)) as loop:
        for _ in range(9):
            loop.native()
        assert loop.updating.ready
        for _ in range(3):
            loop.native()
        assert not loop.updating.ready
        for _ in range(3):
            loop.native()
        assert loop.updating.ready
        assert [operation.kind for operation in loop.updating.recorded] == [Kind.STEP, Kind.AVERAGE]


def test_a_loop_that_changes_during_rounds_is_refused():
    def body(model, optimizer, i, average):
        optimizer.step()
        if i >= 6:
            average.update_parameters(model)

    with loop_of(body, average=lambda m, _o: AveragedModel(m)) as loop:
        for _ in range(5):
            loop.native()
        for number in range(3):
            loop.rounds([gradients(loop.model, number)])
        assert "in another way than before rounds" in loop.updating.refusal


def everything(model):
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    schedule = schedules.ExponentialLR(optimizer, 0.9)
    average = AveragedModel(model)

    def update():
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), 1.0)
        clipped = clip_grad_value_(model.parameters(), 1.0)
        stepped = scaler.step(optimizer)
        scaler.update()
        schedule.step()
        average.update_parameters(model)
        return norm, clipped, stepped, schedule.get_last_lr()

    return Training(model, [optimizer], update, schedule, average, scaler, scaler=scaler)


def test_an_own_update_that_is_left_out_changes_nothing_and_answers_all_the_same():
    left_out = []
    with Loop(everything, left_out=left_out.append) as loop:
        for _ in range(5):
            loop.native()
        before = loop.state()
        rate = loop.training.optimizers[0].param_groups[0]["lr"]
        norm, clipped, stepped, rates = loop.rounds([])
        assert loop.state() == before
        assert torch.equal(norm, torch.tensor(0.0))
        assert clipped is stepped is None
        assert rates == [rate]
        assert left_out == loop.training.optimizers
        loop.native()
        assert loop.state() != before
        assert left_out == loop.training.optimizers


def test_what_else_an_update_changes_is_known_in_the_same_order_everywhere():
    with Loop(everything) as loop:
        schedule, average, scaler = loop.training.stateful
        epochal = schedules.ConstantLR(loop.training.optimizers[0], factor=1.0)
        for _ in range(5):
            loop.native()
        loop.updating.epoch_ended()
        epochal.step()
        assert loop.updating.others == [scaler, schedule, average, epochal]
        assert loop.updating.optimizers == loop.training.optimizers


def test_what_comes_beyond_the_iterations_own_operations_is_not_left_out():
    with loop_of(lambda _m, o, _i, schedule: o.step(), schedule=lambda _m, o: schedules.StepLR(o, 1)) as loop:
        for _ in range(5):
            loop.native()
        loop.rounds([])
        loop.training.stateful[0].step()  # no loader told that the epoch is over
        assert loop.training.stateful[0].last_epoch == 1


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


def test_nothing_is_replayed_before_the_loop_is_known():
    with loop_of(lambda _m, o, _i: o.step()) as loop:
        with pytest.raises(UpdatingError, match="not known yet"):
            loop.updating.replay(lambda: None, loop.updating.hyper())
        with pytest.raises(UpdatingError, match="learn"):
            loop.updating.skip_own()


def test_an_optimizer_that_is_made_later_is_met_at_its_first_step():
    with loop_of(lambda _m, o, _i: o.step()) as loop:
        for _ in range(5):
            loop.native()
        optimizer = optim.RMSprop(loop.model.parameters())
        loop.training.optimizers[:] = [optimizer]
        loop.training.update = lambda: optimizer.step()
        loop.native()
        assert not loop.updating.ready
        for _ in range(5):
            loop.native()
        assert loop.updating.ready
        assert [operation.name for operation in loop.updating.recorded] == ["RMSprop.step"]


def test_other_threads_and_other_models_are_left_alone():
    other = Net()
    other_optimizer = optim.SGD(other.parameters(), lr=0.1)

    def train_other():
        other(torch.randn(4, 6)).sum().backward()
        clip_grad_norm_(other.parameters(), 1.0)
        other_optimizer.step()

    with loop_of(lambda _m, o, _i: o.step()) as loop:
        for _ in range(5):
            loop.native()
        loop.rounds([])
        before = other.last.bias.detach().clone()
        thread = threading.Thread(target=train_other)
        thread.start()
        thread.join(60)
        assert not torch.equal(other.last.bias, before)
        assert loop.updating.refusal is None


def test_a_guard_that_is_off_lets_everything_through():
    with loop_of(lambda _m, o, _i: o.step()) as loop:
        for _ in range(5):
            loop.native()
        before = loop.state()
        loop.guard.off = True
        loop.rounds([])
        assert loop.state() != before


def test_nothing_is_left_out_in_a_forked_child():
    with loop_of(lambda _m, o, _i: o.step()) as loop:
        for _ in range(5):
            loop.native()
        loop.backward()
        loop.updating.learn()
        loop.updating.skip_own()
        child = os.fork()
        if child == 0:
            before = loop.model.last.bias.clone()
            loop.training.update()
            os._exit(0 if not torch.equal(loop.model.last.bias, before) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_everything_is_as_before_once_it_is_restored():
    watched = [
        (optim.SGD, "step"),
        (torch.amp.GradScaler, "unscale_"),
        (torch.amp.GradScaler, "step"),
        (torch.amp.GradScaler, "update"),
        (schedules.LRScheduler, "step"),
        (schedules.ReduceLROnPlateau, "step"),
        (schedules.ChainedScheduler, "step"),
        (AveragedModel, "update_parameters"),
        (nn.utils, "clip_grad_norm_"),
        (nn.utils.clip_grad, "clip_grad_value_"),
    ]
    own = clip_grad_norm_
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    schedules.StepLR(optimizer, 1)  # puts a step of its own into the optimizer
    before = [vars(holder)[name] for holder, name in watched]
    step = vars(optimizer)["step"]
    updating = Updating(Guard(), model, [optimizer])
    updating.install()
    assert vars(optimizer)["step"] is not step
    assert [name for (holder, name), was in zip(watched, before, strict=True) if vars(holder)[name] is was] == []
    assert clip_grad_norm_ is not own
    updating.restore()
    assert all(vars(holder)[name] is was for (holder, name), was in zip(watched, before, strict=True))
    assert clip_grad_norm_ is own
    assert vars(optimizer)["step"] is step


def test_the_users_objects_are_freed_as_soon_as_without_it():
    gc.collect()
    gc.disable()
    try:
        model = Net()
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        updating = Updating(Guard(), model, [optimizer])
        updating.install()
        for _ in range(5):
            model(torch.randn(4, 6)).sum().backward()
            updating.learn()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        alive = [weakref.ref(model), weakref.ref(optimizer), weakref.ref(model.last.weight)]
        del model, optimizer
        assert [reference() for reference in alive] == [None, None, None]
        updating.restore()
    finally:
        gc.enable()


def test_an_exception_of_the_users_passes_and_the_next_iteration_is_seen():
    def body(model, optimizer, i):
        if i == 6:
            clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()

    with loop_of(body) as loop:
        for _ in range(6):
            loop.native()
        loop.backward()
        loop.model.last.bias.grad.fill_(float("nan"))
        loop.updating.learn()
        with pytest.raises(RuntimeError, match="non-finite"):
            loop.training.update()
        assert loop.updating._watch._inside is None
