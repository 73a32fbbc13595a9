"""What an optimizer's step becomes: push the gradients, wait to be released, take the parameters."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

from starprof.errors import StarprofError, TransportError
from starprof.ps.headlink import HeadLink
from starprof.ps.messages import Arrive, Hi, Leave, Meet, Model, Place, Places, Push, Refused, Want, Welcome
from starprof.ps.optimizers import describe, hyper_of
from starprof.ps.worker.flat import Flat
from starprof.ps.worker.pipe import Pipe
from starprof.sync.policies import Gradient

T = TypeVar("T")

PATIENCE_S = 300.0
"""A job whose parameter server can't be reached for so long is over."""


class ServerLostError(StarprofError):
    """The parameter server is gone: nothing can be trained without it."""


class Worker:
    """One per process and model. The training's thread uses it.

    Attributes:
        rank: of the worker.
        version: of the parameters that the model has now.
        number: of the newest gradient.
        waited_s: in the last step, from handing the gradient in to having the parameters.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        rank: int,
        address: tuple[str, int],
        secret: bytes,
        *,
        half: str = "",
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Prepare; `begin` connects."""
        self.rank = rank
        self.version = 0
        self.number = -1
        self.waited_s = 0.0
        self.optimizer = optimizer
        self._spec, self._parameters = describe(model, optimizer)
        self._half = half
        self._patience_s = patience_s
        self._secret = secret
        self._run = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._hi = Hi(rank, self._run, self._spec.digest)
        self._news = threading.Condition()
        self._welcome: Welcome | None = None
        self._places = Places(0, ())
        self._refused = ""
        self._flat: Flat | None = None
        self._pipes: list[Pipe] = []
        self._pool: ThreadPoolExecutor | None = None
        self._link = HeadLink(address, secret, lambda: self._hi, self._heard)
        self._over = False

    # The beginning and the end.

    def begin(self) -> None:
        """Take part: the model has the server's parameters when this returns.

        Raises:
            StarprofError: that can't be.
        """
        self._link.start()
        welcome = self._wait(lambda: self._welcome)
        if welcome.first:
            self._link.say(Model(self._spec.digest), memoryview(self._spec.to_json()))
        self._wait(lambda: self._places.shards or None)
        self._connect()
        assert self._flat is not None
        flat = self._flat
        if welcome.first:
            self._on_all(lambda pipe: pipe.first(flat.values(pipe.shard)))
            welcome = self._wait(lambda: None if self._welcome is None or self._welcome.first else self._welcome)
        self._hi = Hi(self.rank, self._run, self._spec.digest, welcome.number)
        self._take(welcome.number)

    def _connect(self) -> None:
        shards = self._places.shards
        self._flat = Flat(self._spec, self._parameters, shards, self._half)
        meet = Meet(self.rank, self._run)
        self._pipes = [
            Pipe(meet, shard, self._secret, self._flat.into(shard), self._place_of, self._check)
            for shard in range(shards)
        ]
        if shards > 1:
            self._pool = ThreadPoolExecutor(shards, "starprof-ps")

    def close(self) -> None:
        """The training is over here; the others go on without this worker."""
        if self._over:
            return
        self._over = True
        self._link.say(Leave())
        self._link.close()
        for pipe in self._pipes:
            pipe.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def forget(self) -> None:
        """In a forked child: the connections are the parent's."""
        self._over = True

    def pace(self, bytes_per_s: float | None) -> None:
        """Push no faster than this to all shards together; None: as fast as possible."""
        for pipe in self._pipes:
            pipe.pace(None if bytes_per_s is None else bytes_per_s / len(self._pipes))

    # A step.

    def step(self) -> None:
        """Hand in the model's gradients and wait for the parameters that follow.

        Raises:
            ServerLostError: the parameter server can't be reached any more, or wants nothing of this worker.
        """
        flat = self._flat
        assert flat is not None
        flat.gather()
        self.number += 1
        gradient = Gradient(self.rank, self.number, self.version)
        self._hi = Hi(self.rank, self._run, self._spec.digest, number=self.number)
        self._on_all(
            lambda pipe: pipe.push(Push(gradient, self._half, flat.unused(pipe.shard)), flat.gradients(pipe.shard))
        )
        hyper = hyper_of(self.optimizer)
        began_s = time.monotonic()
        self._hi = Hi(self.rank, self._run, self._spec.digest, self.number, gradient, hyper, self.number)
        self._link.say(Arrive(gradient, hyper))
        self._take(self.number)
        self.waited_s = time.monotonic() - began_s

    def pull(self) -> None:
        """Take the newest parameters without handing anything in, before an evaluation or at the end."""
        self.number += 1
        self._hi = Hi(self.rank, self._run, self._spec.digest, self.number, number=self.number)
        self._link.say(Want(self.number))
        self._take(self.number)

    def _take(self, number: int) -> None:
        got = self._on_all(lambda pipe: pipe.pull(number))
        # After a shard was another process it may be ahead of the others by what has been done since.
        self.version = min(one.version for one in got)
        self.number = max(one.number for one in got)
        self._hi = Hi(self.rank, self._run, self._spec.digest, number=self.number)
        assert self._flat is not None
        self._flat.load()

    def _on_all(self, do: Callable[[Pipe], T]) -> list[T]:
        if self._pool is None:
            return [do(pipe) for pipe in self._pipes]
        return list(self._pool.map(do, self._pipes))

    # The head.

    def _heard(self, message: Any, payload: memoryview | None) -> None:  # noqa: ARG002
        with self._news:
            match message:
                case Welcome():
                    self._welcome = message
                case Places():
                    self._places = message
                case Refused(reason=reason):
                    self._refused = reason
            self._news.notify_all()

    def _place_of(self, shard: int) -> Place | None:
        return next((one for one in self._places.places if one.shard == shard and one.port), None)

    def _wait(self, known: Callable[[], T | None]) -> T:
        while True:
            with self._news:
                found = known()
                if found is not None:
                    return found
                self._news.wait(0.5)
            self._check()

    def _check(self) -> None:
        """Raises: there is no sense in waiting any longer."""
        refused = self._refused or self._link.rejected
        if refused:
            raise ServerLostError(f"the parameter server does not take this worker: {refused}")
        since_s = self._link.failing_since_s
        if since_s is not None and time.monotonic() - since_s > self._patience_s:
            raise ServerLostError(f"the parameter server could not be reached for {self._patience_s:.0f} s")
        if self._over:
            raise ServerLostError("this worker has left its parameter server")


def quiet_close(worker: Worker) -> None:
    """At the end of the process: whatever goes wrong now matters to nobody."""
    with contextlib.suppress(TransportError, OSError):
        worker.close()
