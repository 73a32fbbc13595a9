"""The whole diagnosis: from the arrays of a run to its verdict. Pure; reads no clock and draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from starprof.analysis import findings as build
from starprof.analysis import nobody_findings as nobody
from starprof.analysis.batch import evened, uneven_batches, workload_skew
from starprof.analysis.causes.base import rank_names
from starprof.analysis.comparison import Comparison
from starprof.analysis.cost import replay, solo_us
from starprof.analysis.counted import counted_losses
from starprof.analysis.counted_findings import counted_finding
from starprof.analysis.counters import Counters
from starprof.analysis.findings import Context
from starprof.analysis.judges import JUDGES
from starprof.analysis.loader_workers import slow_workers, worker_finding
from starprof.analysis.network.findings import network_finding
from starprof.analysis.network.slow_reductions import collateral, explained, rise_share, slow_reductions
from starprof.analysis.noise import MANY_RANKS
from starprof.analysis.own_time import OwnTime, own_time
from starprof.analysis.persistent import rotating_periods, rotating_stretches, slow_ranks
from starprof.analysis.reason import Found, reason
from starprof.analysis.receipt import hook_notes, not_collected, overhead
from starprof.analysis.remarks import with_remarks
from starprof.analysis.rounds import native_part, rounds_words
from starprof.analysis.server import SOURCE as SERVER
from starprof.analysis.server import on_a_server, server_finding, slow_server
from starprof.analysis.settings import DEFAULT, Settings
from starprof.analysis.shared import slower_alone, uniform_slowness
from starprof.analysis.skew_findings import stage_finding, workload_finding
from starprof.analysis.slowness import Slowness
from starprof.analysis.special import special_work
from starprof.analysis.spiky import single_steps, stalls_alone
from starprof.analysis.stages import heavy_stages
from starprof.analysis.taking_turns import most_are_late_in_turn
from starprof.model import causes
from starprof.model.rundata import RunData
from starprof.model.verdict import Cost, Finding, Verdict, VerdictKind

_WORDS: Mapping[str, Callable[[Context, Slowness], Finding]] = {
    "special": nobody.special_finding,
    "workers": worker_finding,
    "uniform": nobody.uniform_finding,
    "rotating": nobody.rotating_finding,
    "workload": workload_finding,
    "structural": stage_finding,
    "counted": counted_finding,
    "network": network_finding,
    SERVER: server_finding,
}
"""Of sources whose slownesses blame nobody, or say themselves whom."""

DEALT: Mapping[str, VerdictKind] = {"workload": "workload-skew", "structural": "structural"}


def diagnose(run: RunData, settings: Settings = DEFAULT) -> Verdict:
    """Say whether a run has a straggler, who, why, since when and what it costs.

    Args:
        run: one attempt of a run.
        settings: thresholds; the defaults are what the documentation and benchmarks are about.

    Returns:
        The verdict; `inconclusive` with a reason when the records can't answer the question.
    """
    empty = Verdict(
        run=str(run.info.get("name") or run.info.get("file") or ""),
        ranks=len(run.ranks),
        steps=None,
        verdict="inconclusive",
        cost=Cost(0.0, 0.0, 0.0),
        not_collected=not_collected(run),
        overhead=overhead(run),
    )
    for judge in JUDGES:
        verdict = judge(run, settings, empty)
        if verdict is not None:
            return verdict
    own = own_time(run, settings)
    if own is None:
        who = rank_names(tuple(i.rank for i in run.ranks)) if run.ranks else "any rank"
        why = f"No step records from {who}: was the hook active, and did an optimizer step?{hook_notes(run)}"
        if run.info.get("source_format"):
            why = "It holds neither step times nor calls of any rank: nothing tells who is slow or whether it hangs."
        return replace(empty, reason=why)
    empty = replace(empty, steps=(own.first_step, int(own.steps[-1])))
    if own.shape[0] == 1 and not own.missing and own.shape[1] >= settings.min_steps:
        context, alone = _search_alone(run, own, settings)
        if alone:
            return _verdict(context, _findings(context, alone), empty)
    obstacle = _obstacle(own, settings)
    if obstacle:
        return replace(empty, reason=obstacle)
    context, slownesses = _search(run, own, settings)
    return _verdict(context, _findings(context, slownesses), empty)


def _obstacle(own: OwnTime, settings: Settings) -> str:
    """Why the records can't answer the question; empty when they can."""
    ranks, steps = own.shape
    if ranks == 1:
        missing = f" (no samples from {rank_names(own.missing)})" if own.missing else ""
        return f"Only one rank left step records{missing}: there is nobody to compare it with."
    if not np.nansum(own.blocked) > 0:
        return (
            "No waiting in collectives was recorded, so a rank's own time can't be told from waiting for others; "
            "use DDP, FSDP2 or torch.distributed collectives in the recorded loop, or starprof.watch."
        )
    if steps < settings.min_steps:
        return _too_short(own, settings)
    return ""


