"""A rank's state as one flat tensor, so that an averaging is one reduction: parameters, optimizers, averaged models.

Running statistics of normalisation layers go along, since each rank has those of its own data, and the mean of the
parameters is evaluated with them. Other buffers stay: most are constants, which a mean would round again and again.

Floating-point values are averaged; where a rank has none yet, it counts as zero, as which optimizers begin it. What has
no mean (counts of steps, whole numbers, the scale of the loss) is taken from one contributor as it is, the same for
all: it travels as the settings of an update do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Module, Parameter
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from starprof.control.engine.dtensors import is_sharded, local, sharded_like
from starprof.control.engine.flat import Flat, Layout

_NUMBER = struct.Struct("<d")
_SCALE = struct.Struct("<dd")
"""Scale of the loss, and steps since it grew."""


class Loop(Protocol):
    """What belongs to a model, as far as it is known (`Updating`)."""

    @property
    def optimizers(self) -> list[Optimizer]:
        """In the same order on all ranks."""
        ...

    @property
    def others(self) -> list[Any]:
        """Schedules, the scaler of the loss, averages."""
        ...


@dataclass(frozen=True, slots=True)
class _Value:
    """One value of an optimizer's state: the tensor itself may be another one tomorrow.

    Attributes:
        optimizer: its place among the model's.
        parameter: that it belongs to.
        key: what the optimizer calls it.
        example: one like it, without memory; None: it is a plain number.
        device: that it is on.
        sharded: it is spread over ranks as the parameter is; what is said of it is this rank's part.
    """

    optimizer: int
    parameter: Parameter
    key: str
    example: Tensor | None
    device: torch.device
    sharded: bool = False

    def get(self, optimizers: list[Optimizer]) -> Any:
        """As it is now; None where the optimizer has not begun it."""
        return local(optimizers[self.optimizer].state.get(self.parameter, {}).get(self.key))

    def begun(self, optimizers: list[Optimizer]) -> Tensor:
        """The tensor, made where there is none."""
        assert self.example is not None
        state = optimizers[self.optimizer].state[self.parameter]
        if self.key not in state:
            begun = torch.zeros_like(self.example, device=self.device)
            state[self.key] = sharded_like(begun, self.parameter) if self.sharded else begun
        tensor: Tensor = local(state[self.key])
        return tensor


class States:
    """The state of one model. All ranks must make it where they are equal, and in rounds the training thread uses it.

    Attributes:
        layout: of a flat tensor that holds one.
        trouble: goes with the state; more than 0 in a mean tells that somebody's was.
    """

    def __init__(self, model: Module, loop: Loop) -> None:
        """Lay out what there is; parameters without state yet are taken to get the same as their optimizer's others."""
        self._loop = loop
        averages = [other for other in loop.others if isinstance(other, AveragedModel)]
        tensors = [local(t) for average in averages for t in (*average.parameters(), *average.buffers())]
        tensors += _statistics(model)
        values = list(_values(loop.optimizers))
        self._fixed: list[Tensor] = [local(p) for p in model.parameters() if p.requires_grad]
        self.trouble = torch.zeros(1)
        self._fixed += [*(t for t in tensors if t.is_floating_point()), self.trouble]
        self._exact_tensors = [t for t in tensors if not t.is_floating_point()]
        self._averaged = [value for value in values if _has_mean(value)]
        self._exact = [value for value in values if not _has_mean(value)]
        examples = [value.example for value in self._averaged if value.example is not None]
        exact_bytes = sum(map(_bytes_of, self._exact_tensors)) + sum(_bytes_of(value.example) for value in self._exact)
        self.layout = Layout([*self._fixed, *examples], exact_bytes + _SCALE.size)

    def collect(self, flat: Flat) -> bytes:
        """Put the state there, and return what of it has no mean."""
        optimizers = self._loop.optimizers
        now = [*self._fixed, *(value.get(optimizers) for value in self._averaged)]
        with torch.no_grad():
            for view, tensor in zip(flat.views, now, strict=True):
                view.zero_() if tensor is None else view.copy_(tensor)
        flat.used = [tensor is not None for tensor in now]
        parts = [_as_bytes(tensor, _bytes_of(tensor)) for tensor in self._exact_tensors]
        parts += [_as_bytes(value.get(optimizers), _bytes_of(value.example)) for value in self._exact]
        scaler = self._scaler()
        told = scaler.state_dict() if scaler is not None else {}
        parts.append(_SCALE.pack(told.get("scale", 0.0), told.get("_growth_tracker", 0)))
        return b"".join(parts)

    def put(self, flat: Flat) -> None:
        """Take the mean of states: the same bits on all ranks."""
        optimizers = self._loop.optimizers
        count = len(self._fixed)
        with torch.no_grad():
            for tensor, view in zip(self._fixed, flat.views[:count], strict=True):
                tensor.copy_(view)
            for value, view, used in zip(self._averaged, flat.views[count:], flat.used[count:], strict=True):
                if used:
                    value.begun(optimizers).copy_(view)
            self._put_exact(flat.settings, optimizers)

    def _put_exact(self, settings: bytes, optimizers: list[Optimizer]) -> None:
        left = memoryview(settings.ljust(self.layout.settings_bytes, b"\0"))
        for tensor in self._exact_tensors:
            left = _fill(tensor, left)
        for value in self._exact:
            state = optimizers[value.optimizer].state.get(value.parameter)
            if not state:
                left = left[_bytes_of(value.example) :]  # nobody has begun it
            elif value.example is None:
                kind = type(state.get(value.key, 0.0))
                state[value.key] = kind(_NUMBER.unpack_from(left)[0])
                left = left[_NUMBER.size :]
            else:
                left = _fill(value.begun(optimizers), left)
        scaler = self._scaler()
        scale, growth = _SCALE.unpack(left)
        if scaler is not None and scale:
            scaler.load_state_dict({**scaler.state_dict(), "scale": scale, "_growth_tracker": int(growth)})

    def _scaler(self) -> GradScaler | None:
        scalers = (other for other in self._loop.others if isinstance(other, GradScaler))
        return next((scaler for scaler in scalers if scaler.is_enabled()), None)


