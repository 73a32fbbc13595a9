"""What the patches share: the recorder, the guard, the trackers; and the helper that replaces an attribute."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from starprof.hook.arrival import ArrivalTracker
from starprof.hook.boundary import Enter, Guard, Leave
from starprof.hook.recorder import Recorder
from starprof.hook.roots import Roots


class Hook:
    """One per process."""

    def __init__(self, recorder: Recorder, guard: Guard) -> None:
        self.recorder = recorder
        self.guard = guard
        self.arrival = ArrivalTracker(recorder, guard)
        self.roots = Roots(recorder, guard)
        recorder.at_step_end += [self.arrival.end_of_step, self.roots.end_of_step]

    def wrap(self, holder: Any, name: str, enter: Enter, leave: Leave | None = None) -> None:
        """Replace `holder.name` by a wrapped version; nothing if this torch does not have it."""
        original = getattr(holder, name, None)
        if original is not None:
            setattr(holder, name, self.guard.around(original, enter, leave))

    def span(self, phase: int) -> tuple[Callable[[Any, Any], int | None], Callable[[int, Any], None]]:
        """Enter and leave functions for a plain span of one phase."""
        recorder = self.recorder
        begin, end = recorder.machine.enter, recorder.machine.leave

        def enter(_args: Any, _kwargs: Any) -> int | None:
            return begin(phase) if get_ident() == recorder.owner or recorder.counts() else None

        def leave(token: int, _result: Any) -> None:
            end(token)

        return enter, leave
