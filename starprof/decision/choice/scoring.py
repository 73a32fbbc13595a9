"""Scores of all modes against ssgd, and which of them are eligible.

Neither the noise nor the learning rate is known for sure, and no mode is best whatever they are. Modes are compared by
regret: how much longer each takes than the best one, at the noise and rate where that is worst. By the worst gain
alone, a mode that is sure to gain 5 % would come before one that may gain 80 % or lose 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from starprof.decision.choice.candidates import outlooks
from starprof.decision.choice.choice import Score
from starprof.decision.choice.outlook import Outlook
from starprof.decision.choice.progress import RATE, RATES, STALENESS_COST, accuracy_risk, seconds_per_step
from starprof.decision.choice.situation import Situation


def all_scores(situation: Situation, stragglers: int, staleness_cost: float = STALENESS_COST) -> list[Score]:
    """Every mode with every option that is worth a look, ssgd first."""
    found, without = outlooks(situation, stragglers)
    workers, noise = len(situation.workers), situation.noise_or_unknown
    points = [(noise.middle, RATE), *((phi, rate) for phi in (noise.low, noise.high) for rate in RATES)]
    momentum = situation.limits.momentum

    def seconds(outlook: Outlook) -> list[float]:
        return [
            seconds_per_step(
                outlook,
                phi,
                situation.batch,
                workers,
                rate=rate,
                momentum=momentum,
                staleness_cost=staleness_cost,
            )
            for phi, rate in points
        ]

    plain, scores = seconds(found[0]), []
    for outlook in found:
        gains = [one / other if other > 0 else 0.0 for one, other in zip(plain, seconds(outlook), strict=True)]
        risk = accuracy_risk(
            outlook,
            shuffled=situation.limits.shuffled,
            momentum=momentum,
            staleness_cost=staleness_cost,
        )
        barred = _barred(outlook, situation, found[0], risk, min(gains))
        scores.append(Score(outlook.mode, outlook.options, outlook, gains[0], min(gains), risk, barred, tuple(gains)))
    told = with_regret(scores, situation.least_worst_gain)
    return told + [Score(one.mode, one.options, None, math.nan, math.nan, math.nan, one.reason) for one in without]


def with_regret(scores: Sequence[Score], least_worst_gain: float) -> list[Score]:
    """The same with the regret of each; ssgd is among them."""
    may = [
        score for score in scores if score.eligible and (score.worst_gain >= least_worst_gain or score.mode == "ssgd")
    ]
    top = [max(gains) for gains in zip(*(score.gains for score in may), strict=True)]
    return [replace(score, regret=_regret(score.gains, top)) if score.gains else score for score in scores]


def _regret(gains: Sequence[float], top: Sequence[float]) -> float:
    return max(best / gain if gain > 0 else math.inf for gain, best in zip(gains, top, strict=True))


def best_of_each(scores: Sequence[Score], least_worst_gain: float = 0.0) -> list[Score]:
    """Each mode with its best options: eligible ones first, of these such as don't lose too much, then by regret.

    Of equal ones the one of less risk.
    """
    best: dict[str, Score] = {}

    def rank(score: Score) -> tuple[bool, bool, float, float, bool]:
        return _rank(score, least_worst_gain)

    for score in sorted(scores, key=rank):
        best.setdefault(score.mode, score)
    return sorted(best.values(), key=rank)


def of_mode(scores: Sequence[Score], mode: str, options: Mapping[str, object]) -> Score | None:
    """A mode with exactly these options, else with its best ones; None where it was not looked at."""
    same = [score for score in scores if score.mode == mode]
    exact = [score for score in same if dict(score.options) == dict(options)]
    return min(exact or same, key=_rank, default=None)


def _rank(score: Score, least_worst_gain: float = 0.0) -> tuple[bool, bool, float, float, bool]:
    regret = score.regret if not math.isnan(score.regret) else math.inf
    risk = score.accuracy_risk if not math.isnan(score.accuracy_risk) else math.inf
    loses = score.worst_gain < least_worst_gain and score.mode != "ssgd"
    return (not score.eligible, loses, round(regret, 3), round(risk, 3), score.mode != "ssgd")


def _barred(outlook: Outlook, situation: Situation, plain: Outlook, risk: float, worst_gain: float) -> str:
    limits = situation.limits
    if outlook.mode == "ssgd":
        return ""
    if worst_gain <= 0:
        return "its updates may make no progress: too few gradients for noise of this scale"
    if risk > limits.accuracy_risk:
        return f"its accuracy risk is {risk:.2f}, more than {limits.accuracy_risk:.2f}"
    if limits.staleness is not None and outlook.max_staleness > limits.staleness:
        return f"gradients may be {outlook.max_staleness} updates old, more than {limits.staleness}"
    if situation.resources is not None:
        return situation.resources.refusal(outlook.gradients_per_s - plain.gradients_per_s)
    return ""
