"""Pipeline-parallel jobs whose every operation is known: simulated one by one, with faults, as op traces hold them.

The simulator knows nothing of the analysis: it lets each rank run its program (1F1B, or all forward then all backward
with several chunks per rank), and a transfer or collective end when its last participant is there and the bytes are
through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pandas as pd

from starprof.analysis.arrays import Floats, Ints
from starprof.model.rundata import RankInfo, RunData, Steps
from starprof.model.tables.job import EVENT, GAP, NODE, UNAVAILABLE

Place: TypeAlias = tuple[int, int]
"""Pipeline and stage."""
Pass: TypeAlias = tuple[str, int, int]
"""forward or backward, chunk, micro-batch."""
Factor: TypeAlias = float | Callable[[Ints], Floats]
Costs: TypeAlias = Callable[[np.random.Generator, tuple[int, int, int]], Floats]

MS = 1000.0
FIRST_STEP = 100
EXCHANGE = "-exchange"
EXCHANGE_US = 5 * MS


@dataclass(frozen=True)
class OpJob:
    """A job; times in microseconds.

    Attributes:
        experts: pipelines whose ranks of a stage exchange tokens after each pass (an all-to-all); 1 is none.
        slow: per (pipeline, stage) a factor of its passes, or a function of the step numbers, shape (S,).
        slow_forward, slow_backward: the same for one kind of pass.
        cost: of micro-batches, shape (S, D, M): a function of the random generator and that shape.
        links: per (pipeline, lower stage) a factor of the transfers between it and the next.
        link_ways: the same for one direction, per (forward or backward, pipeline, lower stage).
        delay_us: per (pipeline, stage) what the first pass of a step begins late, or a function of the step numbers.
        work_us: more time in an operation, per (name, pipeline, stage).
        groups: per (name, number) a factor of a collective: of a stage, of a pipeline (embedding), of all (0).
        clock_us: per (pipeline, stage) how far the clock of the rank is ahead.
        lost: operations that were not recorded: (step index, pipeline, stage, name).
        missing: places of which nothing was recorded.
    """

    pipelines: int = 4
    stages: int = 4
    micro_batches: int = 8
    steps: int = 20
    chunks: int = 1
    tensor: int = 1
    experts: int = 1
    forward_us: tuple[float, ...] = ()
    noise: float = 0.02
    transfer_us: float = 1 * MS
    seed: int = 1
    slow: Mapping[Place, Factor] = field(default_factory=dict)
    slow_forward: Mapping[Place, Factor] = field(default_factory=dict)
    slow_backward: Mapping[Place, Factor] = field(default_factory=dict)
    cost: Costs | None = None
    links: Mapping[Place, Factor] = field(default_factory=dict)
    link_ways: Mapping[tuple[str, int, int], Factor] = field(default_factory=dict)
    delay_us: Mapping[Place, Factor] = field(default_factory=dict)
    work_us: Mapping[tuple[str, int, int], float] = field(default_factory=dict)
    groups: Mapping[tuple[str, int], Factor] = field(default_factory=dict)
    clock_us: Mapping[Place, float] = field(default_factory=dict)
    lost: tuple[tuple[int, int, int, str], ...] = ()
    missing: tuple[Place, ...] = ()
    names: Callable[[str], str] = str

    def rank(self, pipeline: int, stage: int) -> int:
        """Global rank of tensor-parallel rank 0 of a place."""
        return (stage * self.pipelines + pipeline) * self.tensor

    @cached_property
    def ranks(self) -> tuple[RankInfo, ...]:
        """Who is in the trace."""
        places = [(d, p) for p in range(self.stages) for d in range(self.pipelines) if (d, p) not in self.missing]
        return tuple(RankInfo(rank=self.rank(d, p), node=-1, host="", role={"dp": d, "pp": p}) for d, p in places)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The operations, as table `operation`."""
        return _Simulation(self).frame()

    def data(self) -> RunData:
        """The job as an imported run."""
        empty = {t.name: pd.DataFrame(columns=list(t.names)) for t in (EVENT, GAP, NODE, UNAVAILABLE)}
        return RunData(
            info={"name": "job", "file": "job", "attempts": (0,), "source_format": "op-trace", "note": ""},
            attempt=0,
            ranks=self.ranks,
            steps=Steps(np.empty(0, np.int64), {}, np.empty((len(self.ranks), 0), np.int64)),
            samples={},
            events=empty["event"],
            gaps=empty["gap"],
            unavailable=empty["unavailable"],
            nodes=empty["node"],
            operations=self.frame,
        )


