"""The loss of a training, for whoever watches over it: taken from the root of `backward`, read a step later.

Some four times a second a copy of that one number is begun where it is; nothing waits for it, and it is sent when a
later step finds it here. There is no collective, and the graph is not kept alive.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from starprof.control.engine.roles import Link
from starprof.hook.boundary import Guard
from starprof.sync.protocol.messages import Health

EVERY_S = 0.25


class LossLooks:
    """One rank's; the training thread calls it.

    Attributes:
        link: to the coordinator.
    """

    link: Link

    def __init__(self, rank: int, guard: Guard, scale: Callable[[], torch.Tensor | None]) -> None:
        """Nothing is looked at yet.

        Args:
            rank: whose.
            guard: what fails here must not reach the training.
            scale: of the loss, at present; None: there is none.
        """
        self._rank = rank
        self._guard = guard
        self._scale = scale
        self._due_s = 0.0
        self._copy: torch.Tensor | None = None
        self._event: Any = None

    def before_backward(self, roots: Any) -> None:
        """A backward pass from these begins."""
        if self._copy is None and time.monotonic() >= self._due_s:
            self._guard.attempt(self._begin, roots)

    def after_step(self, version: int) -> None:
        """A step is over; parameters are of this version."""
        if self._copy is not None:
            self._guard.attempt(self._send, version)

    def _begin(self, roots: Any) -> None:
        root = roots if isinstance(roots, torch.Tensor) else roots[0] if len(roots) == 1 else None
        if root is None or root.numel() != 1 or not root.is_floating_point():
            return
        self._due_s = time.monotonic() + EVERY_S
        value, scale = root.detach().reshape(1), self._scale()
        if scale is not None:
            value = value / scale.to(value.device, value.dtype)
        if not value.is_cuda:
            self._copy = value.clone()
            return
        self._copy = torch.empty(1, dtype=value.dtype, pin_memory=True)
        self._copy.copy_(value, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def _send(self, version: int) -> None:
        if self._event is not None and not self._event.query():
            return
        assert self._copy is not None
        copy, self._copy, self._event = self._copy, None, None
        value = float(copy)
        finite = math.isfinite(value)
        self.link.send(Health(self._rank, version, value if finite else None, finite))
