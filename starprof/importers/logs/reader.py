"""Reads the lines of a log: steps in whatever form they are written, and the facts that stand between them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import numpy as np

from starprof.errors import InputError
from starprof.importers.logs.lines import stamp_of
from starprof.importers.logs.patterns import (
    BAR,
    BATCH_SIZE,
    BLOCK,
    BLOCK_RATE,
    EPOCH_OF_LABEL,
    EVALUATES,
    FORMS,
    NOT_TRAINING,
    RICH_BAR,
    SAVES,
    UNITS_US,
    WORLD_SIZE,
    Form,
)
from starprof.importers.logs.records import BAR_FORM, RICH_FORM, Records, Stream
from starprof.model import events
from starprof.model.xids import XidLine, line_of

MAX_RECORDS = 5_000_000
MAX_EVENTS = 100_000
LABEL_LENGTH = 80
SURE_RECORDS = 1000
"""After so many records of one form, other lines are no longer searched for others."""
_WORTH_A_LOOK = re.compile(r"iter|step|epoch|train|%\||\[batch=|batches_per_sec", re.IGNORECASE)
_FACTS = re.compile(r"sav|eval|valid|world|process|batch_size|NVRM: Xid", re.IGNORECASE)
MAX_XIDS = 1_000


@dataclass
class LogReader:
    """Takes the lines of one log, one after the other."""

    streams: dict[int | None, Stream] = field(default_factory=dict)
    told_events: list[tuple[int, str]] = field(default_factory=list)
    xids: list[tuple[int, int | None, XidLine]] = field(default_factory=list)
    world_size: int = 0
    batch: float = math.nan
    _line: int = 0
    _count: int = 0
    _usual: int | str | None = None
    _block: dict[str, float] = field(default_factory=dict)

    def feed(self, rank: int | None, line: str) -> None:
        """Look at one line.

        Raises:
            InputError: more records than a log can have.
        """
        self._line += 1
        found = (self._of_block(line) or self._match(line)) if _WORTH_A_LOOK.search(line) else None
        if found is None:
            if _FACTS.search(line):
                self._facts(rank, line)
            return
        form, values = found
        self._usual = form
        self._count += 1
        if self._count > MAX_RECORDS:
            raise InputError(f"the log holds more than {MAX_RECORDS} records")
        self.streams.setdefault(rank, Stream()).add(form, {**values, "line": float(self._line)})

    def finished(self) -> dict[int | None, Records]:
        """Records per rank that the log names (None: lines without one), where there are enough."""
        whole = {rank: stream.records(self.batch) for rank, stream in self.streams.items()}
        return {rank: records for rank, records in whole.items() if records is not None}

    def events(self, records: Records) -> list[tuple[int, str]]:
        """(step, kind) of what the log says about saving and evaluating: the step before the line."""
        places = np.searchsorted(records.lines, [line for line, _ in self.told_events]) - 1
        return [
            (int(records.steps[place]), kind)
            for place, (_, kind) in zip(places.tolist(), self.told_events, strict=True)
            if place >= 0
        ]

    def xids_at(self, records: Records) -> list[tuple[int, int | None, XidLine]]:
        """(step before the line, rank that the line names, what it reports) of each XID; first step for early ones."""
        places = np.searchsorted(records.lines, [line for line, _, _ in self.xids]) - 1
        return [
            (int(records.steps[max(place, 0)]), rank, xid)
            for place, (_, rank, xid) in zip(places.tolist(), self.xids, strict=True)
        ]

    def _of_block(self, line: str) -> tuple[int, dict[str, float]] | None:
        """The speed that a later line of a record of several lines tells."""
        if (begins := BLOCK.step.search(line)) is not None:
            self._block = {name: float(told) for name, told in begins.groupdict().items()}
        elif self._block and (rate := BLOCK_RATE.search(line)) is not None and _is_precise(rate[1]):
            values, self._block = {**self._block, "rate": float(rate[1])}, {}
            return FORMS.index(BLOCK), values
        return None

    def _match(self, line: str) -> tuple[int | str, dict[str, float]] | None:
        usual = self._usual
        if isinstance(usual, int) and (values := _of_form(FORMS[usual], line)) is not None:
            return usual, values
        if usual is not None and self._count > SURE_RECORDS and isinstance(usual, int):
            return None
        for index, form in enumerate(FORMS[:-1]):
            if (values := _of_form(form, line)) is not None:
                return index, values
        if "%|" in line or "it/s" in line or "s/it" in line:
            for name, pattern in ((BAR_FORM, BAR), (RICH_FORM, RICH_BAR)):
                if pattern.search(line) is not None:
                    bar = _of_bar(pattern, line)
                    return None if bar is None else (name, bar)
        values = _of_form(FORMS[-1], line)
        return None if values is None else (len(FORMS) - 1, values)

    def _facts(self, rank: int | None, line: str) -> None:
        """Lines between the steps: saving, evaluating, XIDs, and the sizes that the head of a log tells."""
        xid = line_of(line)
        if xid is not None:
            self.xids += [(self._line, rank, xid)] if len(self.xids) < MAX_XIDS else []
            return
        kind = events.CHECKPOINT if SAVES.search(line) else events.EVALUATION if EVALUATES.search(line) else None
        if kind is not None and len(self.told_events) < MAX_EVENTS:
            self.told_events.append((self._line, kind))
        if not self.world_size and (found := WORLD_SIZE.search(line)) is not None:
            self.world_size = int(found[1] or found[2])
        if math.isnan(self.batch) and (found := BATCH_SIZE.search(line)) is not None:
            self.batch = float(found[1]) or math.nan


def _of_form(form: Form, line: str) -> dict[str, float] | None:
    """What a line of a form tells; None when it is no record of it."""
    found = form.step.search(line)
    if found is None:
        return None
    groups = found.groupdict()
    values = {name: float(groups[name]) for name in ("step", "epoch", "total") if groups.get(name)}
    for name, patterns in (("time", form.time), ("data", form.data)):
        for pattern, unit in patterns:
            if (told := pattern.search(line)) is not None:
                values[name] = _in_us(told, unit)
                if name == "time" and not _names_unit(told, unit):
                    values["bare"] = 1.0
                break
    rate = next((told for pattern in form.rate if (told := pattern.search(line)) is not None), None)
    if rate is not None and _is_precise(rate[1]):
        values["rate"] = float(rate[1])
    for name, size in (("samples", form.samples), ("tokens", form.tokens)):
        if size is not None and (told := size.search(line)) is not None:
            values[name] = float(told[1])
    if form.clock is not None and (since := form.clock.search(line)) is not None:
        values |= {"stamp": float(since[1]), "resolution": 10.0 ** -len(since[1].partition(".")[2])}
    elif (stamp := stamp_of(line)) is not None:
        values |= {"stamp": stamp.seconds, "resolution": stamp.resolution}
    wanted = {"time"} if form.needs_time else {"time", "rate", "stamp"}
    return values if values.keys() & wanted else None


def _is_precise(number: str) -> bool:
    """Whether a speed has more than one digit that counts: 0.5 a second is anything from 1.8 to 2.2 s."""
    return len(number.partition("e")[0].replace(".", "").lstrip("0")) > 1


def _in_us(found: re.Match[str], unit_us: float) -> float:
    """A time in microseconds; its unit stands beside it where the form leaves it open, seconds when it does not."""
    if unit_us:
        return float(found[1]) * unit_us
    told = [group for group in found.groups() if group]
    number = next(group for group in told if group[0].isdecimal())
    named = next((group for group in told if not group[0].isdecimal()), "s")
    return float(number) * UNITS_US.get(named, 1e6)


def _names_unit(found: re.Match[str], unit_us: float) -> bool:
    """Whether a time has a unit: by its form, beside it, or in its name (`seconds_per_step`)."""
    return bool(unit_us) or any(g and not g[0].isdecimal() for g in found.groups()) or "sec" in found[0].lower()


def _of_bar(pattern: re.Pattern[str], line: str) -> dict[str, float] | None:
    found = pattern.search(line)
    if found is None:
        return None
    label = line[max(0, found.start() - LABEL_LENGTH) : found.start("step")]
    if NOT_TRAINING.search(label):
        return None
    elapsed = 0.0
    for part in found["elapsed"].split(":"):
        elapsed = elapsed * 60.0 + float(part)
    values = {"step": float(found["step"]), "total": float(found["total"]), "stamp": elapsed, "resolution": 1.0}
    if (epoch := EPOCH_OF_LABEL.search(label)) is not None:
        values["epoch"] = float(epoch[1])
    return values
