"""The heuristic chooser: scores of all modes by formula, and a change only when it is called for and pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starprof.decision.choice import paper, scoring, stragglers
from starprof.decision.choice.bound import Bound, bound
from starprof.decision.choice.choice import Choice, Score, Standing
from starprof.decision.choice.progress import STALENESS_COST
from starprof.decision.choice.situation import Situation
from starprof.decision.choice.stragglers import Stragglers
from starprof.decision.choice.tail import AsyncTest, Tail, async_test, tail_of

OURS = (
    "round times and staleness are simulated or in closed form, where STAR interpolates (arXiv 2512.09685)",
    "an update counts by its weights with the user's learning rate, where both papers take it as tuned anew",
    "staleness costs progress, in full steps, more under momentum; STAR's score has no such term",
    "modes are compared by regret over all noise and learning rates that are possible, where STAR knows both",
    "the smallest score of all is taken, where STAR stops at the first local minimum",
    "late workers of m-sync are not cancelled, where arXiv 2602.03802 takes order statistics",
    "slowness that moves between workers counts as stragglers too, beside STAR's 20 % rule on each one",
)


UNCALLED_FOR = 2.0
"""Times as much must be gained by another mode when the same workers are late as before."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How readily modes are changed.

    Attributes:
        least_gain: a mode must gain so much over the present one: 0.05 is 5 % less time for the same progress.
        staleness_cost: c of `progress`.
        paper_exact: choose by the paper's own scores instead; for comparison.
        all_reduce: with `paper_exact`, of the modes without a parameter server.
    """

    least_gain: float = 0.05
    staleness_cost: float = STALENESS_COST
    paper_exact: bool = False
    all_reduce: bool = False


@dataclass(frozen=True)
class Assessment:
    """All that a chooser decides on."""

    late: Stragglers
    scores: Sequence[Score]
    best: Sequence[Score]
    tail: Tail
    bound: Bound
    async_test: AsyncTest
    m_star: int
    least_worst_gain: float


def assess(situation: Situation, standing: Standing, settings: Settings) -> Assessment:
    """Who is late, what every mode would bring, and what theory says to it."""
    times, noise = situation.iteration_s, situation.noise_or_unknown
    late = stragglers.expected(times, situation.workers, standing.stragglers)
    scores = scoring.all_scores(situation, len(late.ranks), settings.staleness_cost)
    best = scoring.best_of_each(scores, situation.least_worst_gain)
    tail = tail_of(times)
    fresh = [one.worst_gain for one in best if one.eligible and one.outlook and one.outlook.delay_steps == 0]
    stale = [one.worst_gain for one in best if one.eligible and one.outlook and one.outlook.delay_steps > 0]
    return Assessment(
        late,
        scores,
        best,
        tail,
        bound(times.mean(axis=0), noise.middle / situation.batch),
        async_test(tail, late, len(situation.workers), max(fresh, default=1.0), max(stale, default=0.0)),
        paper.m_star(times, noise.middle, situation.batch),
        situation.least_worst_gain,
    )


def choose(situation: Situation, standing: Standing | None = None, settings: Settings | None = None) -> Choice:
    """Choose a mode for what is expected.

    Args:
        situation: inputs.
        standing: what the last choice left; None: the job is in ssgd and nobody was late.
        settings: None: the usual ones.
    """
    standing, settings = standing or Standing(), settings or Settings()
    found = assess(situation, standing, settings)
    if settings.paper_exact:
        return _by_paper(situation, standing, settings, found)
    chosen, reason = decide(found, standing, settings)
    return choice_of(situation, standing, found, chosen, reason, "heuristic")


def decide(found: Assessment, standing: Standing, settings: Settings) -> tuple[Score, str]:
    """The mode to be in, and why."""
    plain = next(score for score in found.scores if score.mode == "ssgd")
    present = scoring.of_mode(found.scores, standing.mode, standing.options) or plain
    top = next((s for s in found.best if s.eligible and s.worst_gain >= found.least_worst_gain), plain)
    if found.late.none:
        return plain, "nobody is expected to be late: synchronous steps lose nothing"
    same = found.late.key() == (standing.stragglers, standing.moving)
    needed = settings.least_gain * (UNCALLED_FOR if same else 1.0)
    lost = "" if present.eligible else f"; {present.mode} can't stay: {present.barred}"
    if present.eligible and present.regret < top.regret * (1.0 + needed):
        if same:
            return present, f"the same workers as before are expected to be late, {who(found.late)}: " + (
                f"no reason to change, unless {needed:.0%} are gained by it"
            )
        return present, f"{who(found.late)}; {named(top)} would gain less than {needed:.0%} over {named(present)}"
    if top.gain < 1.0 + settings.least_gain:
        return plain, f"{who(found.late)}; no mode gains {settings.least_gain:.0%} over synchronous steps{lost}"
    return top, f"{who(found.late)}; {_why(top, plain)}{lost}"


def choice_of(
    situation: Situation, standing: Standing, found: Assessment, chosen: Score, reason: str, chooser: str
) -> Choice:
    """The whole choice, once it is known which mode."""
    rivals = [score for score in found.best if score.eligible and score.mode != chosen.mode]
    runner_up = rivals[0] if rivals else None
    if runner_up is not None:
        reason += f". Runner-up: {named(runner_up)}, {runner_up.gain:.2f}x"
    return Choice(
        chosen.mode,
        chosen.options,
        (chosen.mode, dict(chosen.options)) != (standing.mode, dict(standing.options)),
        chooser,
        reason,
        chosen.gain,
        tuple(found.best),
        runner_up,
        inputs_of(situation, standing, found.late),
        Standing(chosen.mode, chosen.options, found.late.ranks, found.late.moving),
        found.bound,
        found.tail,
        found.async_test,
        found.m_star,
        OURS if chooser != "paper" else (),
    )


def inputs_of(situation: Situation, standing: Standing, late: Stragglers) -> dict[str, Any]:
    """What went in, as plain values."""
    noise = situation.noise_or_unknown
    return {
        "workers": list(situation.workers),
        "iteration_s": [round(t, 6) for t in situation.iteration_s.mean(axis=0).tolist()],
        "iterations": len(situation.iteration_s),
        "batch": situation.batch,
        "noise_scale": {"low": noise.low, "high": noise.high, "measured": noise.measured},
        "stragglers": sorted(late.ranks),
        "moving_share": late.moving_share,
        "churn": late.churn,
        "mode_before": standing.mode,
        "options_before": dict(standing.options),
        "limits": {
            "accuracy_risk": situation.limits.accuracy_risk,
            "staleness": situation.limits.staleness,
            "shuffled": situation.limits.shuffled,
            "momentum": situation.limits.momentum,
        },
        "resources_measured": situation.resources is not None,
    }


def named(score: Score) -> str:
    """A mode with its options, for people."""
    short = {name: value for name, value in score.options.items() if name != "groups"}
    told = ", ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in short.items()
    )
    return f"{score.mode} ({told})" if told else score.mode


def who(late: Stragglers) -> str:
    """Who is expected to be late, for people."""
    ranks = sorted(late.ranks)
    listed = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    fixed = f"workers expected to be late: {listed}" if ranks else ""
    moving = f"slowness that moves between workers in {late.moving_share:.0%} of the iterations" if late.moving else ""
    return " and ".join(part for part in (fixed, moving) if part)


def _why(top: Score, plain: Score) -> str:
    assert top.outlook is not None
    assert plain.outlook is not None
    told = (
        f"{named(top)} makes {top.outlook.updates_per_s:.3g} updates/s where ssgd makes "
        f"{plain.outlook.updates_per_s:.3g}, and the same progress {top.gain:.2f}x as fast"
    )
    if top.worst_gain < top.gain * 0.995:
        told += f" ({top.worst_gain:.2f}x at the worst noise and learning rate that are possible)"
    return told


def _by_paper(situation: Situation, standing: Standing, settings: Settings, found: Assessment) -> Choice:
    """The mode of the paper's own scores; unlike ours it may be one that is barred."""
    noise = situation.noise_or_unknown
    told = paper.scores(situation.iteration_s, noise.middle, situation.batch, all_reduce=settings.all_reduce)
    plain = told[0]
    mode, options, score = min(told, key=lambda one: one[2]) if found.late.ranks else plain
    if "groups" in options:
        groups = options["groups"]
        assert isinstance(groups, list)
        options = {"groups": [[situation.workers[place] for place in group] for group in groups]}
    chosen = Score(mode, options, None, plain[2] / score, plain[2] / score, 0.0)
    reason = "; ".join(f"{name} {value:.4g} s" for name, _, value in told)
    whole = choice_of(situation, standing, found, chosen, f"scores as the paper has them: {reason}", "paper")
    return replace(whole, gain=chosen.gain)
