"""The cells that move a running job from mode to mode, and what a step cost that a switch fell into."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from starprof.control import controlsocket
from starprof.errors import StarprofError

LOOK_EVERY_S = 0.1
SPACED_S = 2.0
"""From one wish to the next."""
FIRST_S = 4.0
"""The first wish, after the start of the training, comes no earlier."""
BEFORE_S = 1.5
"""Steps of so long before a wish say how long a step takes otherwise."""
AFTER_STEPS = 3
"""Steps after the switch that may still pay for it."""


def plan(ranks: int) -> list[tuple[str, dict[str, Any]]]:
    """Modes, one after the other: native steps to rounds, rounds to rounds, and back, twice."""
    m_sync, static_x = ("m-sync", {"m": ranks - 1}), ("static-x", {"x": ranks - 1})
    native: tuple[str, dict[str, Any]] = ("native", {})
    return [("ssgd", {}), m_sync, static_x, ("ssgd", {}), native, m_sync, native, m_sync]


class Switcher(threading.Thread):
    """Asks for one mode after the other, as `starprof ctl` does, but without the start of a program, which takes cores.

    Attributes:
        asked: (moment, mode) of each wish.
        failed: what the coordinator complained about.
    """

    def __init__(self, job: Path, modes: Sequence[tuple[str, dict[str, Any]]]) -> None:
        super().__init__(daemon=True)
        self.job = job
        self.modes = modes
        self.asked: list[tuple[float, str]] = []
        self.failed: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        at_s = time.monotonic() + FIRST_S
        while not self._answers() and not self.over.wait(LOOK_EVERY_S):
            pass
        at_s = max(at_s, time.monotonic() + SPACED_S)
        for mode, options in self.modes:
            if self.over.wait(max(0.0, at_s - time.monotonic())):
                return
            at_s += SPACED_S
            self.asked.append((time.monotonic(), mode))
            try:
                answer = self._ask(do="mode", mode=mode, options=options, reason="")
            except StarprofError as error:
                answer = {"ok": False, "error": str(error)}
            if not answer["ok"]:
                self.failed.append(f"{mode}: {answer}")

    def _answers(self) -> bool:
        """Whether the coordinator is there, and has heard all ranks."""
        try:
            return self._ask(do="status").get("state") == "native"
        except StarprofError:
            return False

    def _ask(self, **question: Any) -> dict[str, Any]:
        return controlsocket.ask(controlsocket.folder_of(self.job), question)


def costs(told: Sequence[dict[str, Any]], ranks: Sequence[Sequence[tuple[float, float]]]) -> list[dict[str, Any]]:
    """What each switch cost the ranks that are not slow.

    Args:
        told: the switches of the run file, see `runfile.switches`.
        ranks: (begin, end) of the steps of each rank, by the same clock; the last rank may be the slow one.

    Returns:
        Of each switch the median step before it, the longest step around it, and the slow rank's step, in ms.
    """
    found = []
    for switch in told:
        asked_s = switch["at_s"] - switch["took_ms"] / 1e3
        before: list[float] = []
        longest = 0.0
        for steps in ranks[:-1]:
            before += _just_before(asked_s, steps)
            during = [end - begin for begin, end in steps if end > asked_s and begin < switch["at_s"]]
            after = [end - begin for begin, end in steps if begin >= switch["at_s"]][:AFTER_STEPS]
            longest = max([longest, *during, *after])
        slowest = _just_before(asked_s, ranks[-1])
        if before and slowest:
            times_s = {"before_ms": median(before), "longest_ms": longest, "slowest_ms": median(slowest)}
            found.append({**switch, **{name: round(1e3 * value, 3) for name, value in times_s.items()}})
    return found


def _just_before(moment_s: float, steps: Sequence[tuple[float, float]]) -> list[float]:
    return [end - begin for begin, end in steps if moment_s - BEFORE_S <= begin and end <= moment_s]


def steps_of(rank: dict[str, Any]) -> list[tuple[float, float]]:
    """(begin, end) of the steps that a rank has told of, but for those that hold an evaluation."""
    ends_s, epochs_s = rank["ends_s"], rank["epochs_s"]
    whole = [(a, b) for a, b in pairwise(ends_s) if not any(a <= epoch_s < b for epoch_s in epochs_s)]
    return [(rank["began_s"] + a, rank["began_s"] + b) for a, b in whole]