def _statistics(model: Module) -> list[Tensor]:
    """Of its normalisation layers: running means and variances, and over how many batches."""
    layers = [layer for layer in model.modules() if isinstance(layer, _NormBase)]
    found = [t for layer in layers for t in (layer.running_mean, layer.running_var, layer.num_batches_tracked)]
    return [local(tensor) for tensor in found if tensor is not None]


def _values(optimizers: list[Optimizer]) -> Iterator[_Value]:
    for place, optimizer in enumerate(optimizers):
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        model = next((p for p in parameters if optimizer.state.get(p)), None)
        if model is None:
            continue
        for parameter in parameters:
            own = optimizer.state.get(parameter)
            state = own or optimizer.state[model]
            for key in sorted(state, key=str):
                yield from _value(place, parameter, key, state[key], parameter if own else model)


def _value(place: int, parameter: Parameter, key: str, value: Any, of: Parameter) -> Iterator[_Value]:
    if isinstance(value, Tensor):
        like = parameter if value.shape == of.shape and value.dim() else value
        example = torch.empty_like(local(like), dtype=value.dtype, device="meta")
        yield _Value(place, parameter, key, example, value.device, is_sharded(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield _Value(place, parameter, key, None, parameter.device)


def _has_mean(value: _Value) -> bool:
    example = value.example
    if example is None or not example.is_floating_point():
        return False
    return example.dim() > 0 or (value.parameter.dim() == 0 and value.key != "step")


def _bytes_of(tensor: Tensor | None) -> int:
    return _NUMBER.size if tensor is None else tensor.numel() * tensor.element_size()


def _as_bytes(value: Any, size: int) -> bytes:
    if value is None:
        return bytes(size)
    if isinstance(value, Tensor):
        return bytes(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return _NUMBER.pack(value)


def _fill(tensor: Tensor, values: memoryview) -> memoryview:
    """Set a tensor from its bytes, and return those that follow."""
    size = _bytes_of(tensor)
    tensor.copy_(torch.frombuffer(bytearray(values[:size]), dtype=tensor.dtype).view(tensor.shape))
    return values[size:]
