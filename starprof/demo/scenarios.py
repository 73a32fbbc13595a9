"""The faults that the demo can inject: what happens, and what a right diagnosis calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starprof.model import causes
from starprof.model.verdict import Finding, Verdict

RANKS = 4
DEFAULT_STEPS = 160
DELAY_MS = 60.0
NET_RATE_MBIT = 80.0  # the model sends 1 MB a step: about 75 ms beyond what hides behind backward
ONSET_TOLERANCE_STEPS = 3


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault of the demo.

    Attributes:
        name: what `--fault` takes.
        story: one line for the user; {rank} and {step} are filled in.
        causes: the causes that are right; empty when nobody is to blame.
        hosts: each rank is a host of its own, in a network namespace.
    """

    name: str
    story: str
    causes: frozenset[str] = frozenset()
    hosts: bool = False


SCENARIOS = {
    s.name: s
    for s in (
        Scenario(
            "backward",
            f"from step {{step}} on, a gradient hook in rank {{rank}}'s first layer takes {DELAY_MS:g} ms",
            frozenset({causes.BACKWARD_COMPUTE}),
        ),
        Scenario(
            "loader",
            f"from step {{step}} on, one sample of each of rank {{rank}}'s batches takes {DELAY_MS:g} ms to read",
            frozenset({causes.DATA_LOADING}),
        ),
        Scenario(
            "cpu",
            "at step {step} a foreign process starts to burn the core of rank {rank}, whose compute is on the CPU",
            frozenset({causes.CPU_CONTENTION}),
        ),
        Scenario(
            "net",
            f"at step {{step}} the network interface of rank {{rank}}'s host is shaped to {NET_RATE_MBIT:g} Mbit/s",
            frozenset({causes.NIC_BANDWIDTH, causes.NIC_DEGRADED}),
            hosts=True,
        ),
        Scenario("none", "nothing is injected"),
    )
}


@dataclass(frozen=True, slots=True)
class Truth:
    """What was really done to the job; `step` and `cost_seconds` are None for `none`."""

    scenario: Scenario
    rank: int
    step: int | None
    cost_seconds: float | None

    def describe(self) -> str:
        """One line."""
        if self.step is None:
            return "nothing"
        cost = "" if self.cost_seconds is None else f", cost {self.cost_seconds:.1f} s"
        return f"{self.scenario.name} fault on rank {self.rank} from step {self.step}{cost}"


def describe_found(verdict: Verdict) -> str:
    """The diagnosis in one line of the same form."""
    blamed = [_describe(f) for f in verdict.findings if f.ranks]
    return "; ".join(blamed) if blamed else f"nobody to blame (verdict: {verdict.verdict})"


def _describe(finding: Finding) -> str:
    ranks = ", ".join(map(str, finding.ranks))
    onset = "" if finding.onset_step is None else f" from step {finding.onset_step}"
    return f"{finding.cause} on rank {ranks}{onset}, cost {finding.cost_seconds:.1f} s"


def matches(verdict: Verdict, truth: Truth) -> bool:
    """Whether the diagnosis names the fault, the rank and the step, and blames nobody else."""
    blamed = [f for f in verdict.findings if f.ranks]
    if truth.step is None:
        return verdict.verdict == "none" and not blamed
    return (
        verdict.verdict == "straggler"
        and len(blamed) == 1
        and blamed[0].ranks == (truth.rank,)
        and blamed[0].cause in truth.scenario.causes
        and blamed[0].onset_step is not None
        and abs(blamed[0].onset_step - truth.step) <= ONSET_TOLERANCE_STEPS
    )


def true_cost_seconds(step_seconds: list[float], onset: int, warm_up: int = 5) -> float:
    """Seconds that the job lost since the onset, by its own step times: all beyond the median before it."""
    before = sorted(step_seconds[warm_up:onset])
    usual = before[len(before) // 2]
    return sum(step_seconds[onset:]) - usual * (len(step_seconds) - onset)


def to_json(truth: Truth) -> dict[str, Any]:
    """The truth as plain data, for the file beside the run."""
    return {
        "fault": truth.scenario.name,
        "rank": truth.rank,
        "step": truth.step,
        "cost_seconds": truth.cost_seconds,
    }
