"""Gradients into flat tensors and back, directly and in pieces: the same bits both ways, whatever type they have."""

import pytest
import torch

from starprof.control.engine.flat import Flat, Layout, Pool
from starprof.control.engine.gradients import Direct, Staged

SHAPES = [(3, 5), (), (40, 4), (7,), (2, 3, 4, 5), (1,), (0,), (300,)]
TYPES = {
    "float32": [torch.float32],
    "bfloat16": [torch.bfloat16],
    "float16": [torch.float16],
    "float64": [torch.float64],
    "mixed": [torch.bfloat16, torch.float32, torch.float16],
}


def parameters_of(types, seed=0):
    """With gradients; every other four-dimensional one lies in memory as images like it."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for place, shape in enumerate(SHAPES):
        parameter = torch.nn.Parameter(torch.zeros(shape, dtype=types[place % len(types)]))
        parameter.grad = torch.randn(shape, generator=generator).to(parameter.dtype)
        if len(shape) == 4:
            parameter.grad = parameter.grad.to(memory_format=torch.channels_last)
        made.append(parameter)
    return made


def ways(layout):
    """Pieces of less than a parameter, of some, and of all of them; the way of a device works on the host as well."""
    return {"direct": Direct(layout), **{f"{size} bytes": Staged(layout, size) for size in (1, 100, 900, 1 << 20)}}


def flat_of(layout, way):
    flat = Flat(layout)
    flat.tensor.fill_(float("nan"))
    flat.settings = b"{}"
    way.collect(flat)
    return flat


@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES.keys())
def test_every_way_collects_and_puts_the_same_bits(types):
    parameters = parameters_of(types)
    layout = Layout(parameters)
    wanted = [parameter.grad.clone() for parameter in parameters]
    for name, way in ways(layout).items():
        flat = flat_of(layout, way)
        for view, gradient in zip(flat.views, wanted, strict=True):
            assert torch.equal(view, gradient.to(layout.dtype)), name
        for parameter in parameters:
            parameter.grad = None
        way.put(flat)
        for parameter, gradient in zip(parameters, wanted, strict=True):
            assert parameter.grad.dtype == parameter.dtype, name
            assert torch.equal(parameter.grad, gradient), name


def test_a_way_is_used_again_and_again():
    parameters = parameters_of([torch.float32])
    layout = Layout(parameters)
    for name, way in ways(layout).items():
        flats = [flat_of(layout, way)]
        for turn in (2.0, 3.0):
            for parameter in parameters:
                parameter.grad.mul_(turn)
            flats.append(flat_of(layout, way))
        for flat, times in zip(flats, (1.0, 2.0, 6.0), strict=True):
            way.put(flat)
            assert torch.allclose(parameters[2].grad, flats[0].views[2] * times), name
        for parameter, original in zip(parameters, flats[0].views, strict=True):
            parameter.grad = original.clone()


@pytest.mark.parametrize("missing", [[1], [2], [0, 1, 2, 3, 4], [7], list(range(8))])
def test_no_gradient_counts_as_zero_and_is_none_again_where_nobody_has_one(missing):
    parameters = parameters_of([torch.float32])
    for place in missing:
        parameters[place].grad = None
    there = [parameter.grad is not None for parameter in parameters]
    layout = Layout(parameters)
    for name, way in ways(layout).items():
        flat = flat_of(layout, way)
        assert flat.used == there, name
        assert all(not flat.views[place].any() for place in missing), name
        other = parameters_of([torch.float32], seed=1)
        for place, parameter in enumerate(other):
            parameter.grad = None if place == 0 else parameter.grad
        type(way)(Layout(other)).put(flat)
        for place, parameter in enumerate(other):
            assert (parameter.grad is not None) == there[place], name
            assert parameter.grad is None or torch.equal(parameter.grad, flat.views[place]), name


def test_the_loss_scale_goes_out_with_the_weight_and_in_with_the_gradients():
    parameters = parameters_of([torch.float16])
    layout = Layout(parameters)
    for name, way in ways(layout).items():
        own, work = flat_of(layout, way), Flat(layout)
        own.factor = 1 / 1024
        work.take(own, 0.5)
        work.add(own, 0.5)
        for view, gradient in zip(work.views, own.views, strict=True):
            assert torch.equal(view, gradient / 1024), name
        bits = work.tensor.clone()
        before = [parameter.grad.clone() for parameter in parameters]
        way.put(work, 1024.0)
        assert torch.equal(work.tensor, bits), name
        for parameter, gradient in zip(parameters, before, strict=True):
            # Once scaled down, a half gradient may be too small to be exact.
            assert torch.allclose(parameter.grad, gradient, rtol=1e-3, atol=1024 * 2**-25), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_sum_of_half_gradients_is_rounded_once(dtype):
    """Eight ranks: the sum in float32 is the nearest half number to the true mean; one in halves is not."""
    ranks = 8
    made = [parameters_of([dtype], seed) for seed in range(ranks)]
    gradients = [[p.grad.clone() for p in parameters] for parameters in made]
    layout = Layout(made[0])
    way, total = Direct(layout), Flat(layout)
    total.tensor.zero_()
    for parameters in made:
        flat, work = Flat(layout), Flat(layout)
        Direct(Layout(parameters)).collect(flat)
        work.take(flat, 1 / ranks)
        total.tensor.add_(work.tensor)
    way.put(total)
    for place, parameter in enumerate(made[0]):
        mean = torch.stack([of_rank[place].double() for of_rank in gradients]).mean(0)
        assert torch.equal(parameter.grad, mean.to(dtype)), place


def test_a_gradient_with_a_graph_of_its_own_leaves_it_behind():
    parameter = torch.nn.Parameter(torch.ones(3))
    (parameter.grad,) = torch.autograd.grad((parameter**3).sum(), parameter, create_graph=True)
    layout = Layout([parameter])
    flat = flat_of(layout, Direct(layout))
    assert not flat.tensor.requires_grad
    Direct(layout).put(flat)
    assert torch.equal(parameter.grad.detach(), torch.full((3,), 3.0))


def test_a_pool_gives_out_what_came_back():
    pool = Pool(Layout(parameters_of([torch.float32])))
    first, second = pool.take(), pool.take()
    pool.give(first)
    assert pool.take() is first
    assert pool.take() is not second
