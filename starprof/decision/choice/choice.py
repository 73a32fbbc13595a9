"""A choice of a mode, with all that it was made from: inputs, scores, the runner-up, and the reason in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starprof.decision.choice.bound import Bound
    from starprof.decision.choice.outlook import Outlook
    from starprof.decision.choice.tail import AsyncTest, Tail

CHOICE_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Standing:
    """What the last choice left, and the next one begins with.

    Attributes:
        mode: that the job is in.
        options: of it.
        stragglers: who was expected to be late.
        moving: whether slowness moved between workers.
    """

    mode: str = "ssgd"
    options: Mapping[str, object] = field(default_factory=dict)
    stragglers: frozenset[int] = frozenset()
    moving: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """A mode, with its best options, against ssgd.

    Attributes:
        mode: its name.
        options: of it.
        outlook: what was expected of it; None: nothing could be.
        gain: time of ssgd for the same progress over the mode's, at the middle of the noise scale's interval.
        worst_gain: at the worst of what is possible, of noise and of the learning rate.
        accuracy_risk: see `progress.accuracy_risk`.
        barred: why it is not eligible; "": it is.
        gains: at every noise and learning rate that are looked at, the same ones for all modes.
        regret: time of this mode over that of the best eligible one, where that is largest; 1: it is best whatever is
            the case. Modes are compared by this.
    """

    mode: str
    options: Mapping[str, object]
    outlook: Outlook | None
    gain: float
    worst_gain: float
    accuracy_risk: float
    barred: str = ""
    gains: tuple[float, ...] = ()
    regret: float = math.nan

    @property
    def eligible(self) -> bool:
        """Whether it may be chosen."""
        return not self.barred


@dataclass(frozen=True)
class Choice:
    """The mode to use from now on.

    Attributes:
        mode: its name.
        options: of it.
        changed: it is another one than before.
        chooser: which chooser decided: "heuristic", "learned" or "paper".
        reason: in words.
        gain: expected time of ssgd over that of this mode, for the same progress.
        scores: of all modes, best first, those that are not eligible last.
        runner_up: best eligible mode that was not chosen.
        inputs: what went in, as plain values.
        standing: to give to the next choice.
        bound: how far any method could be better than waiting.
        tail: of the iteration times.
        async_test: whether asynchronous updates are justified.
        m_star: the m that arXiv 2602.03802 would wait for.
        corrections: where this is not what the papers say.
    """

    mode: str
    options: Mapping[str, object]
    changed: bool
    chooser: str
    reason: str
    gain: float
    scores: tuple[Score, ...]
    runner_up: Score | None
    inputs: Mapping[str, Any]
    standing: Standing
    bound: Bound
    tail: Tail
    async_test: AsyncTest
    m_star: int
    corrections: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values; numbers that are not finite become None."""
        told = {
            "schema": CHOICE_SCHEMA,
            "mode": self.mode,
            "options": dict(self.options),
            "changed": self.changed,
            "chooser": self.chooser,
            "reason": self.reason,
            "gain": self.gain,
            "scores": [_of_score(score) for score in self.scores],
            "runner_up": _of_score(self.runner_up) if self.runner_up else None,
            "inputs": dict(self.inputs),
            "bound": {**asdict(self.bound), "ratio": self.bound.ratio},
            "tail": asdict(self.tail),
            "async": asdict(self.async_test),
            "m_star": self.m_star,
            "corrections": list(self.corrections),
        }
        plain = _plain(told)
        assert isinstance(plain, dict)
        return plain


def _of_score(score: Score) -> dict[str, Any]:
    told = {
        "mode": score.mode,
        "options": dict(score.options),
        "gain": score.gain,
        "worst_gain": score.worst_gain,
        "regret": score.regret,
        "accuracy_risk": score.accuracy_risk,
        "barred": score.barred,
    }
    if score.outlook is not None:
        told["seconds_per_update"] = 1.0 / score.outlook.updates_per_s
        told["max_staleness"] = score.outlook.max_staleness
        told["mean_staleness"] = score.outlook.mean_staleness
        told["skew"] = score.outlook.skew
    return told


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value
