"""Who waits for whom in a step: the dependency graph of a schedule, in the order in which it can be worked off.

A rank runs its own work one after the other, in the order seen; its collectives likewise; and each of the four ways
of pipeline transfers. A micro-batch's pass waits for its activations or gradients to be received, a send for the pass
whose result it carries, and a receive is posted when the pass before has ended. The ends of a transfer, and the
members of a collective, begin together: with the last of them. Launch delays between operations are no part of it.
(The model is that of the what-if analysis of stragglers, OSDI 2025.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.whatif.exchanges import exchange_groups
from starprof.analysis.whatif.roles import Role
from starprof.analysis.whatif.trace import OpTrace, Schedule

OVERLAP = 0.25
"""An operation may seem to begin before its predecessor's end by this share of the latter: clocks are read apart."""
FEW = 8
"""Groups that wait for more are worked off one by one: members of large collectives."""


@dataclass(frozen=True, slots=True)
class Level:
    """Operations that depend only on earlier levels.

    Groups of operations with more to wait for come first, so that the n-th things that groups wait for belong to the
    first so-and-so many groups: a maximum over slices, without a loop over groups.

    Attributes:
        rows: their rows, in the graph's order.
        waits_for: rows that the groups wait for: the first one of each group, then the second of those that have
            one, and so on; nothing on the first level.
        many: groups that wait for more than `FEW`, and the rows that each of them waits for.
        group: the group of each operation, counted within the level; None where each is a group of its own.
    """

    rows: slice
    waits_for: tuple[Ints, ...]
    many: tuple[tuple[int, Ints], ...]
    group: Ints | None

    def ready(self, end: Floats) -> Floats:
        """When what each group waits for has ended; shape (groups, W)."""
        ready: Floats = end.take(self.waits_for[0], axis=0)
        for rows in self.waits_for[1:]:
            some = ready[: len(rows)]
            np.maximum(some, end.take(rows, axis=0), out=some)
        for group, rows in self.many:
            ready[group] = end.take(rows, axis=0).max(axis=0)
        return ready if self.group is None else ready.take(self.group, axis=0)


@dataclass(frozen=True)
class Graph:
    """Dependencies of one schedule; rows of all matrices are in the order `order` of the schedule's operations.

    Attributes:
        order: place in the schedule of each row, shape (N,).
        groups: first row of each group of operations that begin together; groups are contiguous.
        levels: in working order.
    """

    order: Ints
    groups: Ints
    levels: tuple[Level, ...]

    @cached_property
    def sizes(self) -> Ints:
        """Operations per group."""
        sizes: Ints = np.diff(np.r_[self.groups, len(self.order)])
        return sizes

    def last_start(self, start_us: Floats) -> Floats:
        """Start of the last member of each operation's group, shape (N, S)."""
        latest: Floats = np.repeat(np.maximum.reduceat(start_us, self.groups, axis=0), self.sizes, axis=0)
        return latest

    def ends(self, lasting_us: Floats) -> Floats:
        """When every operation ends if the step begins at 0, shape (N, W).

        Args:
            lasting_us: duration of each operation from the moment that its group is ready, shape (N, W).
        """
        end = np.empty_like(lasting_us)
        for level in self.levels:
            if level.waits_for:
                np.add(level.ready(end), lasting_us[level.rows], out=end[level.rows])
            else:
                end[level.rows] = lasting_us[level.rows]
        return end

    def ready(self, end_us: Floats) -> Floats:
        """When what each operation's group waits for has ended, shape (N, W); NaN where it waits for nothing."""
        result = np.full_like(end_us, np.nan)
        for level in self.levels:
            if level.waits_for:
                result[level.rows] = level.ready(end_us)
        return result


def build(trace: OpTrace, schedule: Schedule) -> Graph | None:
    """The graph of a schedule; None when its operations wait for each other in a circle."""
    parts = _Parts(trace, schedule)
    before, after = parts.edges()
    return _levelled(parts.groups(), before, after)


