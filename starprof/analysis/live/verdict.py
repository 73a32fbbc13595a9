"""What a running job's detector knows at the moment, as the verdict object that all reports share."""

from __future__ import annotations

from itertools import pairwise

from starprof.analysis.causes import ms, pct
from starprof.analysis.causes.base import rank_names
from starprof.analysis.live.detector import OnlineDetector
from starprof.analysis.live.finding import LiveFinding
from starprof.analysis.spiky import MIN_ROTATING_RANKS
from starprof.model import causes
from starprof.model.verdict import Cost, Finding, Verdict, VerdictKind

STARTED = "from the first step on"


def live_verdict(detector: OnlineDetector, run: str = "") -> Verdict:
    """The verdict on the steps seen so far.

    Only confirmed findings name ranks. A provisional one is told in `reason` and as a `one-off` that blames nobody: it
    may be over in the next step. Slow stretches that have gone round over several ranks blame nobody either.
    """
    current = detector.findings
    confirmed = [f for f in current if f.status == "confirmed"]
    ended = [f for f in detector.history if f.status == "ended"]
    provisional = [f for f in current if f.status == "provisional"]
    moving = _goes_round([*ended, *confirmed])
    blame = not moving
    told = [_finding(detector, f, blame) for f in [*confirmed, *ended]] + [_provisional(f) for f in provisional]
    seconds = sum(f.lost_us for f in (*confirmed, *ended)) / 1e6
    share = min(1.0, seconds * 1e6 / max(detector.run_us, 1.0))
    kind: VerdictKind = "rotating" if moving else "straggler" if confirmed or ended else "none"
    if kind == "none" and not detector.armed:
        kind = "inconclusive"
    first, last = detector.first_step, detector.last_step
    ranks = len(detector.infos)
    return Verdict(
        run=run,
        ranks=ranks,
        steps=None if first is None or last is None else (first, last),
        verdict=kind,
        cost=Cost(round(seconds, 6), round(share, 6), round(seconds * ranks / 3600.0, 6)),
        findings=tuple(told),
        reason=_reason(detector, kind, [*confirmed, *ended], provisional, share),
    )


def _goes_round(found: list[LiveFinding]) -> bool:
    """Slow stretches on several ranks, one after the other."""
    ordered = sorted(found, key=lambda f: f.onset_step)
    apart = all(a.end_step is not None and a.end_step < b.onset_step for a, b in pairwise(ordered))
    return apart and len({f.rank for f in found}) >= MIN_ROTATING_RANKS


def _finding(detector: OnlineDetector, live: LiveFinding, blame: bool) -> Finding:
    last = live.end_step if live.end_step is not None else detector.last_step or live.onset_step
    steps = max(1, last - live.onset_step + 1)
    healthy_us = steps * max(detector.healthy_step_us, 1.0)
    host = next(info.host for info in detector.infos if info.rank == live.rank)
    role = next(dict(info.role) for info in detector.infos if info.rank == live.rank)
    since = STARTED if live.from_start else f"since step {live.onset_step}"
    until = "" if live.end_step is None else f" to step {live.end_step}"
    return Finding(
        kind="rotating" if not blame else "transient" if live.end_step is not None else "chronic",
        cause=causes.UNKNOWN,
        ranks=(live.rank,) if blame else (),
        nodes=(host,) if blame else (),
        role=role if blame else {},
        confidence=0.95,
        onset_step=live.onset_step,
        onset_interval=live.onset_interval,
        end_step=live.end_step,
        slowdown=round(1.0 + live.lost_us / healthy_us, 4),
        cost_seconds=round(live.lost_us / 1e6, 6),
        evidence=(
            f"Rank {live.rank} needs {live.slowdown:.2f} times as long for itself as its peers {since}{until} "
            f"({live.z:.0f} standard errors), and has made the job {ms(live.lost_us)} longer so far.",
        ),
        action=f"Look at rank {live.rank} now, while it is slow: clocks, temperature and other processes on {host}.",
        verify=f"The finding should end; {since} means that it has not yet." if live.end_step is None else "",
        next="The cause is looked for in the recording: starprof summary.",
    )


def _provisional(live: LiveFinding) -> Finding:
    """Late in the last few steps; told, but not blamed yet."""
    return Finding(
        kind="one-off",
        cause=causes.UNKNOWN,
        confidence=0.5,
        onset_step=live.onset_step,
        onset_interval=live.onset_interval,
        cost_seconds=round(live.lost_us / 1e6, 6),
        evidence=(
            f"Provisional: rank {live.rank} is {live.slowdown:.2f} times as slow as its peers since step "
            f"{live.onset_step}; a few more steps will tell it from a one-off.",
        ),
        action="Wait for the next steps.",
    )


def _reason(
    detector: OnlineDetector,
    kind: VerdictKind,
    found: list[LiveFinding],
    provisional: list[LiveFinding],
    share: float,
) -> str:
    waiting = ""
    if provisional:
        who = rank_names(tuple(sorted(f.rank for f in provisional)))
        waiting = f" Provisional: {who} late since step {min(f.onset_step for f in provisional)}."
    if kind == "straggler":
        now = tuple(sorted({f.rank for f in found if f.end_step is None}))
        who = rank_names(now or tuple(sorted({f.rank for f in found}))).capitalize()
        return f"{who} {'late now' if now else 'was late, and is no more'}, {pct(share)} of the time.{waiting}"
    if kind == "rotating":
        return f"Slow stretches go round over the ranks ({pct(share)} of the time); no rank is to blame.{waiting}"
    if kind == "inconclusive":
        return f"Too little is known of the noise yet to judge anybody.{waiting}"
    return f"No rank is late persistently up to step {detector.last_step}.{waiting}"
