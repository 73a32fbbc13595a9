"""Notices that code which isn't known changes gradients before a step, or parameters outside of one.

Every tensor counts the operations that write to it; what is written behind its back (`p.grad.data.clamp_()`) only a
checksum shows, which reads the whole gradient and is for some updates only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Note = tuple[int, int] | None


class Changes:
    """Remembers how gradients and parameters were when something known had last to do with them."""

    def __init__(self) -> None:
        """Nothing is noted: nothing has changed."""
        self._gradients: list[Note] | None = None
        self._parameters: list[int] | None = None
        self._checksums: list[int] | None = None

    def note(self, parameters: Sequence[Parameter], *, checksums: bool = False) -> None:
        """From here on they must not change."""
        self._gradients = [_note(parameter.grad) for parameter in parameters]
        self._parameters = [parameter._version for parameter in parameters]
        self._checksums = _checksums(parameters) if checksums else None

    def forget(self) -> None:
        """Changes are of no interest."""
        self._gradients = self._parameters = self._checksums = None

    def of_gradients(self, parameters: Sequence[Parameter]) -> str:
        """What has changed gradients since they were noted, "" if nothing has."""
        noted = self._gradients
        if noted is None or len(noted) != len(parameters):
            return ""
        now = [_note(parameter.grad) for parameter in parameters]
        if now != noted:
            gone = any(was is not None and note is None for was, note in zip(noted, now, strict=True))
            return "sets gradients to None (zero_grad?)" if gone else "changes gradients"
        if self._checksums is not None and _checksums(parameters) != self._checksums:
            return "changes gradients through .data"
        return ""

    def of_parameters(self, parameters: Sequence[Parameter]) -> bool:
        """Whether parameters were written to since they were noted."""
        noted = self._parameters
        return noted is not None and noted != [parameter._version for parameter in parameters]


def _note(gradient: Tensor | None) -> Note:
    return None if gradient is None else (id(gradient), gradient._version)


def _checksums(parameters: Sequence[Parameter]) -> list[int]:
    """The bits of each gradient, added up."""
    sums = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and not gradient.is_sparse and not gradient.is_complex():
            bits = gradient.detach().contiguous().view(_INTEGERS[gradient.element_size()])
            sums.append(bits.sum(dtype=torch.int64))
    if not sums:
        return []
    return [int(value) for value in torch.stack([value.to(sums[0].device) for value in sums]).tolist()]
