"""What control did, derived from its records once: stretches of one mode, whose gradients went in, and what it brought.

Times are seconds since the first step began, on node 0's clock. R ranks, B bins of time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from starprof.model.rundata import STEPS_PER_RECORD, RunData
from starprof.model.tables.sync import NATIVE
from starprof.model.valuelists import contributors_of, from_listed_values
from starprof.reports import facts, words
from starprof.reports.facts import Matrix
from starprof.reports.series import clock

if TYPE_CHECKING:
    import pandas as pd

SIDE_STEPS = 50
"""Steps of every rank that are looked at on each side of a switch."""

MODES_IN_A_LINE = 5
NATIVE_WORDS = "native SSGD"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the run under one mode.

    Attributes:
        mode: as readers know it, with its options.
        native: whether these were native steps.
        first: version of the parameters at its begin.
        end: version at its end; updates are counted by versions, so those whose record is lost count too.
        begin_s, end_s: when.
    """

    mode: str
    native: bool
    first: int
    end: int
    begin_s: float
    end_s: float

    @property
    def updates(self) -> int:
        """Native steps or rounds."""
        return max(self.end - self.first, 0)

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return max(self.end_s - self.begin_s, 0.0)


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of the mode, or a wish for one.

    Attributes:
        at_s: when it began to hold, or the wish was given up.
        version: from which it holds, None when it did not come about.
        before_us, after_us: median step time around it, NaN without steps.
        took_us: from the wish to the first update of the new mode, NaN when not measured.
    """

    at_s: float
    version: int | None
    from_mode: str
    to_mode: str
    asked_by: str
    reason: str
    took_us: float
    before_us: float = float("nan")
    after_us: float = float("nan")


@dataclass(frozen=True)
class Gradients:
    """Every gradient of every recorded update.

    Attributes:
        update: row of the update, shape (G,).
        row: row of the rank in the run's matrices.
        weight: its factor.
        staleness: in updates.
        version, at_s: of each update, shape (U,), rising by version.
        gradients, tries: of each update: what went in, and how often it was reduced.
    """

    update: NDArray[np.int32]
    row: NDArray[np.int32]
    weight: NDArray[np.float32]
    staleness: NDArray[np.int32]
    version: NDArray[np.int64]
    at_s: Matrix
    gradients: NDArray[np.int64]
    tries: NDArray[np.int64]


class Synchronised:
    """The records of control of one run; make it with `synchronised`."""

    def __init__(self, run: RunData) -> None:
        """Read off where the clocks stand."""
        self.run = run
        self._clock = clock(run)
        shift = np.array([self._clock.shift_ns.get(rank.node, 0) for rank in run.ranks], dtype=np.int64)[:, None]
        starts, durations = run.steps.start_mono_ns, facts.column(run, "dur_us")
        recorded = (starts > 0) & np.isfinite(durations)
        begun = starts + shift
        self.origin_ns = int(begun[recorded].min()) if recorded.any() else self._first_record()
        self.begin_s: Matrix = np.where(recorded, (begun - self.origin_ns) / 1e9, np.nan)
        # A record of a long run is the mean of several steps.
        self._each = max((int(rank.detail.get(STEPS_PER_RECORD, 1)) for rank in run.ranks), default=1)
        self.end_s: Matrix = self.begin_s + durations * self._each / 1e6
        updates = run.sync_updates
        self._updates = None if updates is None else _applied(updates)

    @property
    def updates(self) -> pd.DataFrame | None:
        """The recorded updates, of each version what was applied."""
        return self._updates

    def _first_record(self) -> int:
        """The earliest of what control tells, for a run without steps."""
        frames = (self.run.sync_updates, self.run.sync_switches)
        return min((int(frame["mono_ns"].min()) for frame in frames if frame is not None), default=0)

    def seconds_of(self, node: float, mono_ns: float) -> float:
        """A moment of a node's clock in seconds of the run."""
        return (mono_ns + self._clock.shift_ns.get(int(node), 0) - self.origin_ns) / 1e9

    @cached_property
    def length_s(self) -> float:
        """End of the last step or update."""
        ends = [float(self.end_s[np.isfinite(self.end_s)].max())] if np.isfinite(self.end_s).any() else []
        ends += [float(self.gradients.at_s.max())] if len(self.gradients.at_s) else []
        return max([*ends, *(switch.at_s for switch in self.switches), 0.0])

    @cached_property
    def switches(self) -> tuple[Switch, ...]:
        """All of them in the order of time; one that two coordinators tell of counts once."""
        frame = self.run.sync_switches
        if frame is None:
            return ()
        told: dict[tuple[object, ...], Switch] = {}
        for cells in frame.sort_values("mono_ns", kind="stable").to_dict("records"):
            switch = Switch(
                self.seconds_of(cells["node"], cells["mono_ns"]),
                None if _missing(cells["version"]) else int(cells["version"]),
                mode_words(cells["from_mode"], cells["from_options"]),
                mode_words(cells["to_mode"], cells["to_options"]),
                cells["asked_by"] or "",
                cells["reason"] or "",
                float("nan") if _missing(cells["took_us"]) else float(cells["took_us"]),
            )
            same = (switch.version, switch.to_mode) if switch.version is not None else (None, len(told))
            told.setdefault(same, switch)
        ordered = sorted(told.values(), key=lambda s: s.at_s)
        edges = [-np.inf, *(s.at_s for s in ordered if s.version is not None), np.inf]
        return tuple(s if s.version is None else self._with_step_times(s, edges) for s in ordered)

    def _with_step_times(self, switch: Switch, edges: list[float]) -> Switch:
        """A switch with the median of every rank's steps around it, none of them on the far side of another switch."""
        at = edges.index(switch.at_s, 1)
        before, after = [], []
        for begin_s, end_s, duration_us in self._steps:
            stop = int(np.searchsorted(end_s, switch.at_s, side="right"))
            first = max(int(np.searchsorted(begin_s, edges[at - 1])), stop - SIDE_STEPS)
            before.append(duration_us[first:stop])
            start = int(np.searchsorted(begin_s, switch.at_s))
            last = min(int(np.searchsorted(end_s, edges[at + 1], side="right")), start + SIDE_STEPS)
            after.append(duration_us[start:last])
        return replace(switch, before_us=_median(before), after_us=_median(after))

    @cached_property
    def _steps(self) -> list[tuple[Matrix, Matrix, Matrix]]:
        """Begins, ends and durations of every rank's steps."""
        durations = facts.column(self.run, "dur_us")
        known = np.isfinite(self.end_s)
        return [
            (self.begin_s[row, known[row]], self.end_s[row, known[row]], durations[row, known[row]])
            for row in range(len(durations))
        ]

    @cached_property
    def stretches(self) -> tuple[Stretch, ...]:
        """The whole run, cut where the mode changed."""
        edges = self._edges()
        last = max(self._last_version(), edges[-1][0])
        ends = [*((version, at_s) for version, _, at_s in edges[1:]), (last, self.length_s)]
        stretches = [
            Stretch(mode, mode == NATIVE_WORDS, first, end, begin_s, end_s)
            for (first, mode, begin_s), (end, end_s) in zip(edges, ends, strict=True)
        ]
        return tuple(s for s in stretches if s.updates or s.seconds)

    def _edges(self) -> list[tuple[int, str, float]]:
        """Version, mode and time of every change, the begin of the run being the first."""
        held = [s for s in self.switches if s.version is not None]
        if held:
            changes = [(int(s.version or 0), s.to_mode, s.at_s) for s in sorted(held, key=lambda s: s.version or 0)]
            return [(0, held[0].from_mode, 0.0), *changes]
        changes = list(self._mode_changes())
        if not changes or changes[0][0] > 0:
            return [(0, NATIVE_WORDS, 0.0), *changes]
        return [(0, changes[0][1], 0.0), *changes[1:]]

    def _mode_changes(self) -> Iterator[tuple[int, str, float]]:
        """Where the recorded updates begin to be of another mode; for when no switch was recorded."""
        if self._updates is None:
            return
        before = None
        modes = zip(self._updates["mode"], self._updates["options"], strict=True)
        for at, known in enumerate(modes):
            if known != before:
                yield int(self.gradients.version[at]), mode_words(*known), float(self.gradients.at_s[at])
            before = known

    def _last_version(self) -> int:
        """Version after the last update, as far as anything tells."""
        last = int(self.gradients.version[-1]) + 1 if len(self.gradients.version) else 0
        edges = self._edges()
        if edges[-1][1] != NATIVE_WORDS or not len(self.run.ranks):
            return last
        version, _, at_s = edges[-1]
        since = (self.begin_s >= at_s).sum(axis=1)
        return max(last, version + self._each * int(since.max(initial=0)))

    @cached_property
    def gradients(self) -> Gradients:
        """What the updates are made of; updates whose lists do not fit together have none."""
        frame = self._updates
        row_of = {rank.rank: row for row, rank in enumerate(self.run.ranks)}
        parts: list[list[NDArray[Any]]] = [[], [], [], []]
        rows = 0 if frame is None else len(frame)
        if frame is not None:
            decoded = (_ranks(row_of), _values(np.float32), _values(np.int32))
            columns = (frame[name] for name in ("contributors", "per_contributor", "weights", "staleness"))
            for at, (contributors, per, weights, staleness) in enumerate(zip(*columns, strict=True)):
                lists = decoded[0](contributors, per), decoded[1](weights), decoded[2](staleness)
                if len({len(values) for values in lists}) == 1 and len(lists[0]):
                    for part, values in zip(parts, (np.full(len(lists[0]), at, np.int32), *lists), strict=True):
                        part.append(values)
        types = (np.int32, np.int32, np.float32, np.int32)
        update, row, weight, staleness = (
            np.concatenate(part) if part else np.zeros(0, kind) for part, kind in zip(parts, types, strict=True)
        )
        known = row >= 0
        return Gradients(
            update[known],
            row[known],
            weight[known],
            staleness[known],
            version=_cells(frame, "version", rows).astype(np.int64),
            at_s=np.array(
                [
                    self.seconds_of(n, t)
                    for n, t in zip(_cells(frame, "node", rows), _cells(frame, "mono_ns", rows), strict=True)
                ]
            ),
            gradients=np.nan_to_num(_cells(frame, "gradients", rows)).astype(np.int64),
            tries=np.nan_to_num(_cells(frame, "retries", rows)).astype(np.int64) + 1,
        )

    def stretch_of(self, versions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which stretch updates of these versions belong to."""
        firsts = np.array([s.first for s in self.stretches], dtype=np.int64)
        return np.maximum(np.searchsorted(firsts, versions, side="right") - 1, 0)


def synchronised(run: RunData) -> Synchronised | None:
    """The records of control; None when it never did anything."""
    if run.sync_updates is None and run.sync_switches is None and run.sync_noise is None:
        return None
    return Synchronised(run)


def mode_words(mode: str | None, options: str | None) -> str:
    """A mode with its options as readers know it: `m-sync (m = 3)`."""
    if mode == NATIVE:
        return NATIVE_WORDS
    try:
        known = json.loads(options) if options else {}
    except ValueError:
        known = {}
    told = ", ".join(f"{name} = {value}" for name, value in known.items()) if isinstance(known, dict) else ""
    return f"{mode or 'unknown'} ({told})" if told else mode or "unknown"


def time_of_modes(stretches: tuple[Stretch, ...]) -> dict[str, float]:
    """Seconds under each mode, in the order in which they first came."""
    spent: dict[str, float] = {}
    for stretch in stretches:
        spent[stretch.mode] = spent.get(stretch.mode, 0.0) + stretch.seconds
    return spent


def told_in_short(sync: Synchronised) -> str:
    """How long each mode ran, in one line; of many modes those that ran longest."""
    spent = time_of_modes(sync.stretches)
    longest = set(sorted(spent, key=lambda mode: -spent[mode])[:MODES_IN_A_LINE])
    told = [f"{mode} {words.seconds(seconds)}" for mode, seconds in spent.items() if mode in longest]
    if len(spent) > len(longest):
        rest = sum(seconds for mode, seconds in spent.items() if mode not in longest)
        told.append(f"{len(spent) - len(longest)} more {words.seconds(rest)}")
    held = sum(switch.version is not None for switch in sync.switches)
    switches = f"; {held} switch{'' if held == 1 else 'es'}" if held else ""
    return ", ".join(told) + switches


def _applied(updates: pd.DataFrame) -> pd.DataFrame:
    """Of each version the row that was applied, by version."""
    order = ["version", "epoch", "retries", "mono_ns"]
    return updates.sort_values(order, kind="stable", na_position="first").drop_duplicates("version", keep="last")


def _cells(frame: pd.DataFrame | None, name: str, rows: int) -> Matrix:
    if frame is None:
        return np.zeros(rows)
    return np.asarray(frame[name].to_numpy(dtype=np.float64, na_value=np.nan))


def _ranks(row_of: dict[int, int]) -> Callable[[str | None, str | None], NDArray[np.int32]]:
    """Decodes contributors to rows of the matrices, -1 for a rank that is not known; each text once."""
    known: dict[tuple[str | None, str | None], NDArray[np.int32]] = {}

    def decode(contributors: str | None, per: str | None) -> NDArray[np.int32]:
        texts = contributors, per
        if texts not in known:
            ranks = contributors_of(contributors, per)
            known[texts] = np.array([row_of.get(rank, -1) for rank in ranks], dtype=np.int32)
        return known[texts]

    return decode


def _values(kind: type[np.number[Any]]) -> Callable[[str | None], NDArray[Any]]:
    """Decodes lists of values; each text once."""
    known: dict[str | None, NDArray[Any]] = {}

    def decode(text: str | None) -> NDArray[Any]:
        if text not in known:
            known[text] = np.array(from_listed_values(text), dtype=kind)
        return known[text]

    return decode


def _median(parts: list[Matrix]) -> float:
    values = np.concatenate(parts) if parts else np.zeros(0)
    return float(np.median(values)) if values.size else float("nan")


def _missing(value: object) -> bool:
    return value is None or value != value
