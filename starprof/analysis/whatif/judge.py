"""The verdict on an op trace: who or what slows the steps down, told by replaying them without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from starprof.analysis.causes.base import ms, pct, rank_names
from starprof.analysis.settings import Settings
from starprof.analysis.whatif.between import late_begins, slow_work
from starprof.analysis.whatif.clocks import Clocked, on_one_clock
from starprof.analysis.whatif.groups import slow_groups
from starprof.analysis.whatif.interval import mean_interval
from starprof.analysis.whatif.links import slow_links
from starprof.analysis.whatif.passes import Passes, passes_of
from starprof.analysis.whatif.replay import Replay, replay_of
from starprof.analysis.whatif.shares import Shares, of_workers, recovered, shares
from starprof.analysis.whatif.slow_ranks import slow_ranks, uneven_pipelines
from starprof.analysis.whatif.suspect import Prices, Suspect
from starprof.analysis.whatif.trace import op_trace
from starprof.analysis.whatif.uneven import heavy_stage, random_stalls, uneven_data
from starprof.analysis.whatif.unseen import Unseen, unseen
from starprof.model.rundata import WORLD_SIZE, RunData
from starprof.model.verdict import Cost, Finding, Verdict, VerdictKind


def judge(run: RunData, settings: Settings, empty: Verdict) -> Verdict | None:
    """Verdict on a run's operations; None when it has none.

    Args:
        run: one with `operations`.
        settings: thresholds.
        empty: verdict that is filled in but for the answer.
    """
    trace = op_trace(run)
    if trace is None:
        return None
    replay = replay_of(trace)
    if replay is None:
        return replace(empty, reason="The operations wait for each other in a circle: is the trace of one job, whole?")
    empty = replace(empty, steps=(int(replay.steps[0]), int(replay.steps[-1])))
    if len(trace.workers.rank) < 2:
        return replace(empty, reason="The trace holds one rank only: there is nobody to compare it with.")
    clocked = on_one_clock(replay, settings.replay)
    found = shares(clocked.told)
    if len(replay.steps) < settings.replay.min_steps:
        return replace(empty, reason=_too_short(replay, found, settings.replay.min_steps))
    hidden = unseen(run, trace.workers)
    located, passes = _located(clocked.replay, settings)
    suspects = _that_matter(clocked.replay, located, _general(clocked.replay, passes, settings), settings)
    if not suspects:
        return _nobody(clocked, found, hidden, empty)
    return _verdict(_Case(run, clocked, found, hidden), suspects, empty)


def _located(replay: Replay, settings: Settings) -> tuple[list[Suspect], Passes]:
    """Everything that is at a certain place, and the passes without the slow ranks among it."""
    measured = passes_of(replay)
    ranks, passes = slow_ranks(replay, measured, settings)
    ranks += slow_work(replay, measured, settings) + late_begins(replay, measured, settings)
    links = slow_links(replay, settings) + slow_groups(replay, settings)
    return ranks + links + uneven_pipelines(replay, passes, settings), passes


def _general(replay: Replay, passes: Passes, settings: Settings) -> list[Suspect]:
    """How the work is split, the costlier way first, and what stalls at random."""
    found = heavy_stage(replay, passes, settings), uneven_data(replay, passes, settings)
    ways = [suspect for suspect in found if suspect is not None]
    prices = Prices(replay, ways)
    order = sorted(range(len(ways)), key=lambda i: -prices.alone_us(i))
    stalls = random_stalls(replay, passes)
    return [ways[i] for i in order] + ([stalls] if stalls is not None else [])


def _that_matter(
    replay: Replay, located: Sequence[Suspect], general: Sequence[Suspect], settings: Settings
) -> list[Suspect]:
    """Those that cost the job enough: at a place as if it were the only one, else of what the others leave."""
    prices = Prices(replay, located)
    everyone = range(len(located))
    kept = [
        suspect
        for index, suspect in enumerate(located)
        if prices.solo_us(index, everyone) >= _least(suspect, settings) * prices.inside_us(index)
    ]
    for suspect in general:
        prices = Prices(replay, [*kept, suspect])
        last = len(kept)
        if prices.solo_us(last, range(last)) >= _least(suspect, settings) * prices.inside_us(last):
            kept.append(suspect)
    return kept


def _least(suspect: Suspect, settings: Settings) -> float:
    """Least share of the time of its steps that a suspect must cost."""
    if suspect.plain:
        return settings.replay.min_plain_cost_share
    by_verdict = {
        "straggler": settings.replay.min_straggler_cost_share,
        "rotating": settings.min_rotating_cost_share,
    }
    return by_verdict.get(suspect.verdict, settings.replay.min_other_cost_share)


@dataclass(frozen=True)
class _Case:
    """What is judged.

    Attributes:
        found: figures of the what-if analysis.
        hidden: who is not in the trace.
    """

    run: RunData
    clocked: Clocked
    found: Shares
    hidden: Unseen

    @property
    def replay(self) -> Replay:
        """With all starts in one clock."""
        return self.clocked.replay

    def notes(self) -> str:
        """What limits the answer, as sentences with a space before each."""
        return _notes(self.clocked, self.hidden)


def _verdict(case: _Case, suspects: list[Suspect], empty: Verdict) -> Verdict:
    replay, prices = case.replay, Prices(case.replay, suspects)
    everyone = range(len(suspects))
    parts = prices.parts_us(everyone)
    order = sorted(everyone, key=lambda i: (not suspects[i].rows, -parts[i]))
    main = suspects[order[0]]
    about = [i for i, suspect in enumerate(suspects) if suspect.verdict == main.verdict]
    lost_us = prices.run_steps_us - prices.steps_without_us(about)
    seconds = float(lost_us.sum()) / 1e6
    low, high = (len(lost_us) * end / 1e6 for end in mean_interval(lost_us))
    cost = Cost(
        seconds=round(seconds, 6),
        share=round(seconds * 1e6 / prices.run_us, 6),
        gpu_hours=round(seconds * _world_size(case.run) / 3600.0, 6),
        seconds_interval=(round(low, 6), round(high, 6)),
    )
    what_if = _WhatIf(case, suspects)
    findings = tuple(_finding(case, suspects[i], parts[i], prices.inside_us(i), what_if) for i in order)
    reason = _reason(replay, main, cost) + case.notes()
    return replace(empty, verdict=main.verdict, cost=cost, findings=findings, reason=reason)


def _world_size(run: RunData) -> int:
    """GPUs of the job: the trace may hold one tensor-parallel rank of several only."""
    told = [size for info in run.ranks if isinstance(size := info.detail.get(WORLD_SIZE), int)]
    return max([len(run.ranks), *told])


def _finding(case: _Case, suspect: Suspect, cost_us: float, inside_us: float, what_if: _WhatIf) -> Finding:
    steps = case.replay.steps
    ended = suspect.end < len(steps)
    first = int(steps[suspect.first])
    before = int(steps[max(0, suspect.first - 1)])
    ranks = tuple(int(case.replay.workers.rank[row]) for row in suspect.rows)
    return Finding(
        kind=suspect.kind,
        cause=suspect.cause,
        ranks=ranks,
        nodes=(),
        role=suspect.role,
        cause_share=suspect.cause_share,
        confidence=round(suspect.confidence, 4),
        onset_step=first,
        onset_interval=(before, first),
        end_step=int(steps[suspect.end - 1]) if ended else None,
        slowdown=round(max(1.0, inside_us / max(inside_us - cost_us, 1e-9)), 4),
        cost_seconds=round(cost_us / 1e6, 6),
        evidence=(*suspect.evidence, what_if.words(suspect, cost_us), *case.hidden.sharing(ranks)),
        action=suspect.action,
        verify=suspect.verify,
        next=suspect.next,
    )


class _WhatIf:
    """What the replay says, as a sentence with the job's slowdown and its interval."""

    def __init__(self, case: _Case, suspects: Sequence[Suspect]) -> None:
        replay = case.clocked.told
        self._job = f"the job's steps take {_times(case.found)}"
        self._now_us = float(case.found.now_us.sum())
        rows = sorted({row for suspect in suspects for row in suspect.rows})
        if rows:
            (share,) = recovered(replay, [of_workers(np.isin(np.arange(len(replay.workers.rank)), rows))])
            who = rank_names(tuple(int(replay.workers.rank[row]) for row in rows))
            self._fixed = f"with {who} alone ideal {pct(min(max(share, 0.0), 1.0))} of that is recovered"

    def words(self, suspect: Suspect, cost_us: float) -> str:
        """The sentence for one suspect."""
        if suspect.rows:
            return f"Replay: {self._job}; {self._fixed}."
        return f"Replay: {self._job}; {pct(cost_us / self._now_us)} of the time is due to this."


