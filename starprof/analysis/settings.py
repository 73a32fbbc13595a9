"""Every threshold of the diagnosis, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field

from starprof.analysis.trace_settings import CallSettings, ReplaySettings


@dataclass(frozen=True, slots=True)
class Settings:
    """Thresholds; all shares are of the healthy step time (peers' own time + transfer) unless said otherwise.

    A rank is named only when it is late by enough (`min_lateness`), surely (`false_alarm_rate` and
    `spread_false_alarm_rate`), persistently (`min_late_windows`, `min_slow_steps`), and when it matters
    (`min_cost_share`, `stands_out`).

    Attributes:
        warm_up_steps: first steps that never count (allocation, bucket rebuild, compilation).
        max_warm_up_share: at most this share of the run is taken for warm-up.
        min_steps: fewer steps after warm-up give `inconclusive`.
        min_lateness: least mean lateness of a straggler.
        lateness_cap: one step's lateness counts at most this much, so that single spikes are not persistent.
        false_alarm_rate: probability that noise alone passes the test anywhere, over all ranks and windows.
        noise_margin_z: most that is added to that test's z for tails heavier than normal. A mean over many independent
            steps of noise with measured, thin tails needs far less (`noise.Noise.margin`): with the whole of it one
            rank of 16 that becomes 1.06x slow in a CV of 5 % passes in 200 steps only in every other run.
        excursion_margin_z: the same for a stretch that was chosen for its lateness, with bounds of its own: of a heavy
            tail it may be one excursion, which a few steps do not average out.
        spread_false_alarm_rate: probability that the constant differences of healthy ranks alone make one of them pass
            for chronically slow (before its cost is looked at). Kept from some dozens of ranks on; eight ranks that
            differ by several times `prior_spread` pass several times as often.
        prior_spread: expected constant difference between healthy ranks (standard deviation).
        prior_spread_weight: how many ranks that expectation counts for.
        min_slow_steps: shorter slowness is a one-off.
        min_late_windows: share of the windows of a slow interval in which the rank must be late.
        min_cost_share: share of the interval's time from which on a slowness matters by its cost.
        stands_out: lateness in standard deviations of a single step's noise from which on it is plain to see, and
            matters although it costs less (among many noisy ranks somebody else would be late nearly as often).
        min_plain_cost_share: least share of the run's time that a slowness must cost which is plain to see. Among
            hundreds of noisy ranks somebody else is nearly as late as one that is 1.06x slow: it costs the job little,
            but that rank is ill all the same.
        chronic_cost_by_ranks: without a healthy past the least cost of a plain slowness is this divided by the number
            of ranks instead: how much healthy ranks differ constantly is poorly known from a few of them (fewer than
            `noise.MANY_RANKS`; from there on each is held against the others' measured differences).
        min_run_cost_share: least share of the whole run's time that a slowness must cost which is not plain to see.
        min_spike: a single step this late is a spike (as is one above `spike_z` of the rank's noise).
        spike_z: see `min_spike`.
        min_rotating_cost_share: irregular spikes on changing ranks are a finding from this share of the run on.
        min_special_cost_share: the same for garbage collection, checkpoints, evaluation, compilation.
        min_workload_cost_share: the same for uneven batches; below it they only leave the comparison of ranks.
        min_stage_excess: a pipeline stage is heavy when it needs this much more of the healthy step than the others.
        min_one_off_cost_steps: a single spike is listed when it costs this many healthy steps.
        min_shift: least rise of everybody's own time, or of the transfer, that is reported.
        min_unexplained_shift: the same for a transfer whose slow link no counter shows.
        min_cause_share: a cause is named when its evidence covers this share of the slowdown.
        max_findings_listed: one-off findings beyond this number are summed up.
        live_false_alarm_rate: probability that a healthy job of `live_horizon_steps` steps is accused while it runs,
            over all ranks and looks. Doubling it brings a verdict on 1.06x forward by less than one step.
        live_horizon_steps: see `live_false_alarm_rate`; a job of ten times as many steps has ten times the rate.
        live_margin_z: as `noise_margin_z`, for the live detector: looking at every step it meets each excursion of
            a heavy tail, and must not speak before such an excursion is over.
        live_window_steps: steps that the live detector remembers; bounds its memory.
        replay: thresholds of the what-if replay of op traces.
        calls: thresholds of who arrives last at collectives.
    """

    warm_up_steps: int = 3
    max_warm_up_share: float = 0.1
    min_steps: int = 16
    min_lateness: float = 0.04
    lateness_cap: float = 1.0
    false_alarm_rate: float = 1e-4
    noise_margin_z: float = 1.5
    excursion_margin_z: float = 8.0
    spread_false_alarm_rate: float = 5e-4
    prior_spread: float = 0.01
    prior_spread_weight: float = 4.0
    min_slow_steps: int = 10
    min_late_windows: float = 0.7
    min_cost_share: float = 0.045
    stands_out: float = 0.8
    min_plain_cost_share: float = 0.0002
    chronic_cost_by_ranks: float = 0.6
    min_run_cost_share: float = 0.005
    min_spike: float = 0.3
    spike_z: float = 6.0
    min_rotating_cost_share: float = 0.10
    min_special_cost_share: float = 0.01
    min_workload_cost_share: float = 0.02
    min_stage_excess: float = 0.10
    min_one_off_cost_steps: float = 2.0
    min_shift: float = 0.10
    min_unexplained_shift: float = 0.20
    min_cause_share: float = 0.8
    max_findings_listed: int = 5
    live_false_alarm_rate: float = 5e-4
    live_horizon_steps: int = 1000
    live_margin_z: float = 8.0
    live_window_steps: int = 512
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    calls: CallSettings = field(default_factory=CallSettings)


DEFAULT = Settings()
