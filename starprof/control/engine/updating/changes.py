"""Notices that code which isn't known changes gradients before a step, or parameters outside of one.

Every tensor counts the operations that write to it; what is written behind its back (`p.grad.data.clamp_()`) only a
checksum shows, which reads the whole gradient and is for some updates only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from starprof.control.engine.dtensors import local

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Note = tuple[int, int] | None


class Finding:
    """Yes or no, once the device that finds it has come to it: nobody waits for that in a step."""

    def __init__(self, found: Tensor) -> None:
        """It is on its way."""
        self._found = found
        self._copied: Any = None
        if found.is_cuda:
            self._found = torch.empty((), dtype=found.dtype, pin_memory=True)
            self._found.copy_(found, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(found.device))

    @property
    def is_there(self) -> bool:
        """Whether it can be had without waiting."""
        return self._copied is None or bool(self._copied.query())

    def __bool__(self) -> bool:
        if self._copied is not None:
            self._copied.synchronize()
        return bool(self._found)


class Changes:
    """Remembers how gradients and parameters were when something known had last to do with them."""

    def __init__(self) -> None:
        """Nothing is noted: nothing has changed."""
        self._gradients: list[Note] | None = None
        self._parameters: list[int] | None = None
        self._checksums: Tensor | None = None

    def note(self, parameters: Sequence[Parameter], *, checksums: bool = False) -> None:
        """From here on they must not change."""
        self._gradients = [_note(parameter.grad) for parameter in parameters]
        self._parameters = [parameter._version for parameter in parameters]
        self._checksums = _checksums(parameters) if checksums else None

    def forget(self) -> None:
        """Changes are of no interest."""
        self._gradients = self._parameters = self._checksums = None

    def of_gradients(self, parameters: Sequence[Parameter]) -> str:
        """What has changed gradients since they were noted, "" if nothing has as far as tensors tell."""
        noted = self._gradients
        if noted is None or len(noted) != len(parameters):
            return ""
        now = [_note(parameter.grad) for parameter in parameters]
        if now == noted:
            return ""
        gone = any(was is not None and note is None for was, note in zip(noted, now, strict=True))
        return "sets gradients to None (zero_grad?)" if gone else "changes gradients"

    def behind_their_back(self, parameters: Sequence[Parameter]) -> Finding | None:
        """Whether the noted gradients, which are the same tensors still, have other values; None: not to be known."""
        noted, now = self._checksums, None if self._checksums is None else _checksums(parameters)
        return None if noted is None or now is None else Finding((noted != now).any())

    def of_parameters(self, parameters: Sequence[Parameter]) -> bool:
        """Whether parameters were written to since they were noted."""
        noted = self._parameters
        return noted is not None and noted != [parameter._version for parameter in parameters]


def _note(gradient: Tensor | None) -> Note:
    return None if gradient is None else (id(gradient), local(gradient)._version)


def _checksums(parameters: Sequence[Parameter]) -> Tensor | None:
    """The bits of each gradient, added up; None where there are none."""
    sums = []
    for parameter in parameters:
        gradient = local(parameter.grad)
        if gradient is not None and not gradient.is_sparse and not gradient.is_complex():
            sums.append(_bits(gradient.detach().contiguous().view(-1)).sum(dtype=torch.int64))
    return torch.stack([value.to(sums[0].device) for value in sums]) if sums else None


def _bits(values: Tensor) -> Tensor:
    """As whole numbers: of eight bytes where that goes, which are added up four times as fast."""
    size = values.element_size()
    if (values.storage_offset() * size) % 8 == 0 and (values.numel() * size) % 8 == 0:
        return values.view(torch.int64)
    return values.view(_INTEGERS[size])