def _too_short(own: OwnTime, settings: Settings) -> str:
    steps = own.shape[1]
    told = f"Only {steps} step{'s' if steps > 1 else ''} after warm-up, {settings.min_steps} are needed"
    counted = np.sum(~np.isnan(own.work), axis=1)
    if not counted.any():
        return f"{told}, and no rank's own time is known in them; record longer."
    means = np.where(counted > 0, np.nansum(own.work, axis=1) / np.maximum(counted, 1), -np.inf)
    late = own.rank(int(means.argmax()))
    return f"{told}: rank {late} needed most for itself so far, which may be chance; record longer."


def _search(run: RunData, own: OwnTime, settings: Settings) -> tuple[Context, list[Slowness]]:
    """All slownesses that matter, with their costs."""
    uneven = uneven_batches(run, own)
    ranks, comparison = slow_ranks(Comparison(evened(own, uneven), settings))
    context = Context(run, own, Counters(run), settings, comparison)
    ranks = [build.rank_0_work(context, s) for s in ranks]
    shared = [s for s in uniform_slowness(comparison, settings) if s.source == "uniform" or not _covered(s, ranks)]
    ranks += [s for s in shared if s.source == "rank"]
    uniform = [s for s in shared if s.source == "uniform"]
    if on_a_server(run):
        network = slow_server(context, slow_reductions(context))
    else:
        ranks, network = collateral(ranks, slow_reductions(context))
        network = [s for s in network if explained(s) or rise_share(own, s) >= settings.min_unexplained_shift]
    dealt = workload_skew(uneven) + heavy_stages(comparison.own, settings) + most_are_late_in_turn(comparison)
    planned = special_work(own, settings) + slow_workers(own, settings)
    kept = _that_matter(own, settings, ranks + uniform + network + dealt + planned)
    ranks = rotating_stretches(rotating_periods([s for s in kept if s.source == "rank"], own.shape[0]))
    rest = [s for s in kept if s.source != "rank"]
    kept = _that_matter(own, settings, ranks + rest + single_steps(comparison, ranks + rest))
    if not any(s.blame or s.source in ("uniform", "rotating", SERVER) for s in kept):
        kept += counted_losses(context)
    return context, _priced(own, kept)


def _search_alone(run: RunData, own: OwnTime, settings: Settings) -> tuple[Context, list[Slowness]]:
    """What made a job of one rank slower than it was before."""
    context = Context(run, own, Counters(run), settings, Comparison(own, settings))
    lasting = slower_alone(own, settings) + special_work(own, settings) + slow_workers(own, settings)
    kept = _that_matter(own, settings, lasting) or counted_losses(context)
    return context, _priced(own, kept or _that_matter(own, settings, stalls_alone(own, settings)))


def _covered(slowness: Slowness, ranks: list[Slowness]) -> bool:
    """A rise of most ranks is already there as late ranks."""
    return any(s.start < slowness.end and slowness.start < s.end for s in ranks)


def _that_matter(own: OwnTime, settings: Settings, found: list[Slowness]) -> list[Slowness]:
    """Drop what costs the job too little."""
    solo = solo_us(own, [s.reduction for s in found])
    return [s for s, cost in zip(found, solo, strict=True) if _matters(own, settings, s, cost)]


