"""Collectives of all ranks, call by call: how long each rank was in each call, and who came last.

A collective in which everybody waits for everybody ends for all at about the same moment, so the rank with the
shortest time in it arrived last. That needs no common clock: durations are compared, never start times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.peers import median_of_others
from starprof.analysis.trace_settings import CallSettings
from starprof.model.collectives import ALL_TO_ALL, MUTUAL, SEND_RECV
from starprof.model.ranklists import from_listed


@dataclass(frozen=True)
class Group:
    """Matched calls of one process group; rows are ranks, columns calls in their order.

    Attributes:
        name: of the process group.
        rows: rows of the run's ranks, shape (R,).
        size: members of the group, whether there are records of them or not.
        dur_us: time in each call, waiting included, shape (R, C).
        start_us: start of each call in the rank's own clock, NaN when not told, shape (R, C).
        unit: number of the step (or block of calls) that each call belongs to, shape (C,).
        kinds: kind of each call.
    """

    name: str
    rows: Ints
    size: int
    dur_us: Floats
    start_us: Floats
    unit: Ints
    kinds: tuple[str, ...]

    @cached_property
    def exclusive_us(self) -> Floats:
        """Time in each call that no earlier call of the group on the same rank covers, shape (R, C)."""
        order = np.argsort(self.start_us, axis=1, kind="stable")
        start = np.take_along_axis(self.start_us, order, axis=1)
        dur = np.take_along_axis(self.dur_us, order, axis=1)
        reach = np.maximum.accumulate(start + dur, axis=1)
        before = np.c_[np.full((len(start), 1), -np.inf), reach[:, :-1]]
        own = np.minimum(dur, np.clip(start + dur - before, 0.0, None))
        result = np.empty_like(dur)
        np.put_along_axis(result, order, np.where(np.isnan(own), dur, own), axis=1)
        return result

    @cached_property
    def per_unit_us(self) -> Floats:
        """Time in the group's calls per unit, shape (R, U); NaN where a unit has none."""
        units = int(self.unit.max()) + 1
        total = np.zeros((len(self.rows), units))
        np.add.at(total.T, self.unit, self.exclusive_us.T)
        total[:, np.bincount(self.unit, minlength=units) == 0] = np.nan
        return total

    @cached_property
    def last(self) -> Ints:
        """Row (of the group) of the last to arrive at each call, shape (C,)."""
        last: Ints = np.argmin(self.dur_us, axis=0)
        return last

    @cached_property
    def wait_us(self) -> Floats:
        """How long each rank waited for the last one, shape (R, C)."""
        waited: Floats = self.dur_us - self.dur_us.min(axis=0)
        return waited

    def end_together(self, members: list[int], max_spread: float, *, one_clock: bool = False) -> bool:
        """Whether calls at which others waited for these rows end for all ranks at once.

        If they don't, the calls were not one collective, and who waited for whom can't be told.

        Args:
            members: rows of the group.
            max_spread: ends of one call may differ by this share of the wait that it is about.
            one_clock: compare the ends as they are; otherwise aside from a constant offset of each rank's clock, and
                True where starts are not told.
        """
        ends = self.start_us + self.dur_us
        if np.isnan(ends).any():
            return not one_clock
        ends = ends - np.median(ends, axis=0)
        if not one_clock:
            ends -= np.median(ends, axis=1, keepdims=True)
        off = np.median(np.abs(ends), axis=0) + np.abs(ends[members]).max(axis=0)
        gap = self._gap_us(members)
        agreeing = off <= max_spread * gap
        return bool(2 * gap[agreeing].sum() >= gap.sum())

    def uneven_share(self, members: list[int]) -> float:
        """Share of the lateness of these rows that calls carry in which ranks may exchange different amounts."""
        gap = self._gap_us(members)
        uneven = np.array([kind == ALL_TO_ALL for kind in self.kinds])
        return float(gap[uneven].sum() / gap.sum()) if gap.sum() > 0 else 0.0

    def _gap_us(self, members: list[int]) -> Floats:
        """How much less than others these rows are in each call, shape (C,)."""
        others = median_of_others(self.dur_us)[members].max(axis=0)
        gap: Floats = np.clip(others - self.dur_us[members].min(axis=0), 0.0, None)
        return gap


@dataclass(frozen=True)
class Matched:
    """All groups of a run.

    Attributes:
        groups: with at least two ranks.
        units: how many steps (or blocks of calls).
        steps: step number of each unit; empty when the units are blocks of calls.
        unmatched: calls that could not be joined with those of other ranks.
        across_stages: calls left out because their group spans stages of a pipeline.
    """

    groups: tuple[Group, ...]
    units: int
    steps: Ints
    unmatched: int
    across_stages: int

    @property
    def calls(self) -> int:
        """How many matched calls."""
        return sum(g.dur_us.shape[1] for g in self.groups)


