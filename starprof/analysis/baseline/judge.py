"""The verdict of a run, with what a baseline adds to it: everybody is slower than in a run that is known as good.

Which part of the step got longer tells where to look. All parts alike point to how the job is launched (threads, CPUs,
clocks, environment); communication alone to network or transport; data alone to the loader. No rank is ever blamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from starprof.analysis.baseline.compare import Comparison, Part, compare, unlike
from starprof.analysis.baseline.profile import COMMUNICATION, WAITING, Profile
from starprof.analysis.causes.base import ms
from starprof.analysis.settings import DEFAULT, Settings
from starprof.model import causes
from starprof.model.verdict import Cost, Finding, Verdict

MIN_SLOWER = 0.05
"""Runs of the same job differ by some percent without any fault."""
ALIKE = 1.5
"""Parts whose ratios differ by less got slower alike."""
MIN_PART = 0.02
"""A part that is less of the baseline's step tells nothing by its ratio."""
DATA, COMPUTE = "data_wait", ("forward", "backward")
WORK = (DATA, "h2d", *COMPUTE, "optimizer")
OVERRULED = ("none", "uniform", "inconclusive")


@dataclass(frozen=True, slots=True)
class _Suspect:
    cause: str
    share: float
    what: str
    action: str
    next: str = ""


_SINGLE = {
    COMMUNICATION: _Suspect(
        causes.NETWORK_PATH,
        0.0,
        "Only communication got slower: network or transport.",
        "Compare what the communication library chose in both runs (NCCL_DEBUG=INFO: transport, interfaces, rings), "
        "then the network's counters; a fall-back to sockets or to another interface looks like this.",
    ),
    DATA: _Suspect(
        causes.DATA_LOADING,
        0.0,
        "Only waiting for data got slower: the loader, or the storage behind it.",
        "Compare number of workers, data set location and cache of both runs, and the load of the storage.",
    ),
    "h2d": _Suspect(
        causes.HOST_TO_DEVICE,
        0.0,
        "Only copies to the device got slower.",
        "Compare pinned memory, NUMA placement and PCIe links of both runs.",
    ),
    "optimizer": _Suspect(
        causes.OPTIMIZER,
        0.0,
        "Only the optimizer got slower.",
        "Compare optimizer, its fused or foreach variant, and offloading of both runs.",
    ),
    "checkpoint": _Suspect(
        causes.CHECKPOINT, 0.0, "Only checkpoints take more time.", "Compare how often and where they are saved."
    ),
    "eval": _Suspect(causes.EVALUATION, 0.0, "Only evaluations take more time.", "Compare how often they run."),
    "compile": _Suspect(causes.COMPILE, 0.0, "Only compilation takes more time.", "Look for recompilations."),
    "gc": _Suspect(causes.GC, 0.0, "Only garbage collection takes more time.", "Compare the live objects."),
}
_CONFIGURATION = _Suspect(
    causes.CONFIGURATION,
    1.0,
    "{parts} got slower alike, on every rank: no single component does that. How the job was launched is suspected.",
    "Compare the launch of both runs: threads per rank (OMP_NUM_THREADS), CPUs it may use (affinity, --cpus-per-task, "
    "cgroup), CPU and GPU clocks, debug and profiling switches, versions.",
    "Run again with the baseline's launcher options; if it is fast again, put them back one by one.",
)
_COMPUTE = "Compare clocks and power caps, precision, kernels and compilation, and model and batch of both runs."
_NOT_TOLD = "Compare launch, versions and machines of both runs; change one at a time."
_RECORD = "Record both runs with starprof record: then the parts of a step can be compared."


def against(
    verdict: Verdict, profile: Profile | None, baselines: Sequence[Profile], settings: Settings = DEFAULT
) -> Verdict:
    """Compare a run with runs known as good, and say so in its verdict.

    Args:
        verdict: the run's own.
        profile: of the run; None when it has no step times.
        baselines: runs known as good.
        settings: thresholds.

    Returns:
        The verdict with a finding when the run is slower than its own findings explain, else with a word on it.
    """
    if profile is None or not baselines:
        return _told(verdict, "Not compared with the baseline: step times of both runs are needed.")
    reasons = {b.name: unlike(profile, b) for b in baselines}
    usable = [b for b in baselines if not reasons[b.name]]
    if not usable:
        name, reason = next(iter(reasons.items()))
        return _told(verdict, f"Not compared with {name}: {reason}.")
    found = compare(profile, usable)
    who = _names(found.names)
    if found.low <= 1.0 + MIN_SLOWER:
        word = f"{100 * abs(found.ratio - 1.0):.1f} % {'slower' if found.ratio >= 1 else 'faster'} than"
        same = "as fast as" if abs(found.ratio - 1.0) < MIN_SLOWER else word
        return _told(verdict, f"Steps are {same} {who} ({_time(profile, profile.step_us)} each).")
    left = found.added_us * profile.steps - 1e6 * verdict.cost.seconds if not profile.unit else found.added_us
    waiting = next((p.added_us for p in found.parts if p.name == WAITING), 0.0)
    words = f"Steps are {found.ratio:.2f} times as long as in {who}."
    if waiting >= settings.min_cause_share * found.added_us:
        return _told(verdict, f"{words} What they take longer is waiting for late ranks, not work of everybody.")
    if verdict.cost.seconds > 0 and left < MIN_SLOWER * profile.step_us * profile.steps:
        return _told(verdict, f"{words} The findings explain that.")
    return _with_finding(verdict, profile, found, max(left, 0.0), settings)


