"""The diagnosis of a job while it runs: one step at a time, in bounded memory, with the offline detector's statistics.

Every step's own time is compared with the robust centre of same-role peers, as in `comparison`; from time to time the
noise, the slow mode and the settled references are measured anew by that module on the remembered steps. A rank is
`provisional` when it is plainly late in a few steps running, which a one-off can still explain; it is `confirmed` when
it is late over a window that the offline rules would accept; a provisional one that is not late any more is
`withdrawn`, a confirmed one has `ended`, and both are watched again from then on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from starprof.analysis.arrays import Bools, Floats, Ints, row_medians
from starprof.analysis.comparison import Comparison
from starprof.analysis.detect import CONTINUES_AT, ONSET_IS_START, least_steps
from starprof.analysis.live.caution import cautious
from starprof.analysis.live.finding import LiveFinding, Status, late_share_of, lost_us, mean_of, onset_of
from starprof.analysis.live.intake import Intake, Taken, unmeasured
from starprof.analysis.live.rules import SUDDEN_STEPS, WIDTHS, Alarms, first_suspect, look
from starprof.analysis.noise import Noise
from starprof.analysis.own_time import WARM_UP_FACTOR, OwnTime
from starprof.analysis.peers import peer_groups
from starprof.analysis.settings import DEFAULT, Settings
from starprof.errors import InputError
from starprof.model.rundata import RankInfo

END_Z = 4.0
BLOCK_STEPS = 64
KEPT_FINDINGS = 256
FIRST_MEASUREMENT = 48
KNOWN_MEMORY = 12
"""Noise must have been watched for this many times its memory before anybody is judged by it."""
SPREAD_LOOKS = 8
"""How often the constant differences are measured anew in a thousand steps: each time is a chance to be wrong."""


@dataclass
class _Late:
    """What the detector keeps of a late rank: the finding, its past lateness and where the onset lies in the stream."""

    finding: LiveFinding
    past: float
    onset_at: int
    level: float = 0.0
    lost_us: float = 0.0


class OnlineDetector:
    """Watches the steps of a running job.

    Memory is fixed by the number of ranks and `Settings.live_window_steps`. A step costs the same however long the job
    has run; measuring the noise anew (at doubling distances, then once a window) is the only dearer one.
    """

    def __init__(self, ranks: Sequence[RankInfo], settings: Settings = DEFAULT) -> None:
        """Watch these ranks; the vectors of `observe` are in the same order.

        Raises:
            InputError: fewer than two ranks.
        """
        if len(ranks) < 2:
            raise InputError("A running job is judged by comparing its ranks: at least two are needed.")
        self.infos = tuple(ranks)
        self.settings = settings
        self.history: deque[LiveFinding] = deque(maxlen=KEPT_FINDINGS)
        self.first_step: int | None = None
        self.last_step: int | None = None
        self._groups = peer_groups([info.role for info in ranks])
        self._intake = Intake(self._groups, max(settings.live_window_steps, 2 * int(WIDTHS[-1])), settings)
        self._ring = self._intake.ring
        self._late: dict[int, _Late] = {}
        self._since = np.zeros(len(ranks), np.int64)
        self._slow_mode = np.zeros(len(ranks), bool)
        self._noise: Noise | None = None
        self._shape: Noise | None = None
        self._armed = False
        self._warm_up_left = settings.warm_up_steps
        self._next_measurement = FIRST_MEASUREMENT
        self._measured_before = False
        self._block = BLOCK_STEPS

    @property
    def findings(self) -> tuple[LiveFinding, ...]:
        """Ranks that are late now, provisional or confirmed, most costly first."""
        now = [self._current(row, late) for row, late in self._late.items()]
        return tuple(sorted(now, key=lambda finding: -finding.lost_us))

    @property
    def armed(self) -> bool:
        """Whether enough is known of the noise to judge anybody anew."""
        return self._armed

    @property
    def healthy_step_us(self) -> float:
        """Typical recent step time if nobody were late, as in `OwnTime`; 0 before the first judged step."""
        return self._intake.healthy_us

    @property
    def run_us(self) -> float:
        """Wall time of the steps seen so far, but for warm-up."""
        return self._intake.run_us

    def observe(self, step: int, own_us: ArrayLike, blocked_us: ArrayLike) -> tuple[LiveFinding, ...]:
        """Take in a step and say which findings are new or changed their status.

        Args:
            step: step number, growing; missing numbers are steps nobody recorded.
            own_us: each rank's regular own time (without garbage collection, checkpoints, evaluation, compilation),
                microseconds, NaN where there is no record, shape (R,).
            blocked_us: each rank's time in collectives, likewise.

        Raises:
            InputError: the vectors' length is not the number of ranks, or the step number does not grow.
        """
        own, blocked = (np.asarray(v, dtype=np.float64) for v in (own_us, blocked_us))
        if own.ndim != 1 or blocked.ndim != 1:
            raise InputError(f"Step {step}: own and blocked times must have one value per rank.")
        return self.observe_many([step], own[:, None], blocked[:, None])

    def observe_many(self, steps: ArrayLike, own_us: ArrayLike, blocked_us: ArrayLike) -> tuple[LiveFinding, ...]:
        """Take in steps that came together: the same as `observe` on one after the other, and quicker.

        Args:
            steps: as for `observe`, shape (N,).
            own_us: shape (R, N).
            blocked_us: shape (R, N).

        Raises:
            InputError: as for `observe`; then none of the steps was taken in.
        """
        numbers, own, blocked = self._checked(steps, own_us, blocked_us)
        changed: list[LiveFinding] = []
        self._block = BLOCK_STEPS
        while len(numbers):
            count, found = self._take_some(numbers, own, blocked)
            changed += found
            numbers, own, blocked = numbers[count:], own[:, count:], blocked[:, count:]
        return tuple(changed)

    def _checked(self, steps: ArrayLike, own_us: ArrayLike, blocked_us: ArrayLike) -> tuple[Ints, Floats, Floats]:
        """Copies of what was given, without impossible times and steps of which too little is known."""
        numbers = np.array(steps, dtype=np.int64)
        own, blocked = (np.array(v, dtype=np.float64) for v in (own_us, blocked_us))
        shape = (len(self.infos), len(numbers))
        if own.shape != shape or blocked.shape != shape:
            raise InputError(
                f"Step {numbers[0] if len(numbers) else 0} has {len(own)} own and {len(blocked)} blocked times for "
                f"{len(self.infos)} ranks."
            )
        first = numbers[0] - 1 if self.last_step is None and len(numbers) else self.last_step
        before = np.concatenate([[first], numbers[:-1]])[: len(numbers)]
        if (numbers <= before).any():
            wrong = int(np.argmax(numbers <= before))
            raise InputError(f"Step {numbers[wrong]} came after step {before[wrong]}; steps must grow.")
        own[~(np.isfinite(own) & (own >= 0.0))] = np.nan
        blocked[~(np.isfinite(blocked) & (blocked >= 0.0))] = np.nan
        kept = ~unmeasured(own)
        return (numbers, own, blocked) if kept.all() else (numbers[kept], own[:, kept], blocked[:, kept])

    def _take_some(self, steps: Ints, own: Floats, blocked: Floats) -> tuple[int, tuple[LiveFinding, ...]]:
        """Take in as many of the steps as nothing can come of, and judge the one after them."""
        if self.first_step is None:
            self.first_step = int(steps[0])
        if self._warm_up_left > 0:
            count = min(self._warm_up_left, len(steps))
            self._warm_up_left -= count
            self.last_step = int(steps[count - 1])
            return count, ()
        count = 1 if self._late else min(self._block, len(steps))
        self._intake.blamed = self._blamed()
        new = self._intake.take(steps[:count], own[:, :count], blocked[:, :count])
        quiet = self._quiet(new)
        self._remember(new.part(0, quiet))
        if quiet == count:
            self._block = min(2 * self._block, BLOCK_STEPS)
            return count, ()
        self._block = max(4, self._block // 2)
        self._remember(new.part(quiet, quiet + 1))
        if self._ring.pushed >= self._next_measurement:
            self._measure()
        found = () if self._noise is None else self._judge(int(steps[quiet]), own[:, quiet], self._noise)
        return quiet + 1, found

    def _quiet(self, new: Taken) -> int:
        """How many of the new steps, oldest first, nothing can come of: neither a measurement nor a finding."""
        if len(new.steps) == 1:
            return 0
        before = min(len(new.steps), self._next_measurement - 1 - self._ring.pushed)
        if before <= 0 or self._noise is None:
            return max(before, 0)
        return first_suspect(self._ring, self._since, new.late[:, :before], self._noise, self.settings)

    def _remember(self, new: Taken) -> None:
        if len(new.steps):
            self._intake.remember(new)
            self.last_step = int(new.steps[-1])
            self._since += len(new.steps)

    def _blamed(self) -> Bools:
        blamed = self._slow_mode.copy()
        blamed[list(self._late)] = True
        return blamed

    def _measure(self) -> None:
        """Noise, slow mode and references from the remembered steps, by the offline detector's own means."""
        if not self._measured_before:
            self._measured_before = True
            self._ring.drop_oldest(_warm_up(self._ring.own_us()))
            self._since = np.minimum(self._since, len(self._ring))
        held = len(self._ring)
        self._next_measurement = self._ring.pushed + min(held, self._ring.size // 2)
        own = self._own_time()
        if len(own.rows) < 2 or held < self.settings.min_steps // 2:
            return
        place = {int(row): i for i, row in enumerate(own.rows)}
        rate = self.settings.spread_false_alarm_rate / SPREAD_LOOKS
        comparison = Comparison(own, replace(self.settings, spread_false_alarm_rate=rate)).settled()
        if known := {place[row] for row in self._late if row in place}:
            comparison = comparison.without(known)
        self._slow_mode = np.zeros(len(self.infos), bool)
        self._slow_mode[own.rows[comparison.blamed]] = True
        self._slow_mode[list(self._late)] = False
        self._take(comparison, own, held)

    def _take(self, comparison: Comparison, own: OwnTime, held: int) -> None:
        """Go on with what a comparison of the remembered steps has shown."""
        noise = comparison.noise
        self._armed = held >= KNOWN_MEMORY * noise.memory
        if self._armed or self._noise is not None:
            self._shape = noise
            self._noise = cautious(noise, held, own.rows, len(self.infos), comparison.settings)
        cap = self.settings.lateness_cap
        clipped = np.clip(np.nan_to_num(comparison.lateness, nan=0.0), -cap, cap)
        self._intake.usual = float(np.median(clipped - comparison.capped))
        late = np.full((len(self.infos), held), np.nan)
        late[own.rows] = np.where(np.isnan(comparison.lateness), np.nan, comparison.capped)
        self._ring.restate(late)
        lowest = row_medians(own.work)
        self._intake.alone_usual_us[own.rows] = np.fmin(self._intake.alone_usual_us[own.rows], lowest)

    def _own_time(self) -> OwnTime:
        """The remembered steps of the ranks that have records in most of them, as the offline analysis takes them."""
        own = self._ring.own_us()
        rows = np.flatnonzero((~np.isnan(own)).sum(axis=1) * 2 > own.shape[1])
        steps = self._ring.steps()
        nothing = np.zeros((len(rows), len(steps)))
        return OwnTime(
            infos=tuple(self.infos[row] for row in rows),
            rows=rows,
            columns=np.arange(len(steps)),
            steps=steps,
            first_step=int(steps[0]),
            phases={"unaccounted": own[rows]},
            special={"gc": nothing},
            blocked=nothing,
            transfer=self._ring.transfer_us(),
            start_ns=np.zeros(nothing.shape, np.int64),
            groups=self._groups[rows],
            missing=(),
            on_gpu=False,
            rounds=np.zeros(len(steps), bool),
            pace_us=np.zeros(len(steps)),
        )

    def _judge(self, step: int, own: Floats, noise: Noise) -> tuple[LiveFinding, ...]:
        alarms = look(self._ring, self._since, noise, self._shape or noise, self.settings)
        changed = []
        known = sorted(self._late)
        for row in known:
            self._add_cost(row, own)
            finding = self._followed(row, alarms, noise)
            if finding is not None:
                changed.append(finding)
        new = [int(row) for row in np.flatnonzero(alarms.late) if self._armed and int(row) not in known]
        return (*changed, *(self._begun(row, step, alarms, noise) for row in new))

    def _add_cost(self, row: int, own: Floats) -> None:
        """What a late rank cost in the newest step."""
        late = self._late[row]
        others = float(np.nanmax(np.r_[0.0, np.delete(own, row)]))
        late.lost_us += lost_us(own[row], self._intake.excess_us[row] - late.past * self.healthy_step_us, others)

    def _begun(self, row: int, step: int, alarms: Alarms, noise: Noise) -> LiveFinding:
        """A rank that was on time is late now."""
        series, steps = self._ring.lateness(row), self._ring.steps()
        past = float(alarms.past[row])
        first = len(series) - int(min(self._since[row], len(series)))
        at, bounds = onset_of(series[first:], past, float(noise.sigma[row]), noise.memory)
        at, bounds = at + first, (bounds[0] + first, bounds[1] + first)
        whole = at <= ONSET_IS_START and self._ring.pushed == len(series)
        onset_step = int(self.first_step or 0) if whole else int(steps[at])
        finding = LiveFinding(
            rank=self.infos[row].rank,
            status="provisional",
            onset_step=onset_step,
            onset_interval=(onset_step, onset_step) if whole else (int(steps[bounds[0]]), int(steps[bounds[1]])),
            seen_step=step,
            changed_step=step,
            lateness=0.0,
            slowdown=1.0,
            z=float(alarms.z[row]),
            from_start=whole,
        )
        late = _Late(finding, 0.0 if whole else past, self._ring.pushed - (len(series) - at))
        own = self._ring.own_us()[:, at:]
        others = np.nanmax(np.where(np.isnan(own), 0.0, own)[np.arange(len(own)) != row], axis=0)
        excess = (series[at:] - late.past) * self.healthy_step_us
        late.lost_us = sum(lost_us(*parts) for parts in zip(own[row], excess, others, strict=True))
        self._late[row] = late
        late.level = mean_of(self._series(row, late), float(series[at:].mean()) - late.past)
        return self._followed(row, alarms, noise) or self._current(row, late)

    def _followed(self, row: int, alarms: Alarms, noise: Noise) -> LiveFinding | None:
        """What has become of a late rank; None when nothing changed."""
        late = self._late[row]
        late.finding = replace(late.finding, z=max(late.finding.z, float(alarms.z[row])))
        series = self._series(row, late)
        confirmed = late.finding.status == "confirmed"
        width = self._end_width(row, late.level, noise, self.settings.min_slow_steps if confirmed else SUDDEN_STEPS)
        if confirmed and len(series) >= 2 * width:
            late.level = mean_of(series[:-width], late.level)
        if len(series) > width and mean_of(series[-width:], late.level) <= CONTINUES_AT * late.level:
            return self._closed(row, "ended" if confirmed else "withdrawn", noise)
        if confirmed or len(series) < least_steps(noise, self.settings):
            return None
        if late_share_of(series) < self.settings.min_late_windows:
            return None
        late.level = mean_of(series, late.level)
        late.finding = replace(late.finding, status="confirmed", changed_step=int(self.last_step or 0))
        return self._current(row, late)

    def _series(self, row: int, late: _Late) -> Floats:
        """Lateness above the past since the onset, as far as remembered, NaN where not recorded."""
        length = min(self._ring.pushed - late.onset_at, len(self._ring))
        series = np.where(self._ring.recorded(row), self._ring.lateness(row), np.nan)
        return series[len(series) - length :] - late.past

    def _end_width(self, row: int, level: float, noise: Noise, least: int) -> int:
        """Steps that must be on time again before a slowness is over: enough that noise alone hardly looks like it."""
        needed = (END_Z * float(noise.sigma[row]) / (CONTINUES_AT * max(level, 1e-3))) ** 2 * noise.memory
        return int(np.clip(needed, least, self._ring.size // 2))

    def _closed(self, row: int, status: Status, noise: Noise) -> LiveFinding:
        """A late rank is on time again; from here on it has a new past."""
        late = self._late[row]
        series, steps = self._ring.lateness(row), self._ring.steps()
        start = max(0, late.onset_at - (self._ring.pushed - len(series)))
        # Read backwards, the end of a slowness is its onset.
        back, _ = onset_of(series[start:][::-1], late.past, float(noise.sigma[row]), noise.memory)
        end = max(len(series) - back, start + 1)
        finding = replace(
            self._current(row, late),
            status=status,
            changed_step=int(steps[-1]),
            end_step=int(steps[end - 1]),
            lateness=late.level,
        )
        del self._late[row]
        self._since[row] = len(series) - end
        self.history.append(finding)
        return finding

    def _current(self, row: int, late: _Late) -> LiveFinding:
        """A finding with its figures as of now."""
        level = mean_of(self._series(row, late), late.level)
        slowdown = 1.0 + level * self.healthy_step_us / max(self._intake.middle_us, 1.0)
        return replace(late.finding, lateness=level, slowdown=slowdown, lost_us=late.lost_us)


def _warm_up(own: Floats) -> int:
    """First remembered steps that are clearly longer still, as in `own_time`: an unbroken series of them."""
    longest = np.nanmax(own, axis=0)
    usual = longest <= WARM_UP_FACTOR * np.median(longest)
    return int(np.argmax(usual)) if usual[: len(usual) // 2].any() else 0
