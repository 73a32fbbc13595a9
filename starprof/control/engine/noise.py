"""Squared norms of gradients, now and then, for the gradient noise scale (`starprof.sync.noise_scale`).

Native steps overwrite a rank's own gradients with the mean: in one step of `every` they are looked at in hooks that run
when a parameter's gradient is there and before DDP reduces it, and again when all are reduced. In rounds both are at
hand as flat tensors. What is found goes to the coordinator with the connection that there is; there is no collective.

A look reads all gradients twice, which takes less than a step does: so one of a hundred costs less than a hundredth.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.nn import Parameter

from starprof.control.engine.flat import Flat, dot
from starprof.control.engine.roles import Link
from starprof.hook.boundary import Guard
from starprof.model import env
from starprof.sync.policies import Gradient
from starprof.sync.protocol.messages import Close, Norms

EVERY = 100
"""Updates from one look to the next."""


def asked_every(environ: Mapping[str, str] = os.environ) -> int:
    """Updates from one look to the next, as the user wants it; 0: none are looked at."""
    told = environ.get(env.CONTROL_NOISE_EVERY, "")
    return int(told) if told.isdecimal() else EVERY


class NoiseLooks:
    """One rank's. The training thread calls the parts of native steps and `made`, any thread `contributes`.

    Attributes:
        link: to the coordinator.
    """

    link: Link

    def __init__(self, rank: int, parameters: Sequence[Parameter], guard: Guard, every: int) -> None:
        """Nothing is looked at yet.

        Args:
            rank: whose.
            parameters: that are reduced.
            guard: what fails here must not reach the training.
            every: updates from one look to the next, at least 1.
        """
        self._rank = rank
        self._parameters = tuple(parameters)
        self._guard = guard
        self._every = every
        self._hooks: list[Any] = []
        self._own: dict[int, torch.Tensor] = {}
        self._on_the_way: _OnTheWay | None = None

    # Native steps.

    def before_native(self, version: int) -> None:
        """A native step is about to begin; it makes the next version out of this one."""
        if version % self._every == 0:
            self._guard.attempt(self._arm)

    def after_native(self, version: int, scale: float) -> None:
        """Its gradients are reduced, and scaled by this."""
        if self._hooks:
            self._guard.attempt(self._look, version, scale)
        elif self._on_the_way is not None:
            self._guard.attempt(self._send_what_came)

    def _arm(self) -> None:
        self._disarm()
        for number, parameter in enumerate(self._parameters):
            note = self._guard.callback(self._noter(number))
            self._hooks.append(parameter.register_post_accumulate_grad_hook(note))

    def _noter(self, number: int) -> Callable[[torch.Tensor], None]:
        def note(parameter: torch.Tensor) -> None:
            # With accumulation it comes after every backward pass: the last one has the sum of all.
            if parameter.grad is not None:
                self._own[number] = _square(parameter.grad)

        return note

    def _disarm(self) -> None:
        hooks, self._hooks = self._hooks, []
        self._own = {}
        for hook in hooks:
            hook.remove()

    def _look(self, version: int, scale: float) -> None:
        own, there = self._own, [p.grad for p in self._parameters if p.grad is not None]
        self._disarm()
        if not own or not there:
            return
        squares = torch.stack([torch.stack(list(own.values())).sum(), torch.stack([*map(_square, there)]).sum()])
        self._on_the_way = _OnTheWay(version, squares / scale**2)
        self._send_what_came()

    def _send_what_came(self) -> None:
        """On a device they are there later: nothing waits for it."""
        way = self._on_the_way
        if way is not None and way.here():
            self._on_the_way = None
            own, update = way.values()
            if math.isfinite(own) and math.isfinite(update):
                self.link.send(Norms(self._rank, way.version, own=own, update=update, native=True))

    # Rounds.

    def contributes(self, close: Close, mine: Sequence[tuple[Gradient, Flat]]) -> None:
        """This rank's gradients go into a round."""
        if self._looks_at(close):
            self._guard.attempt(self._send_own, close, mine)

    def _send_own(self, close: Close, mine: Sequence[tuple[Gradient, Flat]]) -> None:
        for gradient, flat in mine:
            own = flat.squared_norm()
            if math.isfinite(own):
                self.link.send(Norms(self._rank, close.round, gradient.number, own))

    def made(self, closes: Sequence[Close], result: Callable[[int], Flat]) -> None:
        """These rounds are made here, in this order; their results are still at hand."""
        for before, close in pairwise([None, *closes]):
            if close is not None and close.leader == self._rank and self._looks_at(close):
                self._guard.attempt(self._send_update, before, close, result)

    def _send_update(self, before: Close | None, close: Close, result: Callable[[int], Flat]) -> None:
        flat = result(close.round)
        if len(close.gradients) > 1:
            update = flat.squared_norm()
        elif before is not None and before.round == close.round - 1 and len(before.gradients) == 1:
            (weight,), (former,) = close.weights, before.weights
            other = result(before.round)
            own, theirs = flat.squared_norm() / weight**2, other.squared_norm() / former**2
            update = own + theirs + 2 * flat.product(other) / (weight * former)
        else:
            return
        if math.isfinite(update):
            pair = len(close.gradients) == 1
            message = Norms(self._rank, close.round, attempt=close.attempt, update=update, pair=pair)
            self.link.send(message)

    def _looks_at(self, close: Close) -> bool:
        """Of rounds of a single gradient two in a row: one alone tells nothing."""
        if not close.gradients or close.steps:
            return False
        return close.round % self._every in ((0, self._every - 1) if len(close.gradients) == 1 else (0,))


class _OnTheWay:
    """Squared norms on their way from where the gradients are."""

    def __init__(self, version: int, squares: torch.Tensor) -> None:
        self.version = version
        self._event: Any = None
        self._squares = squares
        if squares.is_cuda:
            self._squares = torch.empty(squares.shape, dtype=squares.dtype, pin_memory=True)
            self._squares.copy_(squares, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def here(self) -> bool:
        """Whether they are here."""
        return self._event is None or bool(self._event.query())

    def values(self) -> list[float]:
        """Of the rank's own gradient, and of the mean of all."""
        return [float(value) for value in self._squares.tolist()]


def _square(gradient: torch.Tensor) -> torch.Tensor:
    """Squared norm in float64, on the gradient's own device."""
    flat = gradient.detach().reshape(-1)
    if flat.device.type == "cpu":
        return torch.tensor(dot(flat, flat), dtype=torch.float64)
    return torch.linalg.vector_norm(flat, dtype=torch.float64) ** 2
