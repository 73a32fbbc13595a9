"""Gradients and states between a GPU and the host: the right values, however late the device is."""

import pytest
import torch

from starprof.control.engine.flat import Flat, Layout, Pool
from starprof.control.engine.gradients import Direct, Staged, gradients_of
from starprof.control.engine.state import State

SHAPES = [(3, 5), (), (40, 4), (7,), (2, 3, 4, 5), (1,), (0,), (3000,)]
LATE_CYCLES = 200_000_000
"""About a tenth of a second."""
TYPES = {
    "float32": [torch.float32],
    "bfloat16": [torch.bfloat16],
    "float16": [torch.float16],
    "mixed": [torch.bfloat16, torch.float32, torch.float16],
}


def parameters_of(types, device="cuda", seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = []
    for place, shape in enumerate(SHAPES):
        dtype = types[place % len(types)]
        parameter = torch.nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
        parameter.grad = torch.randn(shape, generator=generator).to(device=device, dtype=dtype)
        if len(shape) == 4:
            parameter.grad = parameter.grad.to(memory_format=torch.channels_last)
        made.append(parameter)
    return made


@pytest.mark.parametrize("piece_bytes", [1, 100, 900, 1 << 20])
@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES.keys())
def test_the_way_over_the_device_gives_the_bits_of_the_direct_one(types, piece_bytes):
    there, here = parameters_of(types), parameters_of(types, "cpu")
    there[2].grad = here[2].grad = None
    flat, wanted = Flat(Layout(there)), Flat(Layout(here))
    way = Staged(flat.layout, piece_bytes)
    for each in (flat, wanted):
        each.settings = b"{}"
    way.collect(flat)
    Direct(wanted.layout).collect(wanted)
    assert flat.tensor.is_pinned()
    assert torch.equal(flat.tensor, wanted.tensor)
    for parameter in there:
        parameter.grad = None
    way.put(flat)
    for parameter, twin in zip(there, here, strict=True):
        assert (parameter.grad is None) == (twin.grad is None)
        assert parameter.grad is None or torch.equal(parameter.grad.cpu(), twin.grad)


def test_gradients_that_are_computed_late_are_waited_for():
    parameters = parameters_of([torch.float32])
    layout = Layout(parameters)
    way, flat = gradients_of(layout), Flat(layout)
    assert isinstance(way, Staged)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LATE_CYCLES)
            for parameter in parameters:
                parameter.grad.fill_(7.0)
            way.collect(flat)
        assert all((view == 7.0).all() for view in flat.views)
        for parameter in parameters:
            parameter.grad.zero_()


def test_what_is_on_its_way_to_the_device_is_not_written_over():
    parameters = parameters_of([torch.float32])
    layout = Layout(parameters)
    way, pool = gradients_of(layout), Pool(layout)
    flat = pool.take()
    flat.tensor.fill_(1.0)
    torch.cuda._sleep(LATE_CYCLES)
    way.put(flat)
    pool.give(flat)
    again = pool.take()
    assert again is flat
    again.tensor.fill_(2.0)
    assert all((parameter.grad == 1.0).all() for parameter in parameters)


def test_a_state_comes_onto_the_device_of_the_model_that_takes_it():
    def trained(seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(3):
            model(torch.randn(8, 4, device="cuda")).square().mean().backward()
            optimizer.step()
        return model, optimizer

    (giver, its), (takes, own) = trained(0), trained(1)
    State(takes, [own]).load(bytearray(State(giver, [its]).save()))
    for mine, theirs in zip(takes.parameters(), giver.parameters(), strict=True):
        assert mine.is_cuda
        assert torch.equal(mine, theirs)
        for name, value in its.state[theirs].items():
            assert own.state[mine][name].device == value.device
            assert torch.equal(own.state[mine][name], value)
