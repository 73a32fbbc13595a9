"""Reads what the ranks write into the spool while they run: every part of it once, as soon as it is whole.

Segments of this node are read as they grow; those that other nodes ship appear when they are sealed. The ingester may
remove a segment before it was read here: then some steps are missing, which an advisor can bear.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from starprof.advisor.events import Event, Ranks, StepTime
from starprof.errors import SpoolError
from starprof.model.columns import INT_NULL
from starprof.model.rundata import RankInfo
from starprof.model.tables.job import NODE, RANK, STEP
from starprof.spool.frame import PACKED, Frame, frames
from starprof.spool.segment import Segment, list_segments

MOST_BYTES = 8 << 20
"""Of one segment at a time; the rest comes the next time."""

_COLUMNS = {name: at for at, name in enumerate(STEP.names)}
_ATTEMPT, _RANK_AT, _STEP_AT = (_COLUMNS[name] for name in ("attempt", "rank", "step"))
_REGULAR = ("data_wait_us", "h2d_us", "forward_us", "backward_us", "optimizer_us", "user_us", "unaccounted_us")
_BUSY = ("checkpoint_us", "eval_us")
_OWN_CELLS = [_COLUMNS[name] for name in _REGULAR]
_BUSY_CELLS = [_COLUMNS[name] for name in _BUSY]


@dataclass
class SpoolFeed:
    """Of one recording.

    Attributes:
        segments: folder of the segments.
        node: whose clock is ours.
        kept: file that remembers the ranks for the next advisor, when what told of them is long folded in; None: none.
        attempt: newest attempt of the job, -1 before the first rank.
    """

    segments: Path
    node: int = 0
    attempt: int = -1
    kept: Path | None = None
    _at: dict[tuple[str, int], int] = field(default_factory=dict)
    _hosts: dict[int, str] = field(default_factory=dict)
    _infos: dict[int, RankInfo] = field(default_factory=dict)
    _world: int = 0
    _told: bool = False

    def read(self) -> Iterator[Event]:
        """What is new, oldest first as far as can be told."""
        if self.attempt < 0 and not self._infos:
            yield from self._remembered()
        try:
            found = list_segments(self.segments)
        except OSError:
            return
        there = {(segment.source, segment.number) for segment in found}
        for gone in [key for key in self._at if key not in there]:
            del self._at[gone]
        steps: list[StepTime] = []
        for frame in [frame for segment in found for frame in self._frames(segment)]:
            if frame.table is NODE:
                self._nodes(_told(frame))
            elif frame.table is RANK:
                yield from self._ranks(_told(frame))
            elif frame.table is STEP and frame.encoding == PACKED:
                steps += self._steps(frame)
        steps.sort(key=lambda record: (record.step, record.rank))
        yield from steps

    def _frames(self, segment: Segment) -> list[Frame]:
        key = (segment.source, segment.number)
        at = self._at.get(key, 0)
        try:
            with segment.path.open("rb") as file:
                file.seek(at)
                data = file.read(MOST_BYTES)
        except OSError:
            return []  # it was sealed, and has another name, or it is folded in
        found, end = [], 0
        for frame, end in frames(data):  # noqa: B007 - the last end is where to go on
            with contextlib.suppress(SpoolError):  # the ingester says so
                frame.check()
                found.append(frame)
        self._at[key] = at + end
        return found

    def _nodes(self, rows: list[dict[str, Any]]) -> None:
        for told in rows:
            if told["node"] is not None and told["host"]:
                self._hosts[told["node"]] = told["host"]

    def _ranks(self, rows: list[dict[str, Any]]) -> Iterator[Event]:
        for told in rows:
            attempt, rank = int(told.get("attempt") or 0), told.get("rank")
            if rank is None or attempt < self.attempt:
                continue
            if attempt > self.attempt:
                self.attempt, self._infos, self._world, self._told = attempt, {}, 0, False
            self._infos[rank] = _info(rank, told)
            self._world = max(self._world, told.get("world_size") or 0, rank + 1)
        if not self._told and self._infos and len(self._infos) >= self._world:
            self._told = True
            known = [self._infos[rank] for rank in sorted(self._infos)]
            hosts = {info.node: self._hosts.get(info.node) or f"node {info.node}" for info in known}
            yield self._remember(Ranks(tuple(replace(info, host=hosts[info.node]) for info in known), self.attempt))

    def _remember(self, ranks: Ranks) -> Ranks:
        told = [[i.rank, i.node, i.host, i.local_rank, dict(i.role)] for i in ranks.ranks]
        if self.kept is not None:
            with contextlib.suppress(OSError):  # a full disk: an advisor that starts anew is blind then
                self.kept.write_text(json.dumps([ranks.attempt, told]))
        return ranks

    def _remembered(self) -> Iterator[Event]:
        if self.kept is None:
            return
        with contextlib.suppress(OSError, ValueError, TypeError):
            attempt, told = json.loads(self.kept.read_text())
            known = [RankInfo(rank, node, host, local, role=role) for rank, node, host, local, role in told]
            self.attempt, self._told, self._world = int(attempt), True, len(known)
            self._infos = {info.rank: info for info in known}
            self._hosts = {info.node: info.host for info in known}
            yield Ranks(tuple(known), self.attempt)

    def _steps(self, frame: Frame) -> list[StepTime]:
        cells = np.frombuffer(frame.payload, dtype="<i8").reshape(-1, len(STEP.names))
        cells = cells[cells[:, _ATTEMPT] == max(self.attempt, 0)]
        known = np.where(cells == INT_NULL, 0, cells)
        own = known[:, _OWN_CELLS].sum(axis=1)
        busy = known[:, _BUSY_CELLS].sum(axis=1)
        blocked = np.where(
            cells[:, _COLUMNS["gpu_blocked_us"]] == INT_NULL,
            known[:, _COLUMNS["blocked_us"]],
            known[:, _COLUMNS["gpu_blocked_us"]],
        )
        on_gpu = cells[:, _COLUMNS["gpu_blocked_us"]] != INT_NULL
        # The host's spans say nothing of a GPU's waiting: what is not blocked there is the rank's own.
        rest = (
            known[:, _COLUMNS["dur_us"]]
            - blocked
            - busy
            - known[:, _COLUMNS["gc_us"]]
            - known[:, _COLUMNS["compile_us"]]
        )
        own = np.where(on_gpu, rest, own)
        now_s = time.monotonic()
        found = []
        for row, own_us, busy_us, blocked_us in zip(known, own, busy, blocked, strict=True):
            rank = int(row[_RANK_AT])
            info = self._infos.get(rank)
            dur_us = int(row[_COLUMNS["dur_us"]])
            ended_s = (int(row[_COLUMNS["start_mono_ns"]]) / 1e3 + dur_us) / 1e6
            same_clock = info is not None and info.node == self.node and ended_s <= now_s
            found.append(
                StepTime(
                    rank,
                    int(row[_STEP_AT]),
                    max(float(own_us), 0.0) / 1e6,
                    float(blocked_us) / 1e6,
                    dur_us / 1e6,
                    ended_s if same_clock else now_s,
                    float(busy_us) / 1e6,
                )
            )
        return found


def _told(frame: Frame) -> list[dict[str, Any]]:
    """Rows by their columns; none where they don't fit: the ingester says so."""
    try:
        return [dict(zip(frame.table.names, cells, strict=True)) for cells in frame.json_rows()]
    except SpoolError:
        return []


def _info(rank: int, told: dict[str, Any]) -> RankInfo:
    node, local = told.get("node"), told.get("local_rank")
    number = node if isinstance(node, int) else 0
    role = {name: told.get(f"role_{name}") for name in ("dp", "tp", "pp")}
    return RankInfo(
        rank=rank,
        node=number,
        host="",
        local_rank=local if isinstance(local, int) else None,
        role={name: value for name, value in role.items() if isinstance(value, int)},
    )