def _times(found: Shares) -> str:
    low, high = found.slowdown.interval
    return f"{found.slowdown.mean:.3f} times the ideal (95 % interval {low:.3f} to {high:.3f})"


def _reason(replay: Replay, main: Suspect, cost: Cost) -> str:
    if main.verdict == "straggler":
        who = rank_names(tuple(int(replay.workers.rank[row]) for row in main.rows))
        return f"{who.capitalize()}: {main.cause}, {pct(cost.share)} of the time."
    told = {
        "structural": f"Stage {main.role.get('pp')} of the pipeline has more work than the others",
        "workload-skew": "Micro-batches carry unequal work, and the ranks with less wait for those with more",
        "rotating": "Passes stall on changing ranks",
        "shared": "Communication is slow between ranks, but not which of them is at fault could be told",
        "inconclusive": "The trace does not tell whether it is the work or the hardware: see the finding",
    }[main.verdict]
    return f"{told} ({pct(cost.share)} of the time); no rank is to blame."


def _nobody(clocked: Clocked, found: Shares, hidden: Unseen, empty: Verdict) -> Verdict:
    steps = len(clocked.replay.steps)
    reason = f"No rank, stage or link is persistently slower than its peers: {steps} steps take {_times(found)}."
    verdict: VerdictKind = "inconclusive" if hidden.places else "none"
    return replace(empty, verdict=verdict, reason=reason + _notes(clocked, hidden))


def _notes(clocked: Clocked, hidden: Unseen) -> str:
    """What limits an answer, as sentences with a space before each."""
    notes = []
    count = clocked.replay.trace.left_out
    if count:
        notes.append(f"{count} incomplete step{'s are' if count > 1 else ' is'} left out.")
    if hidden.places:
        notes.append(hidden.words)
    if clocked.apart_us:
        notes.append(
            f"The ranks' clocks are {ms(clocked.apart_us)} apart, as the ends of their transfers and collectives tell; "
            "they are compared with that taken out."
        )
    return "".join(f" {note}" for note in notes)


def _too_short(replay: Replay, found: Shares, needed: int) -> str:
    worst = int(replay.workers.rank[found.worst[0]])
    count = len(replay.steps)
    return (
        f"Only {count} whole step{'s' if count > 1 else ''}, {needed} are needed: rank {worst} costs most so far "
        f"(S = {float(found.worker[found.worst[0]]):.2f}), which may be chance; trace longer."
    )
