"""Records of steps from what the lines of a log have told: which form tells the times best, and what restarts void."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from starprof.importers.logs.patterns import FORMS
from starprof.importers.logs.steps import Numbering, numbering

MIN_RECORDS = 3
SAME_STEP_SHARE = 0.3
SAME_TIME = 0.03
"""Processes that write the same step into one log agree on its time to this, or their times are not the job's."""
LATE_LINES = 2
"""Steps that a line of such a process may come behind those of the others."""
CLOCK_PRECISION = 30.0
"""A time from clock stamps spans this many of the clock's own digits: an error of about 3 %."""
_DAY_S = 86_400.0

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FIELDS = ("line", "step", "epoch", "total", "time", "bare", "rate", "data", "samples", "tokens", "stamp", "resolution")
BAR_FORM, RICH_FORM = "bar", "rich bar"


@dataclass(frozen=True)
class Records:
    """Steps of one process, or of the job.

    Attributes:
        steps: rising, shape (S,).
        columns: columns of table `step`, shape (S,) each; `dur_us` is among them.
        framework: whose form the log has.
        origin: where the times come from, in words.
        lines: line number of each record, shape (S,).
        restarts: first steps of later attempts.
        repeated: records that a later attempt made void.
        began: clock stamp of the first record, infinite when there is none.
        directness: how directly the times are told, 0 = stated; see `Stream.records`.
    """

    steps: Ints
    columns: Mapping[str, Floats]
    framework: str
    origin: str
    lines: Ints
    restarts: tuple[int, ...] = ()
    repeated: int = 0
    began: float = math.inf
    directness: int = 0

    def followed_by(self, later: Records) -> Records:
        """This log and one that was written after it: the later attempt counts."""
        kept = self.steps < later.steps[0]
        names = {*self.columns, *later.columns}
        nothing = (np.full(len(self.steps), np.nan), np.full(len(later.steps), np.nan))
        return replace(
            self,
            steps=np.r_[self.steps[kept], later.steps],
            columns={n: np.r_[self.columns.get(n, nothing[0])[kept], later.columns.get(n, nothing[1])] for n in names},
            lines=np.r_[self.lines[kept], later.lines],
            restarts=(*(s for s in self.restarts if s < later.steps[0]), int(later.steps[0]), *later.restarts),
            repeated=self.repeated + later.repeated + int((~kept).sum()),
        )


@dataclass
class Stream:
    """Records of one rank (or of lines without one), by form."""

    rows: dict[int | str, array[float]] = field(default_factory=dict)

    def add(self, form: int | str, values: Mapping[str, float]) -> None:
        """Keep a record."""
        kept = self.rows.setdefault(form, array("d"))
        kept.extend(values.get(name, math.nan) for name in FIELDS)

    def records(self, batch: float) -> Records | None:
        """The records of the form that tells the times best; None when none does.

        Args:
            batch: samples of the job's step as the log's head tells, NaN when it does not.
        """
        tables = {
            form: dict(zip(FIELDS, np.array(kept, np.float64).reshape(-1, len(FIELDS)).T, strict=True))
            for form, kept in self.rows.items()
        }
        makers: Sequence[Callable[[int | str, Table], Records | None]]
        makers = (_stated, partial(_from_rates, batch=batch), _from_bars, _from_stamps)
        for directness, make in enumerate(makers):
            made = [r for form, table in tables.items() if (r := make(form, table)) is not None]
            if made:
                return replace(max(made, key=lambda r: len(r.steps)), directness=directness)
        return None


def most_telling(found: Iterable[Records]) -> Records:
    """Of records of one job the longest of those that tell the times most directly, short ones aside."""
    every = list(found)
    most = max(len(records.steps) for records in every)
    long = [records for records in every if 2 * len(records.steps) >= most]
    return min(long, key=lambda records: (records.directness, -len(records.steps)))


Table = Mapping[str, Floats]


def _stated(form: int | str, table: Table) -> Records | None:
    """Times as the lines state them."""
    told = np.isfinite(table["time"]) & (table["time"] > 0)
    if isinstance(form, str) or told.sum() < MIN_RECORDS:
        return None
    table = {name: values[told] for name, values in table.items()}
    general = FORMS[form].framework == "a log"
    agree = _agree(table["step"], table["time"])
    table = _one_a_step(table)
    if general and _is_clock(table["time"]):
        return _by_clock(form, table, table["time"] / 1e6, "from the running time that its lines tell")
    if not agree:
        return None  # several workers write into it, and nothing known tells which
    scale, unit = _unit(table) if np.nanmax(table["bare"], initial=0.0) > 0 else (1.0, "")
    times = table["time"] * scale
    steps = numbering(table["step"], table["epoch"], table["total"])
    columns = {"dur_us": times, "data_wait_us": np.minimum(table["data"], times)}
    return _records(form, table, steps, columns, f"as its lines state them{unit}")


def _unit(table: Table) -> tuple[float, str]:
    """What makes times without a unit, read as seconds, true, by the clock stamps beside them; and how it is said."""
    further = np.flatnonzero(np.diff(table["step"]) > 0)
    apart = np.diff(table["stamp"])[further] / np.diff(table["step"])[further]
    apart = apart[np.isfinite(apart) & (apart > 0)]
    long_enough = np.ptp(table["stamp"]) >= CLOCK_PRECISION * np.nanmax(table["resolution"], initial=1e-3)
    if len(apart) < MIN_RECORDS or not long_enough:
        return 1.0, " (no unit: taken as seconds)"
    ratio = float(np.median(table["time"]) / 1e6 / np.median(apart))
    for scale, name in ((1e-6, "microseconds"), (1e-3, "milliseconds")):
        if ratio * scale * 1e3**0.5 > 1.0:
            return scale, f" (no unit: {name} by the clock stamps beside them)"
    return 1.0, ""


