"""Thresholds of the judges of traces: of single operations that are replayed, and of collective calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Thresholds of the what-if replay of op traces (`starprof.analysis.whatif`).

    A rank, link or group is looked at when it is high by enough, against how much healthy ones differ (`spreads`),
    surely (`min_z`) and persistently (`min_high_share`); it is told when the replay says that it matters (the least
    costs, shares of the time of the steps concerned).

    Attributes:
        min_steps: fewer whole steps give `inconclusive`.
        min_slow_steps: shorter slowness is a one-off. A step of an op trace holds many operations, so that fewer steps
            are as sure as `Settings.min_slow_steps` step records.
        min_straggler_cost_share: least cost of a rank's slowness ...
        min_plain_cost_share: ... of one that is plain to see (`sure_z`, `plain_times`) ...
        min_other_cost_share: ... and of the rest: a few percent of unevenness are in every job.
        min_high_share: share of the steps of an interval in which a row must be high (by half of its usual height).
        min_z: standard errors by which it must be high.
        spreads: it must be high by this many times what healthy rows differ.
        edge_share: an interval that leaves out at most this share of the steps at an end reaches to it.
        min_noise: noise (a logarithm) is never taken for less: of few ranks it is poorly known.
        sure_z: from here on a finding is sure.
        plain_times: plain to see from this multiple of the least height on (and surely).
        even_scatter: micro-batches that differ by less are alike (standard deviation of the logarithm).
        noise_bias: lower medians of few noisy stages lie too low by up to this part of the noise, more so beside a
            slow rank.
        level_z: standard errors of what two pipelines' micro-batches cost by which a rank must be slower to be told
            from it.
        min_data_correlation: from this correlation of forward and backward passes on a pipeline's micro-batches differ
            by what they hold.
        min_local_share: share of the step that a rank must spend more than its peers in other work, or before passes.
        min_heavy_steps: share of the steps in which a stage must be heavier than the others by half of
            `Settings.min_stage_excess`.
        min_length_correlation: least correlation of forward and backward passes of a micro-batch that makes the
            micro-batch the cause.
        steady_share: a pipeline that is the slowest in more than this share of the steps is so for good.
        min_link_ratio: a link is slow from this multiple of what the same link takes in the other pipelines, or took
            in the rest of the run, on.
        min_group_ratio: collectives of a group are slow from this multiple of the other groups', or of their own in
            the rest of the run, on; groups may carry different amounts of data.
        one_end_ratio: two links are slow by the same end when they differ by less.
        clock_share: clocks are put right where they are apart by more than this share of what the median transfer or
            collective takes.
        clock_fit: differences that no set of offsets explains up to this share are no offsets.
        told_clock_share: clocks that are apart by more than this share of a step change what the replay of the trace
            as it is tells: it is told of the trace with clocks put right then, and so is the difference.
    """

    min_steps: int = 3
    min_slow_steps: int = 5
    min_straggler_cost_share: float = 0.02
    min_plain_cost_share: float = 0.005
    min_other_cost_share: float = 0.05
    min_high_share: float = 0.75
    min_z: float = 5.0
    spreads: float = 4.0
    edge_share: float = 0.1
    min_noise: float = 0.003
    sure_z: float = 10.0
    plain_times: float = 2.0
    even_scatter: float = 0.05
    noise_bias: float = 0.8
    level_z: float = 4.0
    min_data_correlation: float = 0.5
    min_local_share: float = 0.015
    min_heavy_steps: float = 0.75
    min_length_correlation: float = 0.8
    steady_share: float = 0.5
    min_link_ratio: float = 1.5
    min_group_ratio: float = 2.0
    one_end_ratio: float = 2.0
    clock_share: float = 0.2
    clock_fit: float = 0.5
    told_clock_share: float = 0.002


@dataclass(frozen=True, slots=True)
class CallSettings:
    """Thresholds of who arrives last at collectives (`starprof.analysis.calls`).

    Attributes:
        min_steps: fewer steps of single calls, or of sums, prove no habit, however many calls they hold.
        min_blocks: the same for blocks of calls, which prove less than steps: many may lie in one step.
        calls_per_block, max_blocks: how calls without steps are divided into blocks.
        min_calls: fewer single calls of a group give `inconclusive`.
        min_seen: share of a group's members whose traces must be there.
        false_alarm_rate: probability that ranks which are late in turn make one of them pass, over all groups and
            sets of ranks.
        max_uneven_share: share of the lateness from which on calls with different amounts of data must be shown to end
            at once.
        max_own_wait_share: who waits elsewhere for this share of its lateness is late because of others.
        max_spread_of_ends: ends of one call may differ by this share of the wait that it is about.
        min_calls_of_means: fewer calls of a kind, told as statistics, give `inconclusive`.
        min_z: standard errors by which means of calls must differ.
        calls_alike: calls of one step share its lateness: this many count as one observation.
        min_sum_lateness: sums over an unknown number of steps: how much of the time a rank must be late by, against
            the median of the others.
        max_lengths_apart: ranks whose times add up to lengths that differ by more are not of the same steps.
    """

    min_steps: int = 4
    min_blocks: int = 8
    calls_per_block: int = 10
    max_blocks: int = 40
    min_calls: int = 20
    min_seen: float = 0.75
    false_alarm_rate: float = 5e-3
    max_uneven_share: float = 0.5
    max_own_wait_share: float = 0.5
    max_spread_of_ends: float = 0.5
    min_calls_of_means: int = 50
    min_z: float = 4.0
    calls_alike: float = 10.0
    min_sum_lateness: float = 0.1
    max_lengths_apart: float = 0.15