class _Parts:
    """A schedule's operations while the graph is being made; all arrays have shape (N,)."""

    def __init__(self, trace: OpTrace, schedule: Schedule) -> None:
        self.schedule = schedule
        self.names = trace.names
        role_index = {role: at for at, role in enumerate(Role)}
        self.role = np.array([role_index[r] for r in trace.roles], np.int64)[schedule.kind]
        self.worker = schedule.worker
        self.dp, self.pp = trace.workers.dp[self.worker], trace.workers.pp[self.worker]
        self.stages = trace.workers.stages
        self.start = np.median(schedule.start_us, axis=1)
        self.end = np.median(schedule.start_us + schedule.dur_us, axis=1)
        self.global_chunk = np.maximum(schedule.chunk, 0) * self.stages + self.pp

    def of(self, *roles: Role) -> Bools:
        """Which operations have one of the roles."""
        wanted = [at for at, role in enumerate(Role) if role in roles]
        return np.isin(self.role, wanted)

    @cached_property
    def own(self) -> Bools:
        return self.of(*(r for r in Role if r.is_own))

    @cached_property
    def collective(self) -> Bools:
        return self.of(*(r for r in Role if r.is_collective))

    def edges(self) -> tuple[Ints, Ints]:
        """Pairs of operations: the second waits for the end of the first."""
        pairs = [self._within(self.own), self._within(self.collective)]
        pairs += [self._between_streams(), self._lead_in()]
        for way, up in ((Role.FORWARD, -1), (Role.BACKWARD, 1)):
            pairs += self._pipeline(way, up)
        before, after = (np.concatenate(side) for side in zip(*pairs, strict=True))
        return before, after

    def _within(self, mask: Bools) -> tuple[Ints, Ints]:
        """Each operation waits for the one before it on its rank."""
        rows = self._in_order(np.flatnonzero(mask))
        same = self.worker[rows][1:] == self.worker[rows][:-1]
        return rows[:-1][same], rows[1:][same]

    def _in_order(self, rows: Ints) -> Ints:
        return rows[np.lexsort((self.end[rows], self.start[rows], self.worker[rows]))]

    def _between_streams(self) -> tuple[Ints, Ints]:
        """Collectives wait for the work that ended before them, and work other than passes for collectives."""
        own, collective = np.flatnonzero(self.own), np.flatnonzero(self.collective)
        local = np.flatnonzero(self.of(Role.LOCAL))
        first = _joined(self._ended_before(own, collective), self._ended_before(collective, local))
        gathers = np.array(["gather" in name.lower() or "broadcast" in name.lower() for name in self.names], bool)
        # What a pass exchanges within a tensor- or expert-parallel group is part of it: the next one waits for that,
        # and so does who gets its result.
        inner = self.of(Role.INNER)
        feeding = np.flatnonzero(self.collective & gathers[self.schedule.kind] | inner)
        first = _joined(first, self._ended_before(feeding, np.flatnonzero(self.of(Role.FORWARD, Role.BACKWARD))))
        sends = np.flatnonzero(self.of(Role.FORWARD_SEND, Role.BACKWARD_SEND))
        return _joined(first, self._ended_before(np.flatnonzero(inner), sends))

    def _lead_in(self) -> tuple[Ints, Ints]:
        """A rank's first pass waits for whatever collective came before it."""
        passes = self._in_order(np.flatnonzero(self.of(Role.FORWARD, Role.BACKWARD)))
        firsts = passes[np.r_[True, self.worker[passes][1:] != self.worker[passes][:-1]]] if len(passes) else passes
        return self._ended_before(np.flatnonzero(self.collective), firsts)

    def _ended_before(self, earlier: Ints, later: Ints) -> tuple[Ints, Ints]:
        """For each later operation the last of the earlier ones, on the same rank, that ended before it began."""
        if not len(earlier) or not len(later):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        earlier = self._in_order(earlier)
        origin = float(self.start.min())
        apart = 2.0 * (float(self.end.max()) - origin) + 1.0  # rank after rank on one axis
        ended = self.end[earlier] - OVERLAP * (self.end[earlier] - self.start[earlier]) - origin
        axis = np.maximum.accumulate(self.worker[earlier] * apart + ended)
        found = np.searchsorted(axis, self.worker[later] * apart + (self.start[later] - origin), side="right") - 1
        same = (found >= 0) & (self.worker[earlier[found]] == self.worker[later])
        return earlier[found[same]], later[same]

    def _pipeline(self, way: Role, up: int) -> list[tuple[Ints, Ints]]:
        """Sends and receives of one way; `up` leads to the stage that a pass gets its input from."""
        passes = self._in_order(np.flatnonzero(self.of(way)))
        ends = self.global_chunk[passes]
        top = int(self.global_chunk[self.of(Role.FORWARD, Role.BACKWARD)].max())
        has_input = ends > 0 if up < 0 else ends < top
        has_output = ends < top if up < 0 else ends > 0
        sends = np.flatnonzero(self.of(Role(f"{way.value}-send")))
        receives = np.flatnonzero(self.of(Role(f"{way.value}-recv")))
        carried, sending = self._matched(passes[has_output], sends)
        fed, receiving = self._matched(passes[has_input], receives)
        before = _previous(passes, self.worker)
        posted = before[fed]
        without = passes[has_input & ~np.isin(passes, fed)]
        return [
            self._within(self.of(Role(f"{way.value}-send"))),
            self._within(self.of(Role(f"{way.value}-recv"))),
            (carried, sending),
            (receiving, fed),
            (posted[posted >= 0], receiving[posted >= 0]),
            self._posted_first(receiving[posted < 0]),
            self._upstream(passes, without, up),
        ]

    def _posted_first(self, receives: Ints) -> tuple[Ints, Ints]:
        """A rank's first receive is posted when the collectives that lead into the step have ended."""
        return self._ended_before(np.flatnonzero(self.collective), receives)

    def _matched(self, passes: Ints, transfers: Ints) -> tuple[Ints, Ints]:
        """Passes and the transfers that belong to them: n-th and n-th, or by number where some are missing."""
        place = self.place_in_order(passes, transfers)
        key = self.worker * (int(place.max(initial=0)) + 1) + place
        _, left, right = np.intersect1d(key[passes], key[transfers], return_indices=True)
        return passes[left], transfers[right]

    def place_in_order(self, passes: Ints, transfers: Ints) -> Ints:
        """How many passes (transfers) of a rank came before each, shape (N,); the trace's number where they differ."""
        place = np.zeros(len(self.worker), np.int64)
        place[passes] = _counted(self.worker[passes])
        rows = transfers[np.lexsort((self.schedule.number[transfers], self.worker[transfers]))]
        place[rows] = _counted(self.worker[rows])
        size = int(self.worker.max()) + 1
        counts = (np.bincount(self.worker[rows], minlength=size) for rows in (passes, transfers))
        unequal = np.flatnonzero(np.not_equal(*counts))
        odd = np.isin(self.worker, unequal)
        return np.where(odd, np.maximum(self.schedule.number, 0), place)

    def _upstream(self, passes: Ints, without: Ints, up: int) -> tuple[Ints, Ints]:
        """A pass whose receive was not recorded waits for the pass before it in the pipeline."""
        known = without[self.schedule.micro_batch[without] >= 0]
        span = int(self.global_chunk.max()) + 2
        batches = int(self.schedule.micro_batch.max(initial=0)) + 2

        def key(rows: Ints, shift: int) -> Ints:
            return (self.dp[rows] * batches + self.schedule.micro_batch[rows]) * span + self.global_chunk[rows] + shift

        source = key(passes, 0)
        order = np.argsort(source, kind="stable")
        wanted = key(known, up)
        found = order[np.minimum(np.searchsorted(source[order], wanted), len(order) - 1)] if len(order) else order
        hit = source[found] == wanted if len(order) else np.zeros(0, bool)
        return passes[found[hit]], known[hit]

    def groups(self) -> Ints:
        """Operations that begin together have the same number, shape (N,)."""
        count = len(self.worker)
        key = np.zeros((count, 4), np.int64)
        key[:, 0], key[:, 1] = -1, np.arange(count)
        place = np.zeros(count, np.int64)
        rows = np.lexsort((np.arange(count), self.schedule.kind, self.worker))
        place[rows] = _counted(self.worker[rows] * (len(self.names) + 1) + self.schedule.kind[rows])
        for role, member in ((Role.STAGE, self.pp), (Role.PIPELINE, self.dp), (Role.WORLD, np.zeros_like(self.pp))):
            mask = self.of(role)
            key[mask] = np.stack([self.schedule.kind, member, place, np.zeros_like(place)], axis=1)[mask]
        exchanging = exchange_groups(self.schedule, self.names, self.dp, self.pp)
        mask = exchanging >= 0
        key[mask] = np.stack([self.schedule.kind, exchanging, place, np.ones_like(place)], axis=1)[mask]
        for way, up in ((Role.FORWARD, -1), (Role.BACKWARD, 1)):
            self._join_transfers(key, way, up)
        _, group = np.unique(key, axis=0, return_inverse=True)
        return np.asarray(group, np.int64).reshape(-1)

    def _join_transfers(self, key: Ints, way: Role, up: int) -> None:
        sends = np.flatnonzero(self.of(Role(f"{way.value}-send")))
        receives = np.flatnonzero(self.of(Role(f"{way.value}-recv")))
        sender = self.pp.copy()
        sender[receives] = (self.pp[receives] + up) % self.stages
        # Numbers count the transfers of a rank from 0, on both ends; where one end lacks some they still agree.
        for rows in (sends, receives):
            key[rows, 0] = -2 if up < 0 else -3
            key[rows, 1], key[rows, 2] = self.dp[rows], sender[rows]
            key[rows, 3] = self.schedule.number[rows]