def _several(steps: Floats) -> bool:
    """Whether several processes write their lines of each step into the log."""
    return len(steps) > 1 and bool((np.diff(steps) == 0).mean() > SAME_STEP_SHARE)


def _agree(steps: Floats, times: Floats) -> bool:
    """Whether processes that write the same steps tell the same times: those of the job."""
    if not _several(steps):
        return True
    begins = np.r_[0, np.flatnonzero(np.diff(steps)) + 1]
    apart = np.maximum.reduceat(times, begins) - np.minimum.reduceat(times, begins)
    return bool(np.median(apart / np.maximum.reduceat(times, begins)) <= SAME_TIME)


def _one_a_step(table: Table) -> Table:
    """The last of the lines that several processes write for each step; other tables as they are."""
    if not _several(table["step"]):
        return table
    highest = np.maximum.accumulate(table["step"])
    behind = (table["step"] < highest) & (table["step"] >= highest - LATE_LINES)
    rows = np.flatnonzero(~behind)
    rows = rows[np.r_[np.diff(table["step"][rows]) != 0, True]]
    return {name: values[rows] for name, values in table.items()}


def _is_clock(times: Floats) -> bool:
    """Times that only grow are the time since the start, not that of a step."""
    rising = np.diff(times) > 0
    return bool(len(times) >= 8 and rising.mean() >= 0.98 and times[-1] > 3.0 * times[0])


def _from_rates(form: int | str, table: Table, batch: float) -> Records | None:
    """Times from steps or samples per second."""
    told = np.isfinite(table["rate"]) & (table["rate"] > 0)
    if isinstance(form, str) or told.sum() < MIN_RECORDS:
        return None
    table = {name: values[told] for name, values in table.items()}
    if not _agree(table["step"], table["rate"]):
        return None
    table = _one_a_step(table)
    in_samples = FORMS[form].rate_in_samples
    sizes = np.where(np.isnan(table["samples"]), batch, table["samples"])
    if in_samples and np.isnan(sizes).any():
        return None
    durations = 1e6 * (sizes if in_samples else 1.0) / table["rate"]
    steps = numbering(table["step"], table["epoch"], table["total"])
    what = "samples" if in_samples else "steps"
    return _records(form, table, steps, {"dur_us": durations}, f"from {what} per second")


def _from_bars(form: int | str, table: Table) -> Records | None:
    if isinstance(form, int) or len(table["step"]) < MIN_RECORDS:
        return None
    return _by_clock(form, table, table["stamp"], "from the elapsed time of its progress bar (whole seconds)")


def _from_stamps(form: int | str, table: Table) -> Records | None:
    told = np.isfinite(table["stamp"])
    if isinstance(form, str) or told.sum() <= MIN_RECORDS:
        return None
    table = _one_a_step({name: values[told] for name, values in table.items()})
    clock = table["stamp"]
    if clock.max() <= _DAY_S:  # no dates: midnight sets the clock back
        clock = clock + _DAY_S * np.cumsum(np.r_[False, np.diff(clock) < -0.5 * _DAY_S])
    return _by_clock(form, table, clock, "from the clock stamps of its lines")


def _by_clock(form: int | str, table: Table, clock: Floats, origin: str) -> Records | None:
    """Time per step between records that are far enough apart for the clock's digits."""
    steps = numbering(table["step"], table["epoch"], table["total"])
    resolution = np.nanmax(table["resolution"], initial=1e-3)
    picked, before = _anchors(steps.parts, clock, max(CLOCK_PRECISION * resolution, 1e-9))
    if len(picked) < MIN_RECORDS:
        return None
    spent = clock[picked] - clock[before]
    durations = np.full(len(clock), np.nan)
    durations[picked] = 1e6 * spent / np.maximum(table["step"][picked] - table["step"][before], 1.0)
    return _records(form, table, steps, {"dur_us": durations}, origin)


def _anchors(parts: Ints, clock: Floats, apart: float) -> tuple[Ints, Ints]:
    """Records at least `apart` seconds after the one before within the same part, and that one."""
    picked: list[int] = []
    before: list[int] = []
    bounds = np.r_[0, np.flatnonzero(np.diff(parts)) + 1, len(parts)]
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        times = np.maximum.accumulate(clock[first:end])
        at = 0
        while (following := int(np.searchsorted(times, times[at] + apart))) < end - first:
            picked.append(first + following)
            before.append(first + at)
            at = following
    return np.array(picked, np.int64), np.array(before, np.int64)


def _records(
    form: int | str, table: Table, steps: Numbering, columns: Mapping[str, Floats], origin: str
) -> Records | None:
    """Records of the attempts that count, without columns that nobody told."""
    usable = steps.kept & np.isfinite(columns["dur_us"]) & (columns["dur_us"] > 0)
    if usable.sum() < MIN_RECORDS:
        return None
    sizes = {name: table[name] for name in ("samples", "tokens")}
    kept = {n: v[usable] for n, v in {**columns, **sizes}.items()}
    bar = form in (BAR_FORM, RICH_FORM)
    began = table["stamp"][0] if not bar and np.isfinite(table["stamp"][0]) else math.inf
    return Records(
        steps=steps.numbers[usable],
        columns={n: v for n, v in kept.items() if np.isfinite(v).any()},
        framework="a progress bar" if bar else FORMS[cast("int", form)].framework,
        origin=origin,
        lines=table["line"][usable].astype(np.int64),
        restarts=steps.restarts,
        repeated=steps.repeated,
        began=float(began),
    )
