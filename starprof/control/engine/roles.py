"""What the engine works with, as far as it needs to know."""

from __future__ import annotations

from collections.abc import Callable
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

    def local(self) -> None:
        """The user's loop makes the next update itself, with this rank's own gradients."""
        ...

    def iteration_over(self) -> None:
        """The next iteration begins: what follows is not part of the loop's own update."""
        ...

    def keep_pace(self, iterations: int) -> None:
        """Schedules move on by iterations that others have made, and this rank has not."""
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