def _joined(first: tuple[Ints, Ints], second: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])


def _counted(sorted_keys: Ints) -> Ints:
    """Position of each entry within its run of equal keys."""
    place = np.arange(len(sorted_keys))
    begins = np.r_[True, sorted_keys[1:] != sorted_keys[:-1]][: len(sorted_keys)]
    return place - np.maximum.accumulate(np.where(begins, place, 0))


def _previous(rows: Ints, worker: Ints) -> Ints:
    """For each operation among `rows` (in order) the one before it on its rank, -1 for none; shape (N,)."""
    before = np.full(len(worker), -1, np.int64)
    same = worker[rows][1:] == worker[rows][:-1]
    before[rows[1:][same]] = rows[:-1][same]
    return before


def _levelled(group: Ints, before: Ints, after: Ints) -> Graph | None:
    """Sort the groups by depth, so that every one comes after all that it waits for."""
    count, size = int(group.max()) + 1, np.int64(len(group))
    edge = np.unique(group[after] * size + before)
    target, source = np.divmod(edge, size)
    depth = _depths(count, group[source], target)
    if depth is None:
        return None
    waits = np.bincount(target, minlength=count)
    order = np.lexsort((group, -waits[group], depth[group]))
    row_of = np.empty(len(order), np.int64)
    row_of[order] = np.arange(len(order))
    firsts = np.flatnonzero(np.r_[True, group[order][1:] != group[order][:-1]])
    begins = np.searchsorted(target, np.arange(count + 1))
    levels = _levels(depth[group[order]], firsts, group[order][firsts], begins, row_of[source])
    return Graph(order, firsts, levels)


