"""A job whose mode is switched while it runs: real policies in simulated time, recorded by the real journal."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from starprof.control.journal import NATIVE, ControlJournal
from starprof.model.rundata import RunData
from starprof.model.schema import BY_NAME, row
from starprof.spool.frame import json_frame, packed_frame
from starprof.spool.layout import Spool
from starprof.spool.segment import SegmentWriter
from starprof.store.ingest import fold
from starprof.store.query import load_run
from starprof.sync.policies import Arrived, Gradient, Policy, Woken, create

BOOT_S = 1_000.0
"""What the clock of the node shows when the first step begins."""

STEP, RANK, NODE = BY_NAME["step"], BY_NAME["rank"], BY_NAME["node"]


@dataclass(frozen=True)
class Phase:
    """Some updates under one mode."""

    mode: str
    updates: int
    options: Mapping[str, object] = field(default_factory=dict)
    asked_by: str = "advisor"
    reason: str = ""


STAR = (
    Phase(NATIVE, 160),
    Phase("m-sync", 260, {"m": 7}, reason="rank 5 takes 3.1 times as long as the median rank since step 60"),
    Phase("m-sync-fold", 240, {"m": 6}, "user", "its data must not be lost"),
    Phase("asgd", 900, {}, "user", "to compare"),
    Phase(NATIVE, 150, {}, "coordinator", "no rank is slow any more"),
)


class Job:
    """Ranks that compute, wait and are released; `slow` takes `factor` times as long from update `since` on."""

    def __init__(
        self, folder: Path, ranks: int = 8, *, slow: int = 5, factor: float = 3.1, since: int = 60, seed: int = 1
    ) -> None:
        self.run_file = folder / "controlled.starprof"
        self.spool = Spool.beside(self.run_file)
        self.spool.create()
        self.spool.run_json.write_text(json.dumps({"run_id": "r", "name": "controlled", "command": ["train.py"]}))
        self.journal = ControlJournal(self.spool.segments, 0)
        self.ranks, self.slow, self.factor, self.since = ranks, slow, factor, since
        self.rng = np.random.default_rng(seed)
        self.now_s = 0.0
        self.version = 0
        self.progress = 0.0
        self.steps: list[list[object]] = []
        self.done = [0] * ranks  # steps
        self.batches = [0] * ranks
        self.numbers = [0] * ranks

    def own_s(self, rank: int, *, healed: bool = False) -> float:
        """How long a rank computes this time."""
        slow = self.factor if rank == self.slow and self.version >= self.since and not healed else 1.0
        return float(0.06 * slow * self.rng.lognormal(0.0, 0.05))

    def play(self, phases: Sequence[Phase]) -> None:
        """All phases one after the other; in a last one of native steps no rank is slow."""
        before: Phase | None = None
        for at, phase in enumerate(phases):
            if before is not None:
                self.journal.switch(
                    from_mode=before.mode,
                    from_options=before.options,
                    to_mode=phase.mode,
                    to_options=phase.options,
                    asked_by=phase.asked_by,
                    reason=phase.reason,
                    version=self.version,
                    epoch=1,
                    took_us=int(self.rng.uniform(60e3, 250e3)),
                    mono_ns=self._ns(self.now_s),
                )
            if phase.mode == NATIVE:
                self._native(phase.updates, healed=at == len(phases) - 1)
            else:
                self._rounds(phase)
            before = phase

    def _native(self, updates: int, *, healed: bool) -> None:
        for _ in range(updates):
            own = [self.own_s(rank, healed=healed) for rank in range(self.ranks)]
            length = max(own) + 0.004
            for rank in range(self.ranks):
                self._step(rank, self.now_s, length, own[rank])
                self.batches[rank] += 1
            self.now_s += length
            self.version += 1
            self.progress += 1

    def _rounds(self, phase: Phase) -> None:
        policy = create(phase.mode, range(self.ranks), phase.options, self.version)
        end = self.version + phase.updates
        held = [self.version] * self.ranks
        begun = [self.now_s] * self.ranks
        own = [self.own_s(rank) for rank in range(self.ranks)]
        queue = [(begun[rank] + own[rank], rank) for rank in range(self.ranks)]
        heapq.heapify(queue)
        arrived = [0.0] * self.ranks
        wake_s: float | None = None
        while self.version < end:
            if wake_s is not None and wake_s < queue[0][0]:
                self.now_s, wake_s = wake_s, None
                decision = policy.decide(Woken(self.now_s))
            else:
                self.now_s, rank = heapq.heappop(queue)
                arrived[rank] = self.now_s
                gradient = Gradient(rank, self.numbers[rank], held[rank], 32)
                self.numbers[rank] += 1
                self.batches[rank] += 1
                decision = policy.decide(Arrived(gradient, self.now_s))
            wake_s = decision.wake_at_s
            for update in decision.updates:
                self.journal.update(
                    update, mode=phase.mode, options=phase.options, epoch=1, mono_ns=self._ns(self.now_s)
                )
                self.version += 1
                self.progress += sum(update.weights)
            for rank in decision.release:
                self._released(rank, begun, own, arrived, held)
                heapq.heappush(queue, (begun[rank] + own[rank], rank))
        self._close(policy)

    def _released(self, rank: int, begun: list[float], own: list[float], arrived: list[float], held: list[int]) -> None:
        behind = max(int(self.progress) - self.batches[rank], 0)
        self.journal.rank_step(
            rank=rank,
            step=self.done[rank],
            number=self.numbers[rank] - 1,
            version=self.version,
            waited_us=round((self.now_s - arrived[rank]) * 1e6),
            updates=self.version - held[rank],
            skipped=behind,
        )
        self.batches[rank] += behind
        free_s = self.now_s + 0.004 + 0.0005 * (self.version - held[rank])
        self._step(rank, begun[rank], free_s - begun[rank], own[rank])
        begun[rank], held[rank], own[rank] = free_s, self.version, self.own_s(rank)

    def _close(self, policy: Policy) -> None:
        self.version = policy.version
        self.now_s += 0.02

    def _step(self, rank: int, begin_s: float, length_s: float, own_s: float) -> None:
        us = round(length_s * 1e6)
        own = min(round(own_s * 1e6), us)
        cells = {
            "attempt": 0,
            "rank": rank,
            "step": self.done[rank],
            "start_mono_ns": self._ns(begin_s),
            "dur_us": us,
            "forward_us": own // 3,
            "backward_us": own - own // 3,
            "blocked_us": us - own,
            "arrival_us": own,
        }
        self.steps.append(row(STEP, **cells))
        self.done[rank] += 1

    def _ns(self, second: float) -> int:
        return round((BOOT_S + second) * 1e9)

    def load(self) -> RunData:
        """Fold the spool in and read the run."""
        self.journal.close()
        assert self.journal.errors == 0
        per_node = 8
        writer = SegmentWriter(self.spool.segments, "n0")
        nodes = [row(NODE, node=n, host=f"host{n}", boot_id="one") for n in range(-(-self.ranks // per_node))]
        ranks = [
            row(RANK, attempt=0, rank=r, node=r // per_node, local_rank=r % per_node, world_size=self.ranks,
                device="cpu", framework="ddp", backend="gloo")
            for r in range(self.ranks)
        ]  # fmt: skip
        writer.write([json_frame(NODE, "n0-1-1/node", 0, nodes), json_frame(RANK, "n0-1-1/ranks", 0, ranks)])
        for first in range(0, len(self.steps), 5_000):
            writer.write([packed_frame(STEP, "n0-1-1/step", first, self.steps[first : first + 5_000])])
        writer.close()
        fold(self.spool, self.run_file, final=True)
        return load_run(self.run_file)


def controlled_run(folder: Path, phases: Sequence[Phase] = STAR, **job: int | float) -> RunData:
    """A run under these phases, read from its file."""
    made = Job(folder, **job)
    made.play(phases)
    return made.load()
