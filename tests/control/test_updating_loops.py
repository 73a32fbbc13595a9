"""Which loops are understood, and which are refused with what reason."""

import pytest
import torch
from torch import nn, optim
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import AveragedModel
from updating_loop import gradients, loop_of, refusal_of

from starprof.control.engine.loopupdates import LoopUpdates
from starprof.control.engine.updating import Kind
from starprof.control.engine.updating.changes import Changes

held_elsewhere = [clip_grad_norm_]


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


def test_an_optimizer_that_only_a_scaler_steps_is_accepted():
    """The scaler shows it for the first time between a backward pass and a step."""

    def body(_model, optimizer, _i, scaler):
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()

    scalers = {"scaler": lambda _m, _o: torch.amp.GradScaler("cpu", init_scale=1.0)}
    assert refusal_of(body, known=False, **scalers) is None


def test_an_optimizer_that_is_made_late_and_steps_first_is_accepted():
    late = []

    def body(model, optimizer, i):
        if i == 3:
            late.append(optim.SGD(model.last.parameters(), lr=0.01))
        for one in (*late, optimizer):
            one.step()

    assert refusal_of(body, make=lambda parameters: optim.SGD(list(parameters)[:1], lr=0.1), known=False) is None


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("begin", "count"), [(0, 8), (0, 7), (1, 8), (2, 1), (0, 0)])
def test_a_change_behind_a_gradients_back_is_found_wherever_it_lies(dtype, begin, count):
    parameter = nn.Parameter(torch.zeros(count, dtype=dtype))
    parameter.grad = torch.arange(1.0, 17.0).to(dtype)[begin : begin + count]
    changes = Changes()
    changes.note([parameter], checksums=True)
    assert not changes.behind_their_back([parameter])
    parameter.grad.data.mul_(0.5)
    assert not changes.of_gradients([parameter])
    assert bool(changes.behind_their_back([parameter])) == (count > 0)


def test_a_loop_that_is_refused_is_not_looked_at_any_more():
    with loop_of(halved) as loop:
        for _ in range(4):
            loop.native()
        assert loop.updating.refusal
        for _ in range(70):
            loop.native()
            assert not loop.updating._watch.window.checked


def stepped(_model, optimizer, _i):
    optimizer.step()


def test_an_average_has_the_state_that_another_rank_gave_before_its_first_use_between_epochs():
    theirs = loop_of(stepped)
    average = AveragedModel(theirs.model)
    with theirs:
        for _ in range(3):
            theirs.native()
        theirs.updating.epoch_ended()
        average.update_parameters(theirs.model)
        saved = LoopUpdates(theirs.updating, theirs.model).state()
    mine = loop_of(stepped)
    late = AveragedModel(mine.model)
    with mine:
        for _ in range(2):
            mine.native()
        LoopUpdates(mine.updating, mine.model).load(bytearray(saved))
        mine.updating.epoch_ended()
        late.update_parameters(mine.model)
    assert int(late.n_averaged) == 2
