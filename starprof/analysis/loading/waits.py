"""Verdict on logs that tell, for each rank, the whole step and how much of it was waiting for data.

The whole step is as long on every rank, because all wait for the slowest; waiting for data is each rank's own. So the
usual search for late ranks is made with that as the own time, and with the rest as time in which a rank may have
waited for others. What a rank computes is in the rest: nothing is said of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from starprof.analysis.arrays import Ints
from starprof.analysis.causes.base import ms, rank_names
from starprof.analysis.counters import Counters
from starprof.analysis.own_time import OwnTime, own_time
from starprof.analysis.settings import Settings
from starprof.analysis.topology import shared_place
from starprof.analysis.words import COLD_CACHE
from starprof.model import causes
from starprof.model.rundata import RunData, Steps
from starprof.model.verdict import Cost, Finding, Verdict, VerdictKind

SAME_STEP = 0.05
"""Steps of ranks that wait for each other differ by less than this share."""
SEEN_SHARE = 0.5
MAX_GROUPS = 2
"""Stalls of more different groups of ranks than this go round: no rank is to blame."""
REST = (
    "Whole steps don't tell who is slow in computing or communicating: record that with starprof record, or with "
    "profiler traces of all ranks."
)


def judge(run: RunData, settings: Settings, empty: Verdict) -> Verdict | None:
    """Verdict on each rank's waiting for data; None where it is not told, or where ranks don't step together.

    Args:
        run: one with `info["timing"] == "wall"`.
        settings: thresholds.
        empty: verdict that is filled in but for the answer.
    """
    from starprof.analysis.diagnose import diagnose  # which asks the judges first

    split = _split(run)
    if split is None:
        return None
    steps = run.steps.steps
    empty = replace(empty, steps=(int(steps[0]), int(steps[-1])))
    verdict = diagnose(split, settings)
    lasting = [_in_own_words(f) for f in verdict.findings if f.kind != "one-off" and _of_data(f)]
    if verdict.verdict in ("straggler", "rotating", "uniform") and lasting:
        reason = verdict.reason if verdict.verdict != "uniform" else f"All ranks wait longer for data alike. {REST}"
        return replace(empty, verdict=verdict.verdict, cost=verdict.cost, findings=tuple(lasting), reason=reason)
    return _of_stalls(split, _stalls(split, settings), settings, empty)


def _in_own_words(finding: Finding) -> Finding:
    """Without what is said of time in collectives, which here is the whole rest of the step."""
    kept = [line for line in finding.evidence if "in collectives" not in line]
    kept.append("All ranks take as long for a step: while one waits for data, the others wait for it.")
    return replace(finding, evidence=tuple(kept))


def _of_stalls(run: RunData, stalls: list[Finding], settings: Settings, empty: Verdict) -> Verdict:
    """Nobody waits persistently: single steps are all there is to tell."""
    seconds = sum(stall.cost_seconds for stall in stalls)
    share = seconds * 1e6 / _run_us(run)
    cost = Cost(round(seconds, 6), round(share, 6), round(seconds * len(run.ranks) / 3600.0, 6))
    shown = tuple(stalls[: settings.max_findings_listed])
    if share < settings.min_special_cost_share:
        reason = f"No rank waits for its data persistently longer than the others. {REST}"
        return replace(empty, findings=shown, reason=reason)
    groups = {stall.ranks for stall in stalls}
    who = rank_names(tuple(sorted({rank for group in groups for rank in group})))
    which = f"step {stalls[0].onset_step}" if len(stalls) == 1 else f"{len(stalls)} single steps"
    reason = (
        f"In {which} {who} waited for data and the others for {'it' if who.startswith('rank ') else 'them'}. {REST}"
    )
    kind: VerdictKind = "straggler" if len(groups) <= MAX_GROUPS else "rotating"
    if kind == "rotating":
        shown = tuple(replace(stall, ranks=(), kind="rotating") for stall in shown)
    return replace(empty, verdict=kind, cost=cost, findings=shown, reason=reason)


def _stalls(run: RunData, settings: Settings) -> list[Finding]:
    """Single steps in which some ranks waited for data far longer than the rest, the most costly first."""
    duration, data = run.steps["dur_us"], run.steps["data_wait_us"]
    typical = float(np.nanmedian(duration))
    known = np.isfinite(data).all(axis=0)
    excess = np.where(known, data - np.median(np.where(known, data, 0.0), axis=0), 0.0)
    cost = np.minimum(
        excess.max(axis=0), np.where(known, np.median(np.where(known, duration, 0.0), axis=0) - typical, 0.0)
    )
    found = []
    own = own_time(run, settings)
    if own is None:
        return []
    for column in np.flatnonzero(cost >= settings.min_one_off_cost_steps * typical):
        late = np.flatnonzero(excess[:, column] >= settings.min_spike * typical)
        found.append(_stall(run, own, int(column), late, float(cost[column]), typical))
    return sorted(found, key=lambda finding: -finding.cost_seconds)


def _stall(run: RunData, own: OwnTime, column: int, late: Ints, cost_us: float, typical: float) -> Finding:
    step = int(run.steps.steps[column])
    shared = shared_place(Counters(run), own, np.flatnonzero(np.isin(own.rows, late)).tolist())
    ranks = tuple(run.ranks[int(row)].rank for row in late)
    data = run.steps["data_wait_us"][:, column]
    others = np.delete(data, late)
    least, most = float(data[late].min()), float(data[late].max())
    waited = ms(most) if len(late) == 1 else f"{ms(least)} to {ms(most)}"
    who = rank_names(ranks)
    return Finding(
        kind="one-off",
        cause=causes.DATA_LOADING,
        ranks=ranks,
        cause_share=1.0,
        confidence=0.9,
        onset_step=step,
        onset_interval=(step, step),
        end_step=step,
        slowdown=round((typical + cost_us) / typical, 4),
        cost_seconds=round(cost_us / 1e6, 6),
        evidence=(
            f"{who.capitalize()} waited {waited} for data in step {step}, the others {ms(float(np.median(others)))}.",
            "The step is as long for all: the rest of it the others spent waiting for these, not working.",
            *([shared.words[0].upper() + shared.words[1:]] if shared.words else []),
        ),
        action="Look at the storage and the loader workers of these ranks.",
        verify="The waiting for data of these ranks must be as short as the others' in every step.",
        next=" ".join(part for part in (shared.next, COLD_CACHE) if part),
    )


def _run_us(run: RunData) -> float:
    return float(np.nansum(np.nanmedian(run.steps["dur_us"], axis=0)))


def _split(run: RunData) -> RunData | None:
    """The run with waiting for data as the ranks' own time, and the rest of the step as waiting for others."""
    duration, data = run.steps.columns.get("dur_us"), run.steps.columns.get("data_wait_us")
    if run.info.get("timing") != "wall" or duration is None or data is None or len(run.ranks) < 2:
        return None
    both = np.isfinite(duration) & np.isfinite(data)
    complete = both.all(axis=0)
    if complete.sum() < max(1, SEEN_SHARE * duration.shape[1]):
        return None
    spread = np.ptp(duration[:, complete], axis=0) / np.median(duration[:, complete], axis=0)
    if np.median(spread) > SAME_STEP:
        return None
    columns = {
        "dur_us": np.where(both, duration, np.nan),
        "data_wait_us": np.where(both, data, np.nan),
        "blocked_us": np.where(both, duration - data, np.nan),
    }
    kept = Steps(run.steps.steps, columns, run.steps.start_mono_ns)
    return replace(run, info={**run.info, "timing": None}, steps=kept)


def _of_data(finding: Finding) -> bool:
    """Not of the rest of the step, which holds more than the reduction."""
    return bool(finding.ranks) or finding.cause == causes.DATA_LOADING or finding.kind == "rotating"