def match_calls(frame: pd.DataFrame, ranks: Ints, settings: CallSettings) -> Matched:
    """Join single calls by their group and sequence number.

    Args:
        frame: table `collective`.
        ranks: rank of each row of the run.
        settings: thresholds.
    """
    single = frame[(frame["calls"] == 1) & np.isfinite(frame["dur_us"].astype(float))]
    stages = _stages(single)
    single = single[single["name"].isin(MUTUAL)]
    usable = single[single["sequence"].notna()]
    steps = usable["step"].astype(float)
    known = np.unique(steps[steps.notna()]).astype(np.int64)
    if len(known):
        usable = usable[steps.notna()]
    found = list(_groups(usable, ranks))
    kept = [(key, table) for key, table in found if not _spans_stages(key[1], table, stages)]
    groups, units = [], len(known)
    if not len(known):
        calls = max((t.shape[1] for _, t in kept), default=0)
        units = min(calls // settings.calls_per_block, settings.max_blocks)
    for key, table in kept:
        groups.append(_group(key, table, usable, ranks, known, max(units, 1)))
    left = sum(t.shape[1] for _, t in found) - sum(t.shape[1] for _, t in kept)
    return Matched(tuple(groups), units, known, len(single) - len(usable), left)


def _groups(usable: pd.DataFrame, ranks: Ints) -> Iterator[tuple[tuple[str, str], pd.DataFrame]]:
    """Durations, rank x sequence, of each group with several ranks; only calls that all of them made."""
    texts = usable[["group_name", "ranks"]].fillna("").astype(str)
    for key, part in usable.groupby([texts["group_name"], texts["ranks"]], sort=False):
        table = part.pivot_table(index="rank", columns="sequence", values="dur_us", aggfunc="first").dropna(axis=1)
        table = table[np.isin(table.index, ranks)]
        if len(table) >= 2 and table.shape[1]:
            yield (str(key[0]), str(key[1])), table.astype(float)


def _group(
    key: tuple[str, str], table: pd.DataFrame, usable: pd.DataFrame, ranks: Ints, known: Ints, units: int
) -> Group:
    part = usable[
        (usable["group_name"].fillna("").astype(str) == key[0]) & (usable["ranks"].fillna("").astype(str) == key[1])
    ]
    starts = part.assign(start_us=part["start_us"].astype(float)).pivot_table(
        index="rank", columns="sequence", values="start_us", aggfunc="first", dropna=False
    )
    first = part[part["rank"] == table.index[0]].drop_duplicates("sequence").set_index("sequence").loc[table.columns]
    count = table.shape[1]
    if len(known):
        unit = np.searchsorted(known, first["step"].to_numpy(np.float64))
    else:
        unit = np.arange(count) * units // count
    return Group(
        name=key[0],
        rows=np.searchsorted(ranks, table.index.to_numpy(np.int64)),
        size=max(len(from_listed(key[1])), len(table)),
        dur_us=table.to_numpy(np.float64),
        start_us=starts.reindex(index=table.index, columns=table.columns).to_numpy(np.float64),
        unit=unit.astype(np.int64),
        kinds=tuple(first["name"].astype(str)),
    )


def _stages(single: pd.DataFrame) -> list[frozenset[int]] | None:
    """Ranks that send to each other (each set holds one of every pipeline stage); None when it is not told who."""
    sent = single[single["name"] == SEND_RECV]
    if len(sent) == 0:
        return []
    members = [frozenset(from_listed(str(text))) for text in sent["ranks"].fillna("").astype(str).unique()]
    return None if not all(members) else members


def _spans_stages(members: str, table: pd.DataFrame, stages: list[frozenset[int]] | None) -> bool:
    """Whether a group holds several stages of a pipeline, which arrive in the order of the schedule."""
    if stages is None:
        return True
    own = set(from_listed(members)) | {int(r) for r in table.index}
    return any(len(own & stage) > 1 for stage in stages)


def late_set(totals: Floats, least_gap: float) -> list[int]:
    """Those who wait least, apart from all others by at least a gap; empty when nobody is.

    The smallest such set: who arrives last holds up everybody, and what the others would have cost shows only then.

    Args:
        totals: time in collectives per rank, shape (R,).
        least_gap: same unit.
    """
    order = np.argsort(totals, kind="stable")
    gaps = np.diff(totals[order])
    for count in range(1, len(totals) // 2 + 1):
        if gaps[count - 1] >= least_gap > 0:
            return sorted(int(i) for i in order[:count])
    return []


def held_up_us(per_unit: Floats, late: list[int]) -> Floats:
    """What each unit would have been shorter by, had these rows come with the next one, shape (U,)."""
    others = np.ones(len(per_unit), bool)
    others[late] = False
    earlier: Floats = np.clip(per_unit[others].min(axis=0) - per_unit[late].min(axis=0), 0.0, None)
    return earlier


def is_last(per_unit: Floats, late: list[int]) -> Bools:
    """Units in which one of these rows waited least, shape (U,)."""
    return np.isin(np.argmin(per_unit, axis=0), late)
