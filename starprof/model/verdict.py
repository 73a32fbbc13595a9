"""The verdict object: what `summary --json`, `demo --json` and the live stream print.

Its JSON form is versioned (`schema`), documented in docs/verdict.md and stable: fields are added, never renamed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

VERDICT_SCHEMA = 1

VerdictKind = Literal[
    "none",
    "straggler",
    "rotating",
    "structural",
    "workload-skew",
    "uniform",
    "shared",
    "hang",
    "inconclusive",
]
FindingKind = Literal["chronic", "transient", "rotating", "periodic", "trend", "one-off", "uniform", "structural"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What the slowness costs: wall seconds of the job, their share of its time, and GPU hours (all ranks).

    Attributes:
        money: the GPU hours at the price that the user gave, in its currency; None without a price.
        seconds_interval: 95 % interval of `seconds`, from how the loss differs between steps; None: not known.
    """

    seconds: float
    share: float
    gpu_hours: float
    money: float | None = None
    seconds_interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One slowness: who, since when, why, what it costs, what to do, and how to see that it worked.

    Attributes:
        ranks: who is to blame; empty when nobody is (periodic work, uniform slowness, a shared resource).
        cause_share: share of the slowdown that the evidence for the cause covers, 0..1; a cause is only named
            from 0.8 on, below it is "unknown" and `evidence` says what was partly covered.
        onset_interval: first and last step between which the onset lies.
        slowdown: job step time with the fault over without it (1.0 = none); where nobody waits for others, the named
            ranks' own.
        cost_seconds: wall seconds of the job that it is answerable for. Where findings overlap in time, the loss is
            shared between them (Shapley value of removing them), so that costs add up and nothing counts twice.
        next: what to record or try next when the answer is not complete, else "".
    """

    kind: FindingKind
    cause: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    role: dict[str, int] = field(default_factory=dict)
    cause_share: float = 0.0
    confidence: float = 0.0
    onset_step: int | None = None
    onset_interval: tuple[int, int] | None = None
    end_step: int | None = None
    slowdown: float = 1.0
    cost_seconds: float = 0.0
    evidence: tuple[str, ...] = ()
    action: str = ""
    verify: str = ""
    next: str = ""


@dataclass(frozen=True, slots=True)
class NotCollected:
    """A source that could not be read, and why."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Overhead:
    """What the recording itself cost: hook time per step in us and the agent's share of one core; None unknown."""

    step_us: float | None = None
    agent_cpu: float | None = None
    agent_rss_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The whole answer for one run. `steps` is the first and last step looked at."""

    run: str
    ranks: int
    steps: tuple[int, int] | None
    verdict: VerdictKind
    cost: Cost
    findings: tuple[Finding, ...] = ()
    not_collected: tuple[NotCollected, ...] = ()
    overhead: Overhead = Overhead()
    reason: str = ""
    """One line: why this verdict, in particular why it is `inconclusive`."""

    def to_json(self) -> dict[str, Any]:
        """The stable JSON form (plain dicts and lists)."""
        return {"schema": VERDICT_SCHEMA, **cast("dict[str, Any]", _listed(asdict(self)))}


def _listed(value: Any) -> Any:
    """Tuples to lists, so that the object equals what a JSON round trip gives back."""
    if isinstance(value, dict):
        return {k: _listed(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [_listed(v) for v in value]
    return value
