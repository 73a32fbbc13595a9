"""Synthetic runs with known truth, through the same record model that real runs use.

A run is simulated between its synchronisation points, as data-parallel training works: every rank needs its own
time (the phases before the reduction, plus the optimizer of the step before), the last one to arrive releases
all, and the rest is waiting:

    cycle[i, k]   = optimizer[i, k - 1] + phases before the reduction[i, k]
    reduced[k]    = reduced[k - 1] + max_i cycle[i, k] + transfer[k]
    blocked[i, k] = max_j cycle[j, k] - cycle[i, k] + transfer[k]

So durations are equal over ranks, the culprit blocks least, and the time a fault costs is known exactly: the same
run, same seed, without it (`SyntheticRun.cost_seconds`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import factorial
from typing import TYPE_CHECKING

import numpy as np
from scipy.signal import lfilter

from starprof.analysis.synthetic.counters import counter_frames, node_frame
from starprof.analysis.synthetic.dealt import Dealt
from starprof.analysis.synthetic.devices import gpu_uuid
from starprof.analysis.synthetic.faults import Fault
from starprof.analysis.synthetic.frames import empty_frame
from starprof.analysis.synthetic.recording import Recording
from starprof.analysis.synthetic.trouble import Trouble
from starprof.model.rundata import RankInfo, RunData, Steps
from starprof.model.schema import STEP_SPANS
from starprof.model.tables.job import EVENT, GAP, STEP, UNAVAILABLE

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats, Ints

PHASES_US: Mapping[str, float] = {
    "data_wait": 2_000.0,
    "h2d": 500.0,
    "forward": 20_000.0,
    "backward": 36_000.0,
    "optimizer": 4_000.0,
    "unaccounted": 1_000.0,
}
FIRST_STEP_FACTOR = 6.0
FIRST_START_NS = 10_000_000_000


@dataclass(frozen=True)
class SyntheticRun:
    """Recipe of a run; `data()` makes it, always the same for the same recipe.

    Attributes:
        nodes: ranks are dealt to nodes in equal blocks.
        cv: step-to-step noise of a rank's own time, as a share of it.
        ar1: correlation of that noise from one step to the next.
        spread: standard deviation of the ranks' constant differences, as a share of own time.
        heavy_tail: Student t noise with 3 degrees of freedom instead of normal (scaled to the same cv).
        counters: also make host and network samples.
        cores: logical CPUs of a node.
        missing_ranks: ranks that left no records at all.
        gpus: each rank computes on a GPU of its own, with counters.
        numa_nodes: NUMA nodes of a machine; its cores and GPUs are dealt to them in equal blocks.
        infiniband: each node has an InfiniBand port that carries the reductions instead of the Ethernet.
        cpu_lists: affinity mask per rank instead of all cores.
        stages: pipeline stages, to which the ranks are dealt in equal blocks; 1 = none.
        recording: how well the counters were recorded; None = perfectly.
    """

    ranks: int = 4
    steps: int = 400
    seed: int = 0
    nodes: int = 1
    cv: float = 0.03
    ar1: float = 0.0
    spread: float = 0.005
    heavy_tail: bool = False
    phases_us: Mapping[str, float] = field(default_factory=lambda: dict(PHASES_US))
    transfer_us: float = 4_000.0
    faults: tuple[Fault, ...] = ()
    counters: bool = True
    rate_hz: float = 10.0
    cores: int = 8
    missing_ranks: tuple[int, ...] = ()
    gpus: bool = False
    numa_nodes: int = 1
    infiniband: bool = False
    cpu_lists: Mapping[int, str] = field(default_factory=dict)
    stages: int = 1
    recording: Recording | None = None

    @property
    def node_of(self) -> Ints:
        """Node of each rank, shape (R,)."""
        return np.arange(self.ranks) * self.nodes // self.ranks

    @cached_property
    def own_us(self) -> dict[str, Floats]:
        """Time per phase without any fault, shape (R, S)."""
        rng = np.random.default_rng([self.seed, 0])
        shape = (self.ranks, self.steps)
        level = 1.0 + self.spread * rng.standard_normal((self.ranks, 1))
        noise = self._noise(rng, shape, self.ar1)
        sigma = np.sqrt(np.log1p(self.cv**2))
        factor = level * np.exp(sigma * noise - sigma**2 / 2)
        phases = {}
        for name, base in self.phases_us.items():
            jitter = 1.0 + 0.3 * self.cv * rng.standard_normal(shape).clip(-3, 3)
            phases[name] = base * factor * jitter
            phases[name][:, 0] *= FIRST_STEP_FACTOR
        return phases

    @cached_property
    def transfer_per_step_us(self) -> Floats:
        """Transfer time without any fault, shape (S,)."""
        rng = np.random.default_rng([self.seed, 1])
        transfer: Floats = self.transfer_us * np.exp(0.05 * rng.standard_normal(self.steps))
        return transfer

    def excess_us(self) -> list[dict[str, Floats]]:
        """What each fault adds (see `Fault.excess_us`); independent of the other faults."""
        return [
            fault.excess_us(self.own_us, np.random.default_rng([self.seed, 2, i]))
            for i, fault in enumerate(self.faults)
        ]

    def phases(self) -> tuple[dict[str, Floats], Floats]:
        """Time per phase with all faults, shape (R, S), and transfer time, shape (S,)."""
        return self._phases(self.excess_us())

    def seconds(self) -> float:
        """Wall time of the whole run."""
        return _seconds(*self.phases())

    def cost_seconds(self, index: int | None = None) -> float:
        """Wall seconds lost to one fault, or to all together.

        Where faults overlap in time the loss is shared between them by the Shapley value of removing faults
        from the run, so that the parts add up to the whole.
        """
        parts = self.excess_us()
        indices = range(len(parts))

        def seconds(kept: Sequence[int]) -> float:
            return _seconds(*self._phases([parts[i] for i in kept]))

        if index is None:
            return seconds(list(indices)) - seconds([])
        others = [i for i in indices if i != index]
        total, n = 0.0, len(parts)
        for size in range(n):
            weight = factorial(size) * factorial(n - size - 1) / factorial(n)
            for kept in combinations(others, size):
                total += weight * (seconds([*kept, index]) - seconds(kept))
        return total

    def data(self) -> RunData:
        """The run as the analysis reads it."""
        parts = self.excess_us()
        phases, transfer = self._phases(parts)
        steps = _steps(phases, transfer, self.gpus)
        self._note(steps, parts)
        frames = counter_frames(self, steps, parts) if self.counters else {}
        if self.recording is not None:
            frames = self.recording.applied(frames, self.rate_hz, self.seed)
        for rank in self.missing_ranks:
            for column in steps.columns.values():
                column[rank] = np.nan
            steps.start_mono_ns[rank] = 0
        return RunData(
            info={
                "run_id": f"synthetic-{self.seed}",
                "name": "synthetic",
                "file": "synthetic.starprof",
                "command": "synthetic",
                "attempts": 1,
                "exit_code": 0,
            },
            attempt=0,
            ranks=tuple(self._rank(i, int(self.node_of[i])) for i in range(self.ranks)),
            steps=steps,
            samples=frames,
            events=empty_frame(EVENT),
            gaps=empty_frame(GAP),
            unavailable=empty_frame(UNAVAILABLE),
            nodes=node_frame(self),
            clock_offset_ns={0: (0, 0)},
        )

    def _note(self, steps: Steps, parts: Sequence[Mapping[str, Floats]]) -> None:
        """What faults change in the step records beside times."""
        for i, (fault, part) in enumerate(zip(self.faults, parts, strict=True)):
            if isinstance(fault, Trouble):
                fault.note(steps.columns, part, np.random.default_rng([self.seed, 5, i]))
            elif isinstance(fault, Dealt):
                fault.note(steps.columns, part, self.own_us)

    def _noise(self, rng: np.random.Generator, shape: tuple[int, int], ar1: float) -> Floats:
        """Unit-variance AR(1) noise along the steps."""
        if self.heavy_tail:
            white = np.clip(rng.standard_t(3, shape) / np.sqrt(3.0), -4.0, 12.0)
        else:
            white = rng.standard_normal(shape)
        if ar1 == 0.0:
            return np.asarray(white)
        scaled = white * np.sqrt(1.0 - ar1**2)
        scaled[:, 0] = white[:, 0]
        filtered: Floats = lfilter([1.0], [1.0, -ar1], scaled, axis=1)
        return filtered

    def _phases(self, parts: Sequence[Mapping[str, Floats]]) -> tuple[dict[str, Floats], Floats]:
        phases = {name: values.copy() for name, values in self.own_us.items()}
        transfer = self.transfer_per_step_us.copy()
        for part in parts:
            for name, values in part.items():
                if name == "transfer":
                    transfer += values
                else:
                    phases[name] = phases.get(name, 0.0) + values
        return phases, transfer

    def _rank(self, rank: int, node: int) -> RankInfo:
        per_node = -(-self.ranks // self.nodes)
        return RankInfo(
            rank=rank,
            node=node,
            host=f"node{node}",
            local_rank=rank % per_node,
            pid=1000 + rank,
            device="cuda:0" if self.gpus else "cpu",
            gpu_uuid=gpu_uuid(rank) if self.gpus else None,
            cpus=self.cpu_lists.get(rank, f"0-{self.cores - 1}"),
            role={"pp": rank * self.stages // self.ranks} if self.stages > 1 else {},
            framework="ddp",
            backend="nccl" if self.gpus else "gloo",
        )


def synthetic_run(
    ranks: int = 4, steps: int = 400, seed: int = 0, *, faults: Sequence[Fault] = (), **recipe: float
) -> RunData:
    """Make a run at once: `SyntheticRun(...).data()`. See `SyntheticRun` for the recipe's other names."""
    return SyntheticRun(ranks=ranks, steps=steps, seed=seed, faults=tuple(faults), **recipe).data()  # type: ignore[arg-type]


