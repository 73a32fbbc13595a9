"""Obeys orders between two steps, in the thread that trains: no thread, no connection, one `stat` a few times a second.

Nothing here reaches the user's loop: what fails is counted by the guard, and an order that can't be obeyed is reported.
A delay is a sleep of at most `MOST_DELAY_S`, and counts as waiting in the step's record, not as the rank's own work.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starprof.control.actuators import orders
from starprof.control.actuators.change import RefusedError
from starprof.control.actuators.inrank.levers import Collecting, Lever, Pacing, Threads, connections
from starprof.control.actuators.inrank.seen import traffic
from starprof.control.actuators.job import check_allowed
from starprof.control.actuators.processes import start_of
from starprof.hook.phases import BLOCKED
from starprof.hook.recorder import Recorder
from starprof.model import env

LOOK_EVERY_S = 0.2
MOST_DELAY_S = 10.0
_SECOND_NS = 1_000_000_000
ACTUATOR_OF = {
    orders.DELAY: "delay",
    orders.THREADS: "threads",
    orders.PACE: "pace",
    orders.COLLECT: "collect",
    orders.SPLIT: "resplit",
}
"""Name on the job's list of each setting; reports change nothing."""


class _Delay:
    def __init__(self) -> None:
        self.seconds = 0.0

    def set(self, value: Any) -> str:
        if type(value) not in (int, float) or not 0 <= value <= MOST_DELAY_S:
            raise ValueError(f"a delay is a number of seconds up to {MOST_DELAY_S:g}")
        self.seconds = float(value)
        return f"every step is {self.seconds:g} s longer"

    def back(self) -> str:
        self.seconds = 0.0
        return ""


class _Watch:
    def set(self, value: Any) -> str:
        return f"reports: {value}"

    def back(self) -> str:
        return ""


class Obeying:
    """One rank's."""

    def __init__(self, recorder: Recorder, spool: Path, environ: Mapping[str, str] = os.environ) -> None:
        self._recorder = recorder
        self._spool = spool
        self._listed = environ.get(env.ACTUATORS)
        self._begin()

    def _begin(self) -> None:
        self._path = orders.path_in(self._spool)
        self._delay, self._collecting = _Delay(), Collecting()
        self._levers: dict[str, Lever] = {
            orders.DELAY: self._delay,
            orders.THREADS: Threads(),
            orders.PACE: Pacing(),
            orders.COLLECT: self._collecting,
            orders.SPLIT: _split_lever(),
            orders.WATCH: _Watch(),
        }
        self._seen: tuple[int, int] | None = None
        self._orders = orders.Orders()
        self._held: dict[str, Any] = {}
        self._told: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._left: list[str] = []
        self._last = (-1, time.monotonic_ns())
        self._looked_ns = 0
        self._reported = 0

    def forked(self) -> None:
        """A child of the rank: it collects its garbage itself again, and obeys nothing before it trains."""
        if orders.COLLECT in self._held:
            self._collecting.back()
        self._begin()

    def end_of_step(self, number: int) -> int:
        """See `Recorder.at_step_end`: the step at which it is to be called next."""
        now_ns = time.monotonic_ns()
        before, then_ns = self._last
        self._last = (number, now_ns)
        if now_ns - self._looked_ns >= LOOK_EVERY_S * _SECOND_NS:
            self._looked_ns = now_ns
            self._look(number, now_ns)
        self._collecting.step(before, number)
        if self._delay.seconds:
            self._sleep(self._delay.seconds)
        if orders.DELAY in self._held or orders.COLLECT in self._held:
            return number + 1
        return number + _steps_until_next_look(number - before, (now_ns - then_ns) / _SECOND_NS)

    def _sleep(self, seconds: float) -> None:
        token = self._recorder.enter(BLOCKED)
        try:
            time.sleep(seconds)
        finally:
            if token is not None:
                self._recorder.machine.leave(token)

    def _look(self, number: int, now_ns: int) -> None:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - a few times a second in the user's loop
            seen = (found.st_mtime_ns, found.st_ino)
        except OSError:
            seen = None
        if seen != self._seen:
            self._seen = seen
            self._orders = self._read()
        wanted = self._orders.of(self._recorder.rank, now_ns)
        changed = self._orders.serial != self._reported
        for name in self._held.keys() - wanted.keys():
            changed = True
            self._go_back(name)
        for name, value in wanted.items():
            if self._held.get(name) != value or (name == orders.PACE and name not in self._refused):
                changed |= self._held.get(name) != value
                self._hold(name, value)
        if changed or orders.WATCH in self._held:
            self._report(number, now_ns)

    def _read(self) -> orders.Orders:
        try:
            return orders.read_orders(self._path)
        except (ValueError, KeyError, TypeError, AttributeError):
            return orders.Orders()

    def _hold(self, name: str, value: Any) -> None:
        self._held[name] = value
        try:
            if name in ACTUATOR_OF:
                check_allowed(ACTUATOR_OF[name], self._listed)
            self._told[name] = self._levers[name].set(value)
            self._refused.pop(name, None)
        except (ValueError, RefusedError, OSError) as error:
            self._refused[name] = str(error)

    def _go_back(self, name: str) -> None:
        del self._held[name]
        self._told.pop(name, None)
        if self._refused.pop(name, None) is None:
            left = self._levers[name].back()
            if left:
                self._left.append(left)

    def _report(self, number: int, now_ns: int) -> None:
        self._reported = self._orders.serial
        sent, received = traffic(connections())
        told = {
            "pid": os.getpid(),
            "start": start_of(os.getpid()),
            "rank": self._recorder.rank,
            "serial": self._orders.serial,
            "step": number,
            "mono_ns": now_ns,
            "holds": {name: value for name, value in self._held.items() if name not in self._refused},
            "told": self._told,
            "refused": self._refused,
            "left": self._left[-10:],
            "sent_bytes": sent,
            "received_bytes": received,
        }
        orders.replace_file(orders.report_path(self._spool, os.getpid()), json.dumps(told))


def _split_lever() -> Lever:
    from starprof.control.actuators.inrank.split import lever

    return lever


def _steps_until_next_look(steps: int, seconds: float) -> int:
    """By how long the last ones took, and never so many that a job which gets slow is deaf for long."""
    if steps <= 0 or seconds <= 0:
        return 1
    return max(1, min(2 * steps + 1, round(LOOK_EVERY_S * steps / seconds)))


def install(recorder: Recorder, attempt: Callable[..., Any]) -> None:
    """Let a rank obey; `attempt` takes what goes wrong."""
    obeying = Obeying(recorder, recorder.spool.root)

    def at_step_end(number: int) -> int:
        following = attempt(obeying.end_of_step, number)
        return number + 64 if following is None else int(following)

    recorder.at_step_end.append(at_step_end)
    os.register_at_fork(after_in_child=obeying.forked)