def _with_finding(verdict: Verdict, profile: Profile, found: Comparison, left_us: float, settings: Settings) -> Verdict:
    suspect = _suspect(profile, found, settings)
    seconds = 0.0 if profile.unit else left_us / 1e6
    total = profile.step_us * profile.steps / 1e6
    who = _names(found.names)
    named = suspect.share >= settings.min_cause_share
    everybody = profile.ranks > 1 and profile.kind[1] not in ("wall", "job")
    finding = Finding(
        kind="uniform",
        cause=suspect.cause if named else causes.UNKNOWN,
        cause_share=min(suspect.share, 1.0),
        confidence=0.7 if suspect.cause == causes.CONFIGURATION else 0.8 if len(found.names) < 3 else 0.9,
        onset_step=profile.first_step,
        slowdown=found.ratio if profile.unit else total / max(total - seconds, total / found.ratio),
        cost_seconds=seconds,
        evidence=(
            f"A step takes {_time(profile, profile.step_us)}, {found.ratio:.2f} times as long as in {who} "
            f"(between {found.low:.2f} and {found.high:.2f}).",
            *_part_lines(profile, found),
            suspect.what,
        ),
        action=suspect.action,
        verify="Steps take as long as in the baseline again.",
        next=suspect.next,
    )
    cost = verdict.cost.seconds + seconds
    reason = f"{'Every rank is' if everybody else 'The job is'} {found.ratio:.2f} times slower than {who}."
    if not everybody:
        reason += " Whether all ranks are, these times don't tell."
    overruled = verdict.verdict in OVERRULED
    return replace(
        verdict,
        verdict=("uniform" if everybody else "inconclusive") if overruled else verdict.verdict,
        findings=(finding, *verdict.findings) if overruled else (*verdict.findings, finding),
        cost=Cost(cost, min(cost / total, 1.0) if seconds else verdict.cost.share, cost * profile.world / 3600),
        reason=reason if overruled else f"{verdict.reason} {reason}".strip(),
    )


def _suspect(profile: Profile, found: Comparison, settings: Settings) -> _Suspect:
    """Where the added time lies."""
    if not any(p.name != "unaccounted" for p in found.parts):
        return _Suspect(causes.UNKNOWN, 0.0, "The source does not tell the parts of a step.", _NOT_TOLD, _RECORD)
    shares = {p.name: p.added_us / found.added_us for p in found.parts}
    top = max(shares, key=lambda name: shares[name])
    if top in _SINGLE and shares[top] >= settings.min_cause_share:
        return replace(_SINGLE[top], share=shares[top])
    base = profile.step_us - found.added_us
    telling = [p for p in found.parts if p.name in WORK and p.base_us >= MIN_PART * base]
    compute = sum(shares.get(name, 0.0) for name in COMPUTE)
    work = sum(shares[p.name] for p in telling)
    alike = len(telling) > 1 and max(p.ratio for p in telling) <= ALIKE * min(p.ratio for p in telling)
    everywhere = any(p.name not in COMPUTE for p in telling) and min(p.ratio for p in telling) > 1.0 + MIN_SLOWER
    if alike and everywhere and work >= settings.min_cause_share:
        return replace(_CONFIGURATION, share=work, what=_CONFIGURATION.what.format(parts=_listed(telling)))
    if compute >= settings.min_cause_share:
        return _computing(profile, shares, compute)
    parts = ", ".join(f"{_NAMES.get(n, n)} {100 * s:.0f} %" for n, s in shares.items() if s >= 0.05)
    return _Suspect(causes.UNKNOWN, shares[top], f"No single part explains it: {parts} of what is added.", _NOT_TOLD)


def _computing(profile: Profile, shares: dict[str, float], compute: float) -> _Suspect:
    passes = {"forward": causes.FORWARD_COMPUTE, "backward": causes.BACKWARD_COMPUTE}
    for name, cause in passes.items():
        if shares.get(name, 0.0) >= 0.8:
            return _Suspect(cause, shares[name], f"Only the {name} pass got slower.", _COMPUTE)
    cause = causes.GPU_COMPUTE if profile.on_gpu else causes.UNKNOWN
    words = "Only forward and backward got slower: computing, on every rank."
    return _Suspect(cause, compute, words, _COMPUTE)


_NAMES = {
    DATA: "waiting for data",
    "h2d": "copies to the device",
    "unaccounted": "the rest of the step",
    "user": "named spans",
    WAITING: "waiting for the last rank",
    "eval": "evaluation",
    "gc": "garbage collection",
}


def _listed(parts: Sequence[Part]) -> str:
    names = [_NAMES.get(p.name, p.name) for p in parts]
    return (", ".join(names[:-1]) + " and " + names[-1]).capitalize()


def _part_lines(profile: Profile, found: Comparison) -> list[str]:
    """The parts that matter, with both times."""
    base = profile.step_us - found.added_us
    telling = [p for p in found.parts if max(p.us, p.base_us) >= MIN_PART * base]
    words = [
        f"{_NAMES.get(p.name, p.name)} {ms(p.base_us)} -> {ms(p.us)}" + (f" ({p.ratio:.2f}x)" if p.ratio < 1000 else "")
        for p in telling
    ]
    return [f"Per step: {'; '.join(words)}."] if words and not profile.unit else []


def _time(profile: Profile, us: float) -> str:
    return f"{us * profile.unit:.3g} (no unit told)" if profile.unit else ms(us)


def _names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"the baseline {names[0]}"
    return f"the baseline of {len(names)} runs ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


def _told(verdict: Verdict, words: str) -> Verdict:
    return replace(verdict, reason=f"{verdict.reason} {words}".strip())
