"""What each rank needed for itself, step by step: the basis of everything else.

In synchronous training all ranks' steps last equally long; what tells them apart is the part of it that a rank was
NOT waiting: `own = dur - blocked`. The reduction happens before the optimizer, so what lies between two reductions
is the optimizer of the step before plus the phases before the reduction; that sum is called the cycle here, and its
maximum over the ranks, plus the transfer, is the job's step time.

In rounds (`starprof.sync`) nobody waits for the slowest: there the pace is that of the ranks that go ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints, column_medians
from starprof.analysis.peers import peer_groups
from starprof.analysis.settings import Settings
from starprof.model.rundata import RankInfo, RunData

PHASES = ("data_wait", "h2d", "forward", "backward", "optimizer", "user", "unaccounted")
"""Work that every rank does in every step."""

SPECIAL = ("gc", "checkpoint", "eval", "compile")
"""Work that is done now and then; taken out of the comparison of ranks and judged on its own."""

WARM_UP_FACTOR = 1.5


@dataclass(frozen=True)
class OwnTime:
    """Own time of the ranks that have records, steps after warm-up.

    Attributes:
        infos: the ranks, row by row.
        rows: their rows in the run's matrices, shape (R,).
        columns: the kept steps' columns in the run's matrices, shape (S,).
        steps: step numbers, shape (S,).
        first_step: first recorded step of the run, before warm-up was cut.
        phases: regular work, per phase shape (R, S), microseconds, aligned to cycles.
        special: work done now and then, same shape.
        blocked: time in collectives, shape (R, S).
        transfer: what even the last rank to arrive waited, shape (S,).
        start_ns: start of each step in the clock of the rank's node, shape (R, S); 0 = no record.
        groups: peer group of each rank, shape (R,).
        missing: ranks of the job that left no step records.
        on_gpu: the times are the GPUs' own.
        rounds: steps that were made in rounds, shape (S,).
        pace_us: duration of the steps of the rank that made most of those, shape (S,).
    """

    infos: tuple[RankInfo, ...]
    rows: Ints
    columns: Ints
    steps: Ints
    first_step: int
    phases: Mapping[str, Floats]
    special: Mapping[str, Floats]
    blocked: Floats
    transfer: Floats
    start_ns: Ints
    groups: Ints
    missing: tuple[int, ...]
    on_gpu: bool
    rounds: Bools
    pace_us: Floats

    @cached_property
    def work(self) -> Floats:
        """Regular own time, shape (R, S); NaN = no record."""
        total: Floats = np.sum(list(self.phases.values()), axis=0)
        return total

    @cached_property
    def cycle(self) -> Floats:
        """All own time, shape (R, S)."""
        total: Floats = self.work + np.sum(list(self.special.values()), axis=0)
        return total

    @cached_property
    def healthy_step_us(self) -> float:
        """Typical step time if nobody were late: the ranks' median work plus the transfer."""
        return float(np.median(column_medians(self.work) + self.transfer))

    @property
    def shape(self) -> tuple[int, int]:
        """(R, S)."""
        return len(self.rows), len(self.steps)

    @cached_property
    def run_us(self) -> float:
        """Wall time of the kept steps, as the replay sees it: all of them native."""
        return float(self.native_us.sum())

    @cached_property
    def native_us(self) -> Floats:
        """Step time of the job in native steps, and what it would have been in those in rounds, shape (S,)."""
        longest: Floats = np.nanmax(self.cycle, axis=0) + self.transfer
        return longest

    @cached_property
    def job_us(self) -> Floats:
        """Step time of the job, shape (S,)."""
        return np.where(self.rounds, self.pace_us, self.native_us)

    @property
    def hidden_steps(self) -> int:
        """Steps of the run before the first kept one: warm-up, in which nothing can be judged."""
        return int(self.steps[0]) - self.first_step

    def rank(self, row: int) -> int:
        """Global rank of a row."""
        return self.infos[row].rank