def _depths(count: int, source: Ints, target: Ints) -> Ints | None:
    """Longest way to each group, shape (count,); None when there is a circle."""
    order = np.argsort(source, kind="stable")
    targets = target[order]
    begins = np.searchsorted(source[order], np.arange(count + 1))
    open_ = np.bincount(target, minlength=count)
    depth = np.zeros(count, np.int64)
    front = np.flatnonzero(open_ == 0)
    done = level = 0
    while len(front):
        depth[front] = level
        done += len(front)
        sizes = begins[front + 1] - begins[front]
        offsets = np.repeat(begins[front] - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
        reached, times = np.unique(targets[offsets], return_counts=True)
        open_[reached] -= times
        front = reached[open_[reached] == 0]
        level += 1
    return depth if done == count else None


def _levels(depth: Ints, firsts: Ints, groups: Ints, begins: Ints, waits_for: Ints) -> tuple[Level, ...]:
    """The levels of rows that are sorted by depth.

    Args:
        depth: of each row.
        firsts: first row of each group.
        groups: number of each group, in the order of the rows.
        begins: where the rows that each group (by number) waits for begin.
        waits_for: rows that groups wait for.
    """
    sizes = np.diff(np.r_[firsts, len(depth)])
    bounds = np.flatnonzero(np.r_[True, depth[firsts][1:] != depth[firsts][:-1], True])
    levels = []
    for first, last in pairwise(bounds):
        members = groups[first:last]
        start, counts = begins[members], begins[members + 1] - begins[members]
        nth = range(min(int(counts[0]), FEW))
        slices = tuple(waits_for[start[counts > n] + n] for n in nth)
        many = tuple((int(g), waits_for[start[g] : start[g] + counts[g]]) for g in np.flatnonzero(counts > FEW))
        alone = bool((sizes[first:last] == 1).all())
        member = None if alone else np.repeat(np.arange(last - first), sizes[first:last])
        rows = slice(int(firsts[first]), int(firsts[last - 1] + sizes[last - 1]))
        levels.append(Level(rows, slices, many, member))
    return tuple(levels)
