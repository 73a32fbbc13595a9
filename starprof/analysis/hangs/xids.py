"""What the driver reported of the GPUs of ranks that hold a job up."""

from __future__ import annotations

from dataclasses import dataclass

from starprof.analysis.causes.base import rank_names
from starprof.analysis.counters import Counters
from starprof.analysis.xids import XID_CHECKS, Reported, listed, on_gpu_of, on_host_of, reported
from starprof.model import xids
from starprof.model.rundata import RankInfo, RunData

MAX_LINES = 4


@dataclass(frozen=True, slots=True)
class Told:
    """XIDs in words.

    Attributes:
        cause: what holds the ranks up, when the GPU of each of them reported an error of its hardware; else "".
        action: what to look at, "" without XIDs.
    """

    lines: tuple[str, ...] = ()
    cause: str = ""
    action: str = ""


def told_of(run: RunData, ranks: tuple[int, ...]) -> Told:
    """What was reported of the GPUs of some ranks, else of their hosts."""
    found = reported(run)
    if not found:
        return Told()
    counters = Counters(run)
    infos = {info.rank: info for info in run.ranks}
    here = [infos[rank] for rank in ranks if rank in infos]
    own = {info.rank: on_gpu_of(found, info, counters) for info in here}
    lines = _of_gpus(own)
    seen = [one for mine in own.values() for one in mine]
    if not seen:
        seen = _of_nobody_else(found, run, here, counters)
        lines = _of_hosts(seen, here)
    hardware = {rank: [one.meaning.kind for one in mine if one.meaning.of_hardware] for rank, mine in own.items()}
    sure = bool(ranks) and all(hardware.get(rank) for rank in ranks)
    first = min(seen, key=lambda one: not one.meaning.of_hardware, default=None)
    return Told(
        lines=tuple(lines[:MAX_LINES]),
        cause=xids.CAUSES[hardware[ranks[0]][0]] if sure else "",
        action=f"For {first.words}: {XID_CHECKS[first.meaning.kind]}." if first is not None else "",
    )


def _of_gpus(own: dict[int, list[Reported]]) -> list[str]:
    """A line for each set of XIDs, with the ranks whose GPUs reported it."""
    alike: dict[str, list[int]] = {}
    for rank, mine in own.items():
        if mine:
            alike.setdefault(listed(mine), []).append(rank)
    lines = [f"The driver reported {words} of the GPU of {rank_names(tuple(who))}." for words, who in alike.items()]
    kinds = {one.meaning.kind for mine in own.values() for one in mine}
    if kinds and kinds <= {xids.APPLICATION, xids.FOLLOWING}:
        lines.append("That is what a failing program makes a healthy GPU report: no sign of bad hardware.")
    return lines


def _of_nobody_else(
    found: tuple[Reported, ...], run: RunData, here: list[RankInfo], counters: Counters
) -> list[Reported]:
    """XIDs of the ranks' hosts that are not certainly another rank's."""
    near = [one for one in found if any(on_host_of([one], info) for info in here)]
    others = [info for info in run.ranks if info not in here] if near else []
    return [one for one in near if not any(on_gpu_of([one], info, counters) for info in others)]


def _of_hosts(near: list[Reported], here: list[RankInfo]) -> list[str]:
    if not near:
        return []
    hosts = sorted({info.host for info in here if on_host_of(near, info)})
    return [
        f"The driver reported {listed(near)} on {', '.join(hosts[:4])}{', ...' if len(hosts) > 4 else ''}; whose GPU "
        "that is was not recorded."
    ]