def own_time(run: RunData, settings: Settings) -> OwnTime | None:
    """Prepare the own time of a run; None when no rank has a complete step record."""
    duration = _column(run, "dur_us")
    recorded = np.flatnonzero(~np.isnan(duration).all(axis=1))
    if len(recorded) == 0:
        return None
    on_gpu = _has_gpu_times(run, recorded)
    blocked = _blocked(run, recorded, on_gpu)
    spans = {name: _span(run, name, recorded, on_gpu) for name in (*PHASES, *SPECIAL)}
    # What no span shows (and on a GPU the difference between the two clocks) stays with the rank: parts add up.
    own = duration[recorded] - blocked
    spans["unaccounted"] = own - np.sum([v for k, v in spans.items() if k != "unaccounted"], axis=0)
    spans["optimizer"] = _of_step_before(spans["optimizer"], run.steps.steps)
    total = np.sum(list(spans.values()), axis=0)
    complete = np.sum(~np.isnan(total), axis=0) >= max(1, (len(recorded) + 1) // 2)
    columns = np.flatnonzero(complete)
    if len(columns) == 0:
        return None
    rounds = _in_rounds(run)[columns]
    native = columns[~rounds] if not rounds.all() else columns
    warm = _warm_up(total[:, native] + np.nan_to_num(spans["compile"][:, native]), settings)
    warm = min(warm, int(np.argmax(rounds))) if rounds.any() else warm
    columns, rounds = columns[warm:], rounds[warm:]
    passed, before = _passed_over(~np.isnan(total[:, columns]), rounds)
    return OwnTime(
        infos=tuple(run.ranks[i] for i in recorded),
        rows=recorded,
        columns=columns,
        steps=run.steps.steps[columns],
        first_step=int(run.steps.steps[complete][0]),
        phases={name: _carried(spans[name][:, columns], passed, before) for name in PHASES},
        special={name: np.where(passed, 0.0, spans[name][:, columns]) for name in SPECIAL},
        blocked=blocked[:, columns],
        transfer=_transfer(blocked[:, columns], rounds),
        start_ns=run.steps.start_mono_ns[np.ix_(recorded, columns)],
        groups=peer_groups([run.ranks[i].role for i in recorded]),
        missing=_missing_ranks(run, recorded),
        on_gpu=on_gpu,
        rounds=rounds,
        pace_us=_pace(duration[np.ix_(recorded, columns)], rounds),
    )


def _in_rounds(run: RunData) -> Bools:
    """Steps of the run in which any rank was in rounds, shape (S,); a column may stand for several steps."""
    rounds = np.zeros(len(run.steps.steps), bool)
    if run.sync_steps is not None and len(rounds):
        numbers = run.sync_steps["step"].to_numpy(np.int64)
        at = np.searchsorted(run.steps.steps, np.unique(numbers), side="right") - 1
        rounds[at[at >= 0]] = True
    return rounds


def _passed_over(known: Bools, rounds: Bools) -> tuple[Bools, Ints]:
    """Cells that ranks have passed over in rounds, and the column of each rank's record before, shape (R, S).

    While the others made these steps, the rank was still busy with that one.
    """
    places = np.broadcast_to(np.arange(known.shape[1]), known.shape)
    before: Ints = np.maximum.accumulate(np.where(known, places, -1), axis=1)
    later = np.maximum.accumulate(known[:, ::-1], axis=1)[:, ::-1]
    return ~known & later & (before >= 0) & rounds, before


def _carried(values: Floats, passed: Bools, before: Ints) -> Floats:
    """The same with the cells that were passed over filled with what came before."""
    carried: Floats = np.where(passed, np.take_along_axis(values, np.maximum(before, 0), axis=1), values)
    return carried


def _transfer(blocked: Floats, rounds: Bools) -> Floats:
    """What even the last rank waited; in rounds nobody has to wait for it, and it is taken to be as in native steps."""
    transfer: Floats = np.nanmin(blocked, axis=0)
    if rounds.any() and not rounds.all():
        transfer[rounds] = np.median(transfer[~rounds])
    return transfer


def _pace(duration: Floats, rounds: Bools) -> Floats:
    """Durations of the steps in rounds of the rank that made most of them."""
    made = (~np.isnan(duration[:, rounds])).sum(axis=1)
    pace: Floats = np.nan_to_num(duration[int(np.argmax(made))], nan=0.0)
    return pace


def _column(run: RunData, name: str) -> Floats:
    """Matrix of a column, all NaN when the run has no such column."""
    values = run.steps.columns.get(name)
    shape = (len(run.ranks), len(run.steps.steps))
    return np.full(shape, np.nan) if values is None else np.asarray(values, dtype=np.float64)


def _has_gpu_times(run: RunData, recorded: Ints) -> bool:
    """Event times exist for most steps of all ranks (then the host's own times say nothing about waiting)."""
    seen = ~np.isnan(_column(run, "gpu_blocked_us")[recorded])
    return bool((seen.mean(axis=1) > 0.5).all())


def _blocked(run: RunData, recorded: Ints, on_gpu: bool) -> Floats:
    """Time waiting in collectives; all zero when it was never measured, which the caller takes as no answer."""
    host = _column(run, "blocked_us")[recorded]
    if np.isnan(host).all():
        host = np.zeros_like(host)
    if not on_gpu:
        return host
    device = _column(run, "gpu_blocked_us")[recorded]
    return np.where(np.isnan(device), host, device)


def _span(run: RunData, name: str, recorded: Ints, on_gpu: bool) -> Floats:
    """One span; a span that was never measured counts as part of `unaccounted`."""
    values = _column(run, f"{name}_us")[recorded]
    if on_gpu and name in ("forward", "backward", "optimizer"):
        device = _column(run, f"gpu_{name}_us")[recorded]
        values = np.where(np.isnan(device), values, device)
    return np.nan_to_num(values, nan=0.0)


def _of_step_before(optimizer: Floats, steps: Ints) -> Floats:
    """Optimizer time that lies in front of this step's reduction; the same step's where the one before is missing."""
    before = optimizer.copy()
    follows = np.diff(steps) == 1
    before[:, 1:][:, follows] = optimizer[:, :-1][:, follows]
    return before


def _warm_up(total: Floats, settings: Settings) -> int:
    """How many of the first steps are warm-up: a fixed few, and more while steps are still clearly longer."""
    longest = np.nanmax(total, axis=0)
    limit = max(settings.warm_up_steps, int(settings.max_warm_up_share * len(longest)))
    typical = np.median(longest)
    warm = min(settings.warm_up_steps, max(0, len(longest) - 1))
    # Only an unbroken series of ever slower-than-usual first steps; a straggler from the first step on is no warm-up.
    while warm < min(limit, len(longest) - 1) and longest[warm] > WARM_UP_FACTOR * typical:
        warm += 1
    return warm


def _missing_ranks(run: RunData, recorded: Ints) -> tuple[int, ...]:
    """Ranks that should exist but have no step records."""
    seen = {run.ranks[i].rank for i in recorded}
    known = {info.rank for info in run.ranks}
    sizes = [info.detail.get("world_size") for info in run.ranks] + [run.info.get("world_size")]
    world = max([int(s) for s in sizes if s] + [max(known) + 1])
    return tuple(sorted(set(range(world)) - seen))
