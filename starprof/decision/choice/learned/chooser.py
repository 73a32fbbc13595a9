"""The learned chooser: takes over from the heuristic inside its training range, if it chose better in validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from starprof.decision.choice import heuristic, scoring
from starprof.decision.choice.choice import Choice, Score, Standing
from starprof.decision.choice.heuristic import Assessment, Settings
from starprof.decision.choice.learned.features import Surroundings, of_job, of_mode
from starprof.decision.choice.learned.model import Model
from starprof.decision.choice.progress import seconds_per_step
from starprof.decision.choice.situation import Situation

POINTS = 3
"""Noise scales at which a mode is looked at: the middle of what is possible, and both ends."""


def choose(
    situation: Situation,
    model: Model,
    standing: Standing | None = None,
    settings: Settings | None = None,
    around: Surroundings | None = None,
) -> Choice:
    """Choose as `heuristic.choose`, by learned gains where the model may be trusted.

    Args:
        situation: inputs.
        model: trained chooser.
        standing: what the last choice left.
        settings: how readily modes are changed.
        around: what the times don't tell; None: not known.
    """
    standing, settings, around = standing or Standing(), settings or Settings(), around or Surroundings()
    found = heuristic.assess(situation, standing, settings)
    refused = refusal(situation, found, model, around)
    if refused:
        chosen, reason = heuristic.decide(found, standing, settings)
        told = f"{reason} (the learned chooser does not decide: {refused})"
        return heuristic.choice_of(situation, standing, found, chosen, told, "heuristic")
    learned = relearned(situation, found, model, around, settings)
    chosen, reason = heuristic.decide(learned, standing, settings)
    return heuristic.choice_of(situation, standing, learned, chosen, reason, "learned")


def refusal(situation: Situation, found: Assessment, model: Model, around: Surroundings) -> str:
    """Why the heuristic is to decide; "" when the model is."""
    if not model.better:
        learned, plain = model.regrets
        return f"in validation it lost {learned:.1%} against the best mode, the heuristic {plain:.1%}"
    noise = situation.noise
    if noise is None or not noise.measured:
        return "the gradient noise scale is not known"
    return model.range.outside(of_job(situation, found.late, around, noise.middle))


def relearned(
    situation: Situation, found: Assessment, model: Model, around: Surroundings, settings: Settings
) -> Assessment:
    """The same with learned gains: each mode that has trees at its best options, and ssgd; what was barred stays so."""
    least = situation.least_worst_gain
    scores = scoring.with_regret(
        [_relearned(score, situation, found, model, around, settings) for score in found.best], least
    )
    return replace(found, scores=scores, best=scoring.best_of_each(scores, least))


def gains(
    score: Score,
    plain: Score,
    situation: Situation,
    found: Assessment,
    model: Model,
    around: Surroundings,
    points: Sequence[float],
    settings: Settings,
) -> list[float]:
    """Learned gain of a mode at some noise scales."""
    told = []
    for phi in points:
        job = of_job(situation, found.late, around, phi)
        gain = heuristic_gain(score, plain, situation, phi, settings.staleness_cost)
        row = of_mode(job, score, plain, gain)
        told.append(math.exp(float(row[len(job)] + model.modes[score.mode].predict(row[None])[0])))
    return told


def heuristic_gain(score: Score, plain: Score, situation: Situation, phi: float, staleness_cost: float) -> float:
    """The heuristic's gain of a mode at a noise scale; 0 where it makes no progress."""
    assert score.outlook is not None
    assert plain.outlook is not None
    workers = len(situation.workers)
    of_plain, of_it = (
        seconds_per_step(
            outlook,
            phi,
            situation.batch,
            workers,
            momentum=situation.limits.momentum,
            staleness_cost=staleness_cost,
        )
        for outlook in (plain.outlook, score.outlook)
    )
    return of_plain / of_it


def _relearned(
    score: Score, situation: Situation, found: Assessment, model: Model, around: Surroundings, settings: Settings
) -> Score:
    if score.mode == "ssgd":
        return replace(score, gains=(1.0,) * POINTS)
    if score.mode not in model.modes:
        return replace(score, gains=(), barred=score.barred or "the learned chooser does not know it")
    if score.outlook is None or score.barred:
        return replace(score, gains=())
    plain = next(one for one in found.scores if one.mode == "ssgd")
    noise = situation.noise_or_unknown
    told = gains(score, plain, situation, found, model, around, (noise.middle, noise.low, noise.high), settings)
    return replace(score, gain=told[0], worst_gain=min(told), gains=tuple(told))
