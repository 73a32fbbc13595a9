"""After any mixture of own and replayed updates a rank has the same bits as one that made them all in its own loop."""

import random

import pytest
import torch
from torch import optim
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from updating_loop import Loop, Training, gradients

UPDATES = 26
LEARNED = 4


def plain(make):
    """Nothing but an optimizer."""

    def recipe(model):
        optimizer = make(model.parameters())
        return Training(model, [optimizer], lambda: optimizer.step())

    return recipe


def scheduled(make_schedule):
    def recipe(model):
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = make_schedule(optimizer)

        def update():
            optimizer.step()
            schedule.step()

        return Training(model, [optimizer], update, schedule)

    return recipe


def clipped_by_norm(model):
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)

    def update():
        clip_grad_norm_(model.parameters(), max_norm=1.5)
        optimizer.step()

    return Training(model, [optimizer], update)


def clipped_by_value(model):
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def update():
        clip_grad_norm_([p for n, p in model.named_parameters() if "bias" in n], 0.5, norm_type=1.0)
        clip_grad_value_(parameters=model.parameters(), clip_value=0.7)
        optimizer.step()

    return Training(model, [optimizer], update)


def several_groups(model):
    names = dict(model.named_parameters())
    optimizer = optim.AdamW(
        [
            {"params": [p for n, p in names.items() if "weight" in n], "weight_decay": 0.1},
            {"params": [p for n, p in names.items() if "bias" in n], "lr": 3e-3, "betas": (0.8, 0.99)},
        ],
        lr=1e-2,
    )
    schedule = schedules.OneCycleLR(optimizer, max_lr=[0.02, 0.01], total_steps=UPDATES + 1)

    def update():
        optimizer.step()
        schedule.step()

    return Training(model, [optimizer], update, schedule)


def two_optimizers(model):
    weights = optim.SGD([p for n, p in model.named_parameters() if "weight" in n], lr=0.1, momentum=0.5)
    rest = optim.Adam([p for n, p in model.named_parameters() if "bias" in n], lr=1e-2)
    schedule = schedules.StepLR(rest, step_size=3, gamma=0.7)

    def update():
        rest.step()
        schedule.step()
        weights.step()

    return Training(model, [weights, rest], update, schedule)


def averaged(model):
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def update():
        optimizer.step()
        average.update_parameters(model)

    return Training(model, [optimizer], update, average)


def scaled(make, *, unscale=False, growth_factor=2.0):
    def recipe(model):
        optimizer = make(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3, growth_factor=growth_factor)
        schedule = schedules.CosineAnnealingLR(optimizer, T_max=9)

        def update():
            if unscale:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 2.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()

        return Training(model, [optimizer], update, schedule, scaler, scaler=scaler)

    return recipe


def scaled_with_two_optimizers(model):
    one = optim.SGD(model.first.parameters(), lr=0.1)
    other = optim.AdamW([*model.norm.parameters(), *model.last.parameters()], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)

    def update():
        scaler.step(one)
        scaler.step(other)
        scaler.update()

    return Training(model, [one, other], update, scaler, scaler=scaler)


def sgd(parameters):
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


def warmed_up(optimizer):
    first = schedules.LinearLR(optimizer, start_factor=0.1, total_iters=5)
    return schedules.SequentialLR(optimizer, [first, schedules.CosineAnnealingLR(optimizer, 15)], milestones=[7])


def chained(optimizer):
    first = schedules.ConstantLR(optimizer, factor=0.1, total_iters=6)
    return schedules.ChainedScheduler([first, schedules.ExponentialLR(optimizer, gamma=0.9)])


RECIPES = {
    "SGD with momentum": plain(sgd),
    "AdamW foreach": plain(lambda p: optim.AdamW(p, lr=1e-2, foreach=True, amsgrad=True)),
    "AdamW fused": plain(lambda p: optim.AdamW(p, lr=1e-2, fused=True)),
    "AdamW one by one": plain(lambda p: optim.AdamW(p, lr=1e-2, foreach=False)),
    "AdamW with a tensor as rate": plain(lambda p: optim.AdamW(p, lr=torch.tensor(1e-2), foreach=False)),
    "Adagrad": plain(lambda p: optim.Adagrad(p, lr=1e-2, lr_decay=0.1)),
    "clipped by norm": clipped_by_norm,
    "clipped by value": clipped_by_value,
    "several groups": several_groups,
    "two optimizers": two_optimizers,
    "OneCycleLR": scheduled(lambda o: schedules.OneCycleLR(o, max_lr=0.3, total_steps=UPDATES + 1)),
    "CosineAnnealingLR": scheduled(lambda o: schedules.CosineAnnealingLR(o, T_max=11)),
    "LambdaLR": scheduled(lambda o: schedules.LambdaLR(o, lambda step: 1 / (1 + step))),
    "CyclicLR": scheduled(lambda o: schedules.CyclicLR(o, base_lr=0.01, max_lr=0.2, step_size_up=4)),
    "SequentialLR": scheduled(warmed_up),
    "ChainedScheduler": scheduled(chained),
    "average": averaged,
    "scaled": scaled(sgd),
    "scaled and clipped": scaled(sgd, unscale=True),
    "scaled, no power of two": scaled(sgd, unscale=True, growth_factor=1.7),
    "scaled, fused": scaled(lambda p: optim.AdamW(p, lr=1e-2, fused=True)),
    "scaled, two optimizers": scaled_with_two_optimizers,
}
NOT_FINITE = (6, 7, 13, 20)