class _Simulation:
    def __init__(self, job: OpJob) -> None:
        self.job = job
        self.rng = np.random.default_rng(job.seed)
        self.shape = (job.steps, job.pipelines, job.micro_batches)
        self.cost = np.ones(self.shape) if job.cost is None else job.cost(self.rng, self.shape)
        self.rows: list[tuple[Place, str, int, Floats, Floats, float, float]] = []
        self.passed: dict[tuple[str, int, int, int, int], Floats] = {}
        self.exchanged: dict[tuple[str, int, int, int, int], Floats] = {}
        self.done: dict[tuple[str, int, int, int, int], Floats] = {}
        self.count: dict[tuple[str, Place], int] = {}
        self.places = [(d, p) for d in range(job.pipelines) for p in range(job.stages)]
        self.clock = {place: np.zeros(job.steps) for place in self.places}

    def frame(self) -> pd.DataFrame:
        job = self.job
        self._together("params-all-gather", 20 * MS, lambda _, p: p)
        self._passes()
        for place in self.places:
            self._alone("layernorm-grads-all-reduce", place, 0.05 * MS)
        ends = [place for place in self.places if place[1] in (0, job.stages - 1)] if job.stages > 1 else []
        self._together("embedding-grads-all-reduce", 10 * MS, lambda d, _: d, ends)
        self._together("grads-reduce-scatter", 40 * MS, lambda _, p: p)
        self._together("optimizer-clip-main-grad", 5 * MS, lambda _, __: 0)
        for place in self.places:
            self._alone("optimizer", place, 10 * MS)
        frame = self._table()
        for step, d, p, name in job.lost:
            gone = (frame["step"] == FIRST_STEP + step) & (frame["rank"] == job.rank(d, p)) & (frame["name"] == name)
            frame = frame[~gone]
        return frame

    def _table(self) -> pd.DataFrame:
        """The rows with a line per step."""
        steps, count = self.job.steps, len(self.rows)
        places, names, numbers, starts, lasting, batches, chunks = zip(*self.rows, strict=True)
        spelt = {name: self.job.names(name) for name in dict.fromkeys(names)}
        kinds = {name: at for at, name in enumerate(dict.fromkeys(spelt.values()))}
        ahead = np.array([self.job.clock_us.get(place, 0.0) for place in places])
        columns = {
            "rank": np.array([self.job.rank(*place) for place in places], np.int64),
            "name": np.array([kinds[spelt[name]] for name in names]),
            "micro_batch": np.array(batches, float),
            "chunk": np.array(chunks, float),
            "sequence": np.array(numbers, np.int64),
        }
        long = {name: np.repeat(values, steps) for name, values in columns.items()}
        return pd.DataFrame(
            {
                "attempt": np.zeros(count * steps, np.int64),
                "rank": long["rank"],
                "step": np.tile(FIRST_STEP + np.arange(steps), count),
                "name": np.array(list(kinds), object)[long["name"]],
                "start_us": (np.stack(starts) + ahead[:, None]).ravel(),
                "dur_us": np.stack(lasting).ravel(),
                **{name: long[name] for name in ("micro_batch", "chunk", "sequence")},
            }
        )

    def _passes(self) -> None:
        """All forward and backward passes, each as soon as what it needs is there."""
        programs = {place: self._program(place[1]) for place in self.places}
        posted = {way: dict(self.clock) for way in ("forward", "backward")}
        begun: set[Place] = set()
        while any(programs.values()):
            left = sum(len(program) for program in programs.values())
            for place, program in programs.items():
                while program and self._possible(place, program[0]):
                    self._turn(place, program.pop(0), posted, first=place not in begun)
                    begun.add(place)
            if left == sum(len(program) for program in programs.values()):
                raise AssertionError("the simulated job hangs")

    def _program(self, stage: int) -> list[Pass]:
        """Passes of a stage in their order: (way, chunk, micro-batch)."""
        batches, chunks = range(self.job.micro_batches), range(self.job.chunks)
        forward = [("forward", c, m) for c in chunks for m in batches]
        backward = [("backward", c, m) for c in reversed(chunks) for m in batches]
        if self.job.chunks > 1:
            return self._with_exchanges(forward + backward)
        ahead = min(self.job.stages - 1 - stage, self.job.micro_batches)
        order = forward[:ahead]
        for at in range(ahead, self.job.micro_batches):
            order += [forward[at], backward[at - ahead]]
        return self._with_exchanges(order + backward[self.job.micro_batches - ahead :])

    def _with_exchanges(self, passes: list[Pass]) -> list[Pass]:
        if self.job.experts == 1:
            return passes
        return [item for way, c, m in passes for item in ((way, c, m), (f"{way}{EXCHANGE}", c, m))]

    def _source(self, place: Place, item: Pass) -> tuple[str, int, int, int, int] | None:
        """Pass whose result this one needs from another rank (or, at the turn, from the same rank)."""
        (d, p), (way, c, m) = place, item
        at = c * self.job.stages + p + (-1 if way == "forward" else 1)
        if at < 0:
            return None
        if at == self.job.chunks * self.job.stages:
            return ("forward", c, d, p, m)
        return (way, at // self.job.stages, d, at % self.job.stages, m)

    def _possible(self, place: Place, item: Pass) -> bool:
        if item[0].endswith(EXCHANGE):
            return all(member in self.passed for member in self._members(place, item))
        source = self._source(place, item)
        return source is None or source in self.done

    def _members(self, place: Place, item: Pass) -> list[tuple[str, int, int, int, int]]:
        """Passes whose tokens are exchanged together."""
        (d, p), (way, c, m) = place, item
        first = d - d % self.job.experts
        return [(way.removesuffix(EXCHANGE), c, e, p, m) for e in range(first, first + self.job.experts)]

    def _turn(self, place: Place, item: Pass, posted: dict[str, dict[Place, Floats]], *, first: bool) -> None:
        """The next pass of a place, or the exchange of its tokens."""
        if not item[0].endswith(EXCHANGE):
            self._pass(place, item, posted, first=first)
            return
        members = self._members(place, item)
        if members[0] not in self.exchanged:
            ready = np.max([self.passed[member] for member in members], axis=0)
            self.exchanged[members[0]] = ready + EXCHANGE_US * self._scatter()
        way, start, end = item[0].removesuffix(EXCHANGE), self.clock[place], self.exchanged[members[0]]
        self._row("ep-all-to-all", place, start, end - start, None, None)
        self.clock[place] = posted[way][place] = end
        self.done[way, item[1], *place, item[2]] = end

    def _pass(self, place: Place, item: Pass, posted: dict[str, dict[Place, Floats]], *, first: bool) -> None:
        (d, p), (way, c, m) = place, item
        source = self._source(place, item)
        start = self.clock[place]
        if source is not None and source[0] == way and source[3] != p:
            start = np.maximum(start, self._receive(place, way, source, posted[way][place]))
        if first:
            start = start + self._value(self.job.delay_us.get(place, 0.0))
        lasting = self._lasting(place, way, m)
        self._row(f"{way}-compute", place, start, lasting, m, c)
        self.clock[place] = posted[way][place] = self.passed[way, c, d, p, m] = start + lasting
        if self.job.experts == 1:
            self.done[way, c, d, p, m] = start + lasting

    def _lasting(self, place: Place, way: str, m: int) -> Floats:
        d, p = place
        job = self.job
        usual = (job.forward_us or (100 * MS,) * job.stages)[p] * (1.0 if way == "forward" else 2.0)
        lasting: Floats = usual / job.chunks * self.cost[:, d, m] * self._scatter()
        for factors in (job.slow, job.slow_forward if way == "forward" else job.slow_backward):
            lasting = lasting * self._value(factors.get(place, 1.0))
        return lasting

    def _value(self, told: Factor) -> float | Floats:
        return told(np.arange(self.job.steps)) if callable(told) else told

    def _scatter(self) -> Floats:
        return np.exp(self.job.noise * self.rng.standard_normal(self.job.steps))

    def _receive(self, place: Place, way: str, source: tuple[str, int, int, int, int], posted: Floats) -> Floats:
        """Rows of both ends of the transfer that a pass needs; returns when it is through."""
        d, p = place
        sender, sent = source[3], self.done[source]
        link = d, min(p, sender) if abs(p - sender) == 1 else max(p, sender)  # the last stage feeds the first one
        slower = self._value(self.job.links.get(link, 1.0)) * self._value(self.job.link_ways.get((way, *link), 1.0))
        end = np.maximum(sent, posted) + self.job.transfer_us * slower * self._scatter()
        self._row(f"{way}-send", (d, sender), sent, end - sent, None, None)
        self._row(f"{way}-recv", place, posted, end - posted, None, None)
        return end

    def _together(
        self, name: str, usual: float, group: Callable[[int, int], int], places: list[Place] | None = None
    ) -> None:
        """A collective of each group of places."""
        members: dict[int, list[Place]] = {}
        for place in self.places if places is None else places:
            members.setdefault(group(*place), []).append(place)
        for number, those in members.items():
            lasting = usual * self._value(self.job.groups.get((name, number), 1.0)) * self._scatter()
            end = np.max([self.clock[place] for place in those], axis=0) + lasting
            for place in those:
                self._row(name, place, self.clock[place], end - self.clock[place], None, 0)
                self.clock[place] = end

    def _alone(self, name: str, place: Place, usual: float) -> None:
        lasting = usual * self._scatter() + self.job.work_us.get((name, *place), 0.0)
        self._row(name, place, self.clock[place], lasting, None, None)
        self.clock[place] = self.clock[place] + lasting

    def _row(
        self, name: str, place: Place, start: Floats, lasting: Floats, micro_batch: int | None, chunk: int | None
    ) -> None:
        number = self.count.get((name, place), 0)
        self.count[name, place] = number + 1
        if place not in self.job.missing:
            told = [np.nan if value is None else float(value) for value in (micro_batch, chunk)]
            self.rows.append((place, name, number, start, lasting, told[0], told[1]))


def lengths(spread: float = 0.25) -> Costs:
    """Costs of micro-batches of unequal sequence lengths."""
    return lambda rng, shape: np.exp(spread * rng.standard_normal(shape))
