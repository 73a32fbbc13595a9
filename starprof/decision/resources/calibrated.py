"""What a calibration tells a plan: what a delay frees, what it costs the job, and what another mode needs more.

All from differences to the phase without a change. What is freed by a second of delay depends on how long the delay is
beside the iteration: with use u and iteration T, a delay d frees about u d / (T + d). A plan delays by less than an
iteration, so its figure comes from those levels; that of one second in every iteration is told beside it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starprof.decision.resources.amounts import Amount, rate_words, time_words
from starprof.decision.resources.reallocation import Need, Neighbour
from starprof.model.tables.calibration import BASE, CORES, DELAY, MODE, PACE

LONG_DELAY = 0.9
"""Share of an iteration from which a delay is no measure of what plans do."""
LEAST_SENSITIVITY = 0.01


@dataclass(frozen=True, slots=True)
class Throttled:
    """The job under a bound.

    Attributes:
        kind: cores or pace.
        level: the bound.
        slowdown: of the mean iteration, 1 for none.
    """

    kind: str
    level: float
    slowdown: float


@dataclass(frozen=True)
class Calibrated:
    """A job on one node, measured.

    Attributes:
        node: which.
        workers: ranks there.
        iteration_s: mean, as it is; NaN when no step was seen.
        use: of all its ranks there.
        freed_per_s: by each rank per second of delay in each iteration, at delays of a part of an iteration.
        freed_by_second: the same at a delay of one second.
        sensitivity: seconds by which an iteration gets longer for each second of delay.
        throttled: what bounds did.
        modes: extra use of each mode.
    """

    node: int
    workers: int
    iteration_s: float
    use: Amount
    freed_per_s: Amount | None = None
    freed_by_second: Amount | None = None
    sensitivity: float | None = None
    throttled: tuple[Throttled, ...] = ()
    modes: Mapping[str, Amount] = field(default_factory=dict)

    def neighbour(self, job: str, *, slack_s: float = 0.0, step: int = 0, synchronous: bool = True) -> Neighbour | None:
        """As a plan sees it; None where what that needs was not measured."""
        if self.freed_per_s is None or self.sensitivity is None or not self.iteration_s > 0.0:
            return None
        return Neighbour(
            job, self.workers, self.iteration_s, self.freed_per_s, slack_s, self.sensitivity, step, synchronous
        )

    def need(self, job: str, mode: str, delay_share: float) -> Need | None:
        """What a mode asks of the node; None where it was not tried."""
        extra = self.modes.get(mode)
        return None if extra is None else Need(job, extra.positive(), delay_share)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "node": self.node,
            "workers": self.workers,
            "iteration_s": self.iteration_s if math.isfinite(self.iteration_s) else None,
            "use": _json(self.use),
            "freed_per_s": _json(self.freed_per_s),
            "freed_by_second": _json(self.freed_by_second),
            "sensitivity": self.sensitivity,
            "throttled": [{"kind": t.kind, "level": t.level, "slowdown": t.slowdown} for t in self.throttled],
            "modes": {mode: _json(extra) for mode, extra in self.modes.items()},
        }

    def lines(self) -> list[str]:
        """For people."""
        told = [f"{self.workers} ranks use {self.use.words}; an iteration takes {time_words(self.iteration_s)}"]
        if self.freed_per_s is not None:
            told.append(f"a rank that is delayed frees {self.freed_per_s.words} per second of delay in each iteration")
        if self.freed_by_second is not None:
            told.append(f"delayed by one second in each iteration, it frees {self.freed_by_second.words}")
        if self.sensitivity is not None:
            told.append(f"a second of delay makes an iteration {self.sensitivity:.3g} s longer")
        for one in self.throttled:
            bound = f"{one.level:.3g} cores" if one.kind == CORES else f"{rate_words(one.level)} a connection"
            told.append(f"held to {bound}, an iteration takes {one.slowdown:.3g} times as long")
        told += [f"mode {mode} needs {_more(extra)}" for mode, extra in self.modes.items()]
        return told


@dataclass(frozen=True, slots=True)
class _Phase:
    level: float
    mode: str
    iteration_s: float
    use: Amount
    ranks: int


def calibrated(rows: Iterable[Mapping[str, Any]], node: int | None = None) -> Calibrated:
    """Read the newest calibration of a node.

    Args:
        rows: of table `calibration`.
        node: which; None: the first that there is.
    """
    rows = list(rows)
    if node is None:
        node = min((int(row["node"]) for row in rows), default=0)
    phases: dict[str, list[_Phase]] = defaultdict(list)
    for (_, kind), of in sorted(_grouped(rows, node).items()):
        if kind == BASE:
            phases.clear()  # another calibration begins
        phases[kind].append(_phase(of))
    if not phases[BASE]:
        return Calibrated(node, 0, math.nan, Amount())
    base = phases[BASE][-1]
    short = [p for p in phases[DELAY] if 0 < p.level <= LONG_DELAY * base.iteration_s]
    whole = [p for p in phases[DELAY] if p.level > LONG_DELAY * base.iteration_s]
    delays = [p for p in phases[DELAY] if p.level > 0 and math.isfinite(p.iteration_s)]
    return Calibrated(
        node=node,
        workers=base.ranks,
        iteration_s=base.iteration_s,
        use=base.use,
        freed_per_s=_freed(base, short or whole),
        freed_by_second=_freed(base, whole),
        sensitivity=_sensitivity(base, delays),
        throttled=tuple(
            Throttled(kind, p.level, p.iteration_s / base.iteration_s)
            for kind in (CORES, PACE)
            for p in phases[kind]
            if base.iteration_s > 0 and math.isfinite(p.iteration_s)
        ),
        modes={p.mode: p.use - base.use for p in phases[MODE]},
    )


def _grouped(rows: Sequence[Mapping[str, Any]], node: int) -> dict[tuple[int, str], list[Mapping[str, Any]]]:
    groups: dict[tuple[int, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if int(row["node"]) == node:
            groups[int(row["mono_ns"]), str(row["kind"])].append(row)
    return groups


def _phase(rows: Sequence[Mapping[str, Any]]) -> _Phase:
    lengths = [_number(row["iteration_us"]) / 1e6 for row in rows]
    known = [length for length in lengths if math.isfinite(length)]
    use = Amount(
        sum(_or_0(row["cores"]) for row in rows),
        sum(_or_0(row["bytes_per_s"]) for row in rows),
    )
    mean = sum(known) / len(known) if known else math.nan
    return _Phase(_or_0(rows[0]["level"]), str(rows[0]["mode"]), mean, use, len(rows))


def _freed(base: _Phase, delays: Sequence[_Phase]) -> Amount | None:
    """Per worker and second: slope through the origin over the levels; noise below zero frees nothing."""
    squares = sum(p.level**2 for p in delays)
    if not squares or not base.ranks:
        return None
    cores = sum(p.level * (base.use.cores - p.use.cores) for p in delays) / squares
    rate = sum(p.level * (base.use.bytes_per_s - p.use.bytes_per_s) for p in delays) / squares
    return Amount(cores, rate).positive().times(1.0 / base.ranks)


def _sensitivity(base: _Phase, delays: Sequence[_Phase]) -> float | None:
    squares = sum(p.level**2 for p in delays)
    if not squares or not math.isfinite(base.iteration_s):
        return None
    slope = sum(p.level * (p.iteration_s - base.iteration_s) for p in delays) / squares
    return max(slope, LEAST_SENSITIVITY)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _or_0(value: Any) -> float:
    number = _number(value)
    return number if math.isfinite(number) else 0.0


def _json(amount: Amount | None) -> dict[str, float] | None:
    return None if amount is None else {"cores": amount.cores, "bytes_per_s": amount.bytes_per_s}


def _more(extra: Amount) -> str:
    parts = [
        f"{abs(extra.cores):.3g} cores {'more' if extra.cores >= 0 else 'less'}",
        f"{rate_words(abs(extra.bytes_per_s))} {'more' if extra.bytes_per_s >= 0 else 'less'}",
    ]
    return " and ".join(parts)
