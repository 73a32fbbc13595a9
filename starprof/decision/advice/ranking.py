"""Modes for a run, ranked by the chooser, each with an interval: from how steps differ, and from the noise scale.

Steps of a run are few and hang together: blocks of them are drawn anew, with replacement, and each time all modes are
scored again. The interval of a gain is that of its logarithm: 1.96 standard deviations over the draws, beyond the worst
and the best that the gradient noise scale allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.decision.advice import commands
from starprof.decision.advice.evidence import Evidence
from starprof.decision.advice.result import ModeRow
from starprof.decision.choice import scoring
from starprof.decision.choice.choice import Choice, Score, Standing
from starprof.decision.choice.heuristic import choose
from starprof.decision.choice.progress import accuracy_risk, seconds_per_step
from starprof.decision.choice.situation import Limits, Situation
from starprof.model.rundata import RunData
from starprof.model.tables.sync import NATIVE

SYNCHRONOUS = "ssgd"
DRAWS = 8
BLOCKS = 10
"""A draw is made of so many blocks of successive steps."""
Z = 1.96
SURE_GAIN = 1.05
"""That a mode must have whatever the noise and the learning rate are: who is advised may not look again for long."""


@dataclass(frozen=True)
class Ranking:
    """What the chooser says, and every mode with its interval; the chosen mode's row first."""

    choice: Choice
    rows: tuple[ModeRow, ...]
    chosen: ModeRow


def ranking(run: RunData, known: Evidence, barred: Mapping[str, str]) -> Ranking:
    """Rank all modes for a run.

    Args:
        run: for the command lines.
        known: what it tells.
        barred: modes that can't be had, and why.
    """
    limits = Limits(worst_gain=SURE_GAIN)
    if known.momentum is not None:
        limits = replace(limits, momentum=known.momentum)
    situation = Situation(
        known.workers,
        known.iteration_s,
        known.batch,
        known.noise,
        limits,
        barred=barred,
        node_groups=known.node_groups,
        micro_batches=known.micro_batches,
    )
    mode = SYNCHRONOUS if known.mode == NATIVE else known.mode
    standing = Standing(mode, known.options)
    choice = choose(situation, standing)
    best = list(choice.scores)
    chosen = next((s for s in best if (s.mode, s.options) == (choice.mode, choice.options)), None)
    if chosen is None:  # the present mode, with options that are not its best ones
        chosen = Score(choice.mode, choice.options, None, choice.gain, choice.gain, math.nan)
    drawn = [_scores(replace(situation, iteration_s=times), choice) for times in _draws(known.iteration_s)]
    rows = tuple(_row(run, score, situation, drawn) for score in best)
    return Ranking(choice, rows, _row(run, chosen, situation, drawn))


def _scores(situation: Situation, choice: Choice) -> list[Score]:
    return scoring.all_scores(situation, len(choice.standing.stragglers))


def _draws(times: Floats) -> list[Floats]:
    """Blocks of successive steps drawn anew, always the same for the same run."""
    rng = np.random.default_rng(0)
    length = -(-len(times) // BLOCKS)
    begins = rng.integers(len(times) - length + 1, size=(DRAWS, BLOCKS))
    return [times[(row[:, None] + np.arange(length)).ravel()] for row in begins]


def _row(run: RunData, score: Score, situation: Situation, drawn: list[list[Score]]) -> ModeRow:
    name = NATIVE if score.mode == SYNCHRONOUS else score.mode
    options = {} if name == NATIVE else dict(score.options)
    command = commands.ctl_mode(run, name, options)
    outlook = score.outlook
    if outlook is None:
        gain = score.gain if math.isfinite(score.gain) else None
        return ModeRow(name, options, gain, None, None, None, None, None, None, score.barred, command)
    low, high = _interval(score, situation, drawn)
    return ModeRow(
        name,
        options,
        score.gain,
        low,
        high,
        1.0 / outlook.updates_per_s,
        outlook.max_staleness,
        score.accuracy_risk,
        accuracy_risk(outlook, shuffled=False, momentum=situation.limits.momentum),
        score.barred,
        command,
    )


def _interval(score: Score, situation: Situation, drawn: list[list[Score]]) -> tuple[float, float]:
    """See the module."""
    if score.mode == SYNCHRONOUS:
        return 1.0, 1.0
    noise = situation.noise_or_unknown
    points = (noise.middle, noise.low, noise.high)
    ends = [score.worst_gain, score.gain]
    assert score.outlook is not None
    workers, batch = len(situation.workers), situation.batch
    usual = float(situation.iteration_s.max(axis=1).mean())
    for phi in points:
        needed = seconds_per_step(score.outlook, phi, batch, workers, momentum=situation.limits.momentum)
        if needed > 0:
            ends.append(usual / needed)
    gains = [
        other.gain for scores in drawn if (other := scoring.of_mode(scores, score.mode, score.options)) is not None
    ]
    logs = np.log([gain for gain in gains if gain > 0])
    spread = Z * float(logs.std(ddof=1)) if len(logs) > 1 else 0.0
    low, high = min(ends), max(ends)
    return low * math.exp(-spread), high * math.exp(spread)