def update_of(loop, number):
    """Some have gradients for a layer that others have none for; a scaler meets some that are not finite."""
    spare = number % 3 == 0 and loop.training.optimizers and len(loop.training.optimizers) == 1
    update = gradients(loop.model, number, size=1.0 + number % 4, spare=spare)
    if loop.training.scaler is not None and number in NOT_FINITE:
        update[number % 2] = update[number % 2] * (float("inf") if number % 2 else float("nan"))
    return update


def train(recipe, pieces):
    """`LEARNED` native steps, then iterations that make so many updates each."""
    with Loop(recipe) as loop:
        number = 0
        for _ in range(LEARNED):
            loop.native(update_of(loop, number))
            number += 1
        for piece in pieces:
            loop.rounds([update_of(loop, number + i) for i in range(piece)])
            number += piece
        assert number == UPDATES
        assert loop.updating.refusal is None
        assert loop.updating.ready
        return loop.state()


def cut(seed):
    """Pieces of 0 to 4 updates."""
    generator = random.Random(seed)
    left, pieces = UPDATES - LEARNED, []
    while left:
        pieces.append(min(left, generator.choice([0, 0, 1, 1, 2, 3, 4])))
        left -= pieces[-1]
    return [*pieces, 0]


@pytest.mark.parametrize("name", RECIPES)
def test_replayed_updates_leave_the_same_bits_as_own_ones(name):
    recipe = RECIPES[name]
    own = train(recipe, [1] * (UPDATES - LEARNED))
    for seed in range(3):
        assert train(recipe, cut(seed)) == own


@pytest.mark.parametrize("name", RECIPES)
def test_an_own_update_is_the_one_that_the_loop_makes_unwatched(name):
    recipe = RECIPES[name]
    watched = train(recipe, [1] * (UPDATES - LEARNED))
    with Loop(recipe) as loop:
        loop.updating.restore()
        for number in range(UPDATES):
            loop.backward()
            loop.put(update_of(loop, number))
            loop.training.update()
        assert loop.state() == watched


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("pieces", [(1, 3), (2, 0), (0, 2), (3, 1)])
def test_later_updates_wait_for_the_own_one_where_ranks_meet_in_its_middle(place, pieces):
    loops = []

    def recipe(model):
        optimizer = sgd(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        schedule = chained(optimizer)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        operations = [
            lambda: scaler.unscale_(optimizer),
            lambda: clip_grad_norm_(model.parameters(), 1.0),
            lambda: scaler.step(optimizer),
            lambda: scaler.update(),
            lambda: schedule.step(),
            lambda: average.update_parameters(model),
        ]

        def update():
            for i, operation in enumerate([*operations, lambda: None]):
                if i == place:
                    loops[-1].at_meeting()
                operation()

        return Training(model, [optimizer], update, schedule, scaler, average, scaler=scaler)

    def state(pieces):
        with Loop(recipe) as loop:
            loops.append(loop)
            for number in range(LEARNED):
                loop.native(update_of(loop, number))
            updates = iter([update_of(loop, LEARNED + i) for i in range(9)])
            for _ in range(2):
                own, late = pieces
                loop.rounds([next(updates) for _ in range(own)], meeting=[next(updates) for _ in range(late)] or None)
            for rest in updates:
                loop.rounds([rest])
            loop.native(update_of(loop, 0))
            assert loop.updating.refusal is None
            return loop.state()

    assert state(pieces) == state((1, 0))


def test_a_non_finite_update_changes_nothing_but_the_scale():
    with Loop(RECIPES["scaled and clipped"]) as loop:
        for number in range(LEARNED):
            loop.native(update_of(loop, number))
        before = [p.clone() for p in loop.model.parameters()]
        scale = loop.updating.scale()
        loop.rounds([update_of(loop, 6), update_of(loop, 7), update_of(loop, 13)])
        assert all(torch.equal(p, q) for p, q in zip(loop.model.parameters(), before, strict=True))
        assert loop.updating.scale() == scale / 8
        assert loop.updating.unscale_factor() == 8 / scale
        assert loop.updating.left_out == 3


def test_what_native_steps_leave_out_or_a_state_brings_is_no_update_left_out_in_rounds():
    with Loop(RECIPES["scaled and clipped"]) as loop:
        for number in range(LEARNED):
            loop.native(update_of(loop, number))
        scale = loop.updating.scale()
        loop.native(update_of(loop, 6))
        loop.rounds([update_of(loop, 0)])
        assert loop.updating.scale() < scale
        loop.training.scaler.load_state_dict({**loop.training.scaler.state_dict(), "scale": 2.0})
        loop.updating.forget_scale()
        assert loop.updating.scale() == 2.0
        assert loop.updating.left_out == 0
    with Loop(RECIPES["SGD with momentum"]) as loop:
        loop.native(update_of(loop, 0))
        assert loop.updating.left_out is None
