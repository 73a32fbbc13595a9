"""What watching a loop leaves as it is: own updates that are not made, other threads, forks, exceptions, the end."""

import gc
import os
import threading
import weakref

import pytest
import torch
from torch import nn, optim
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import AveragedModel
from updating_loop import Loop, Net, Training, loop_of

from starprof.control.engine.updating import Updating, UpdatingError
from starprof.hook.boundary import Guard


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
