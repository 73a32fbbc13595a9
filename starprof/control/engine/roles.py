"""What the engine works with, as far as it needs to know, and what it counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from starprof.sync.protocol.messages import ToCoordinator


class Link(Protocol):
    """The connection to the coordinator."""

    def send(self, message: ToCoordinator) -> None:
        """Say something; returns at once."""
        ...


class Updates(Protocol):
    """The user's own way to make an update: clipping, optimizer, schedules."""

    def hyper(self) -> Any:
        """Hyper-parameters as they are now, as a JSON value."""
        ...

    def scale(self) -> float:
        """Factor that the user's loss is scaled by."""
        ...

    def replay(self, put_gradients: Callable[[], None], hyper: Any, *, paced: bool) -> None:
        """Make an update as the user's loop does; `paced`: schedules move on with it."""
        ...

    def own(self, hyper: Any, *, paced: bool) -> None:
        """The user's loop makes the next update itself, with these hyper-parameters."""
        ...

    def skip_own(self) -> None:
        """What the user's loop does until the next synchronisation must change nothing."""
        ...

    def state(self) -> bytes:
        """Model, optimizers and what belongs to them."""
        ...

    def load(self, state: bytearray) -> None:
        """Take another rank's state."""
        ...


class Data(Protocol):
    """The batches of the loop."""

    def skip(self, iterations: int) -> None:
        """The next ones are not computed here."""
        ...


@dataclass(slots=True)
class Counts:
    """What this rank has done.

    Attributes:
        iterations: of the loop, skipped ones included.
        progress: of the training, in steps of all ranks.
        skipped: iterations that were skipped.
        handed_in: gradients.
        steps: iterations that were not skipped.
        updates: of the parameters.
        replayed: updates that were made between two of the loop's own.
        without_update: iterations of which nothing came.
        waited_s: time spent waiting for others.
    """

    iterations: int = 0
    steps: int = 0
    updates: int = 0
    progress: float = 0.0
    skipped: int = 0
    handed_in: int = 0
    replayed: int = 0
    without_update: int = 0
    waited_s: float = 0.0
