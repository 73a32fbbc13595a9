"""From the ranks' recent times to a mode for the job, with what it brings and what it risks; or why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from starprof.advisor.dryrun import dry_run
from starprof.advisor.events import NATIVE, Gain, Proposal
from starprof.advisor.limits import Limits
from starprof.analysis.arrays import Floats
from starprof.control import modes
from starprof.decision.choice import scoring
from starprof.decision.choice.choice import Score, Standing
from starprof.decision.choice.heuristic import choose
from starprof.decision.choice.progress import seconds_per_step
from starprof.decision.choice.situation import Limits as ModeLimits
from starprof.decision.choice.situation import NoiseScale, Situation

DRAWS, DRAWS_OF_MANY, MANY = 6, 2, 64
BLOCKS = 8
"""A draw is made of so many blocks of successive steps."""

Z = 1.96
DRY_SHARE = 0.5
"""The dry run must bring at least this part of what the chooser expects: else one of the two is wrong."""


@dataclass(frozen=True)
class Question:
    """What a proposal is asked for.

    Attributes:
        times_s: own times of all ranks plus the reduction, shape (W, N).
        ranks: of the columns.
        hosts: of these ranks.
        late: who is late, as the detector says.
        noise: gradient noise scale in batches of a rank, both ends; None: not known.
        mode: that the job is in.
        options: of it.
    """

    times_s: Floats
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    late: tuple[int, ...]
    noise: tuple[float, float] | None
    mode: str = NATIVE
    options: Mapping[str, object] | None = None


def propose(asked: Question, limits: Limits, barred: Mapping[str, str]) -> Proposal | str:
    """The mode that the job should be in, other than its present one; or why it should stay.

    Args:
        asked: see there.
        limits: of the user.
        barred: further modes that can't be had, and why.
    """
    situation = _situation(asked, limits, barred)
    mode = "ssgd" if asked.mode == NATIVE else asked.mode
    choice = choose(situation, Standing(mode, dict(asked.options or {})))
    if not choice.changed or choice.mode == "ssgd":
        return choice.reason
    chosen = next((s for s in choice.scores if (s.mode, s.options) == (choice.mode, choice.options)), None)
    if chosen is None or chosen.outlook is None or not chosen.eligible:
        return choice.reason
    over = 1.0 if asked.mode == NATIVE else _gain_now(choice.scores, mode, asked.options or {})
    predicted = _interval(chosen, situation, len(choice.standing.stragglers))
    if predicted.low < over * (1.0 + limits.gain):
        return f"{choice.mode} would gain {predicted}, which is not {limits.gain:.0%} more than now for sure"
    noise = situation.noise_or_unknown.middle
    dry = dry_run(chosen.mode, chosen.options, asked.times_s, asked.ranks, noise, limits.momentum)
    if dry.gain < over * (1.0 + limits.gain * DRY_SHARE) or dry.max_staleness > limits.staleness:
        return (
            f"{choice.mode} gains {dry.gain:.2f}x in the dry run on the recorded steps, with gradients up to "
            f"{dry.max_staleness} updates old: {predicted} was expected"
        )
    native_s = float(asked.times_s.max(axis=1).mean())
    update_s = 1.0 / chosen.outlook.updates_per_s
    where = tuple(dict.fromkeys(asked.hosts[asked.ranks.index(rank)] for rank in asked.late))
    return Proposal(
        mode=chosen.mode,
        options=dict(chosen.options),
        ranks=asked.late,
        hosts=where,
        predicted=predicted,
        dry_gain=dry.gain,
        progress=chosen.gain * update_s / native_s,
        update_s=update_s,
        native_s=native_s,
        accuracy_risk=chosen.accuracy_risk,
        max_staleness=max(dry.max_staleness, chosen.outlook.max_staleness),
        steps=len(asked.times_s),
        reason=choice.reason,
    )


def _situation(asked: Question, limits: Limits, barred: Mapping[str, str]) -> Situation:
    not_allowed = {
        name: "it is not among the modes that the user allows"
        for name in modes.available()
        if name not in {NATIVE, "ssgd", asked.mode, *limits.modes}
    }
    return Situation(
        asked.ranks,
        asked.times_s,
        1.0,
        None if asked.noise is None else NoiseScale(*asked.noise),
        limits=ModeLimits(
            limits.accuracy_risk, limits.staleness, limits.shuffled, limits.momentum, worst_gain=1.0 + limits.gain
        ),
        barred={**modes.NOT_CARRIED_OUT, **not_allowed, **barred},
    )


def _gain_now(scores: Sequence[Score], mode: str, options: Mapping[str, object]) -> float:
    now = scoring.of_mode(scores, mode, options)
    return 1.0 if now is None or not math.isfinite(now.gain) else max(1.0, now.gain)


def _interval(score: Score, situation: Situation, stragglers: int) -> Gain:
    """From how steps differ (blocks of them drawn anew), and from what the noise scale may be."""
    assert score.outlook is not None
    workers, usual = len(situation.workers), float(situation.iteration_s.max(axis=1).mean())
    noise = situation.noise_or_unknown
    ends = [score.worst_gain, score.gain]
    for phi in (noise.low, noise.middle, noise.high):
        needed = seconds_per_step(score.outlook, phi, situation.batch, workers, momentum=situation.limits.momentum)
        ends.append(usual / needed)
    gains = []
    for times in _draws(situation.iteration_s, DRAWS if workers < MANY else DRAWS_OF_MANY):
        other = scoring.of_mode(
            scoring.all_scores(replace(situation, iteration_s=times), stragglers), score.mode, score.options
        )
        if other is not None and other.gain > 0:
            gains.append(other.gain)
    spread = math.exp(Z * float(np.log(gains).std(ddof=1))) if len(gains) > 1 else 1.0
    return Gain(score.gain, min(ends) / spread, max(ends) * spread)


def _draws(times: Floats, count: int) -> list[Floats]:
    """Always the same for the same times."""
    rng = np.random.default_rng(0)
    length = max(1, len(times) // BLOCKS)
    begins = rng.integers(len(times) - length + 1, size=(count, BLOCKS))
    return [times[(row[:, None] + np.arange(length)).ravel()] for row in begins]