def _matters(own: OwnTime, settings: Settings, slowness: Slowness, solo_cost_us: float) -> bool:
    if slowness.kind == "one-off":
        return solo_cost_us >= settings.min_one_off_cost_steps * own.healthy_step_us
    if slowness.source == "rotating":
        return solo_cost_us >= settings.min_rotating_cost_share * own.run_us
    if slowness.source == "workload":
        return solo_cost_us >= settings.min_workload_cost_share * own.run_us
    if slowness.source in ("special", "workers"):
        return solo_cost_us >= settings.min_special_cost_share * own.run_us
    inside = slice(slowness.start, slowness.end)
    interval_us = float((np.nanmax(own.cycle[:, inside], axis=0) + own.transfer[inside]).sum())
    well_known = slowness.start > 0 or own.shape[0] >= MANY_RANKS
    by_ranks = 0.0 if well_known else settings.chronic_cost_by_ranks / own.shape[0]
    plain = slowness.noises >= settings.stands_out and solo_cost_us >= by_ranks * interval_us
    if plain and solo_cost_us >= settings.min_plain_cost_share * own.run_us:
        return True
    return solo_cost_us >= max(settings.min_cost_share * interval_us, settings.min_run_cost_share * own.run_us)


def _priced(own: OwnTime, found: list[Slowness]) -> list[Slowness]:
    """Fill in the costs, most costly first."""
    shares = replay(own, [native_part(own, s.reduction) for s in found])
    priced = [
        replace(s, cost_us=part, alone_us=alone)
        for s, part, alone in zip(found, shares.parts_us, shares.alone_us, strict=True)
    ]
    # A stall in rounds has kept nobody waiting.
    told = [s for s in priced if s.kind != "one-off" or s.cost_us > 0 or not own.rounds.any()]
    return sorted(told, key=lambda s: -s.cost_us)


def _findings(context: Context, found: list[Slowness]) -> Found:
    """Words for every slowness."""
    result: Found = build.rank_findings(context, [s for s in found if s.source == "rank" and s.blame])
    single = [s for s in found if s.source == "rank" and s.kind == "one-off" and not s.blame]
    result += nobody.one_off_findings(context, single)
    for slowness in found:
        words = _WORDS.get(slowness.source)
        if words is not None:
            result.append((slowness, words(context, slowness)))
        elif slowness.kind != "one-off" and not slowness.blame:
            result.append((slowness, nobody.unblamed_periodic_finding(context, slowness)))
    return sorted(result, key=lambda part: (not part[1].ranks, -part[1].cost_seconds))


def _verdict(context: Context, found: Found, empty: Verdict) -> Verdict:
    kind, about = _kind(context, found)
    reductions = [native_part(context.own, s.reduction) for s in about]
    seconds = replay(context.own, reductions).total_us / 1e6 if about else 0.0
    cost = Cost(
        seconds=round(seconds, 6),
        share=round(seconds * 1e6 / float(context.own.job_us.sum()), 6),
        gpu_hours=round(seconds * len(context.run.ranks) / 3600.0, 6),
    )
    told, rest = with_remarks(context, found)
    rest += rounds_words(context.own, about if kind == "straggler" else [])
    return replace(
        empty,
        verdict=kind,
        cost=cost,
        findings=tuple(finding for _, finding in told),
        reason=" ".join([reason(context, kind, found, cost), *rest]),
    )


def _kind(context: Context, found: Found) -> tuple[VerdictKind, list[Slowness]]:
    """The verdict, and the slownesses that it is about (their cost is the verdict's)."""
    blamed = [s for s, finding in found if finding.ranks]
    if blamed:
        return "straggler", blamed
    for worst, _ in found:
        if worst.source in ("workload", "structural"):
            return DEALT[worst.source], [s for s, _ in found if s.source == worst.source]
    for kind in ("rotating", "uniform"):
        about = [s for s, finding in found if s.source == kind or (kind == "rotating" and finding.kind == "rotating")]
        if about:
            return kind, about
    network = [(s, finding) for s, finding in found if s.source in ("network", SERVER)]
    if network:
        return _network_kind(*network[0]), [s for s, _ in network]
    # A quota or a mask is a limit that somebody set; how busy a machine is says nothing about the job by itself.
    limits = [s for s, finding in found if s.source == "counted" and finding.cause != causes.OVERSUBSCRIPTION]
    if limits:
        return "uniform", limits
    return ("inconclusive" if context.own.missing else "none"), []


def _network_kind(slowness: Slowness, finding: Finding) -> VerdictKind:
    """A slow reduction for which no rank is to blame."""
    if finding.cause == causes.UNKNOWN:
        return "inconclusive"
    alike = slowness.place is not None and slowness.place.all_alike
    everywhere = slowness.wire is not None and not slowness.wire.nodes
    return "uniform" if alike or everywhere else "shared"
