"""How the engine tells a model's own backward pass from another one's, without keeping gradients in memory."""

import gc
import weakref

import torch

from starprof.control.engine.ddp import _Watched


def watched():
    model = torch.nn.Linear(4, 2)
    return model, _Watched(None, list(model.parameters()))


def backward(model):
    model(torch.randn(3, 4)).sum().backward()


def test_a_first_gradient_and_one_that_is_added_are_changes():
    model, watch = watched()
    for _ in range(2):
        watch.look()
        assert not watch.has_changed()
        backward(model)
        assert watch.has_changed()


def test_gradients_that_were_thrown_away_and_made_anew_are_changes():
    model, watch = watched()
    backward(model)
    watch.look()
    model.zero_grad()
    assert not watch.has_changed()
    backward(model)
    assert watch.has_changed()


def test_old_gradients_are_not_kept_in_memory():
    model, watch = watched()
    backward(model)
    old = weakref.ref(model.weight.grad)
    watch.look()
    gc.collect()
    assert old() is not None
    model.zero_grad()
    assert old() is None