def _cycle(phases: Mapping[str, Floats]) -> Floats:
    """Own time from one reduction to the next, shape (R, S)."""
    cycle: Floats = np.sum([v for k, v in phases.items() if k != "optimizer"], axis=0)
    cycle[:, 1:] += phases["optimizer"][:, :-1]
    return cycle


def _seconds(phases: Mapping[str, Floats], transfer: Floats) -> float:
    return float(_cycle(phases).max(axis=0).sum() + transfer.sum() + phases["optimizer"][:, -1].max()) / 1e6


def _steps(phases: Mapping[str, Floats], transfer: Floats, on_gpu: bool) -> Steps:
    """Lay the simulated phases out as step records."""
    cycle = _cycle(phases)
    shape = cycle.shape
    blocked = cycle.max(axis=0) - cycle + transfer
    columns = {name: np.full(shape, np.nan) for name in STEP.names if name.endswith(("_us", "_ns"))}
    del columns["start_mono_ns"]
    for name in STEP_SPANS:
        columns[name] = np.rint(phases.get(name.removesuffix("_us"), np.zeros(shape)))
    columns["blocked_us"] = np.rint(blocked)
    duration = np.sum([columns[name] for name in STEP_SPANS], axis=0)
    columns["dur_us"] = duration
    columns["arrival_us"] = duration - columns["blocked_us"] - columns["optimizer_us"]
    columns["first_bucket_us"] = columns["arrival_us"] - np.rint(0.7 * columns["backward_us"])
    for name, value in {"micro_batches": 1.0, "collectives": 0.0, "samples": 32.0, "alloc_retries": 0.0}.items():
        columns[name] = np.full(shape, value)
    columns["tokens"] = np.full(shape, np.nan)
    columns["hook_ns"] = np.full(shape, 12_000.0)
    for name in columns:
        if name.startswith("gpu_"):
            host_name = name.removeprefix("gpu_")
            columns[name] = columns[host_name].copy() if on_gpu else np.full(shape, np.nan)
    start = np.zeros(shape, np.int64)
    start[:, 1:] = np.cumsum(duration[:, :-1], axis=1).astype(np.int64) * 1000
    return Steps(np.arange(shape[1]), columns, start + FIRST_START_NS)
