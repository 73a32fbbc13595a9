"""Runs with a verdict to report on: synthetic ones through the real record model, verdicts written by hand."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from starprof.analysis.synthetic import SyntheticRun
from starprof.analysis.synthetic.faults import Slow
from starprof.model.rundata import RunData
from starprof.model.verdict import Cost, Finding, NotCollected, Overhead, Verdict

EVIL = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=2>\x1b[31m\u202e"


def make_run(ranks: int = 4, steps: int = 200, *, culprit: int = 1, onset: int = 50, nodes: int = 1) -> RunData:
    """One rank whose backward pass takes 30 ms longer from `onset` on."""
    slow = Slow(phase="backward", us=30_000.0, ranks=(culprit,), start=onset)
    return SyntheticRun(ranks=ranks, steps=steps, nodes=nodes, faults=(slow,)).data()


def make_verdict(run: RunData, *, culprit: int = 1, onset: int | None = 50, cause: str = "backward-compute") -> Verdict:
    finding = Finding(
        kind="chronic",
        cause=cause,
        ranks=(culprit,),
        nodes=("n0",),
        cause_share=0.93,
        confidence=0.97,
        onset_step=onset,
        onset_interval=None if onset is None else (onset - 2, onset + 1),
        slowdown=1.42,
        cost_seconds=4.5,
        evidence=("own backward 66 ms a step, peers 36 ms", "arrives last in 149 of 150 steps"),
        action="Profile the backward pass of the rank.",
        verify="The step falls to 71 ms.",
        next="Record with a profiler.",
    )
    return Verdict(
        run="demo",
        ranks=len(run.ranks),
        steps=(0, len(run.steps.steps) - 1),
        verdict="straggler",
        cost=Cost(4.5, 0.25, 0.0),
        findings=(finding,),
        not_collected=(NotCollected("nvml", "no NVIDIA driver"),),
        overhead=Overhead(step_us=14.2, agent_cpu=0.003, agent_rss_bytes=20_000_000),
    )


def healthy(run: RunData) -> Verdict:
    return replace(make_verdict(run), verdict="none", findings=(), cost=Cost(0.0, 0.0, 0.0))


def make_hostile(run: RunData, verdict: Verdict) -> tuple[RunData, Verdict]:
    """The same with markup, script and terminal escapes in every text that comes from outside."""
    bad_run = replace(
        run,
        info={**run.info, "command": f"python {EVIL}", "name": EVIL, "note": EVIL},
        ranks=tuple(replace(r, host=EVIL, device=EVIL, cpus=EVIL, framework=EVIL, backend=EVIL) for r in run.ranks),
        nodes=run.nodes.assign(host=EVIL, kernel=EVIL),
        gaps=pd.DataFrame([{"source": EVIL, "node": 0, "rank": 0, "reason": EVIL}]),
        unavailable=pd.DataFrame([{"source": EVIL, "node": 0, "reason": EVIL}]),
        events=pd.DataFrame(
            [{"kind": "hook-error", "node": 0, "rank": 0, "mono_ns": 1, "step": 3, "value": 2, "detail": EVIL}]
        ),
    )
    finding = replace(
        verdict.findings[0],
        nodes=(EVIL,),
        role={EVIL: 1},
        evidence=(EVIL,),
        action=EVIL,
        verify=EVIL,
        next=EVIL,
    )
    return bad_run, replace(verdict, run=EVIL, reason=EVIL, findings=(finding,))
