"""What several late ranks have in common: NUMA node, machine. The map is read from the records, never assumed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from starprof.analysis.binding import Binding, bindings
from starprof.analysis.causes.base import rank_names
from starprof.analysis.own_time import OwnTime
from starprof.model.rundata import RankInfo, RunData

MOST = 0.6
"""Share of a place's ranks that must be late for the place to be what they share."""


@dataclass(frozen=True)
class Shared:
    """What late ranks share.

    Attributes:
        words: a sentence on it, empty for a single rank.
        place: name of the one place whose ranks nearly all are late while all others are fine, else "".
        next: what to record when the map is not known.
    """

    words: str = ""
    place: str = ""
    next: str = ""


def shared_place(run: RunData, own: OwnTime, rows: Iterable[int]) -> Shared:
    """Describe what a group of late ranks shares."""
    late = sorted(set(rows))
    if len(late) < 2:
        return Shared()
    infos = [own.infos[row] for row in late]
    who = rank_names(tuple(info.rank for info in infos))
    if not all(info.host for info in infos):
        row = "follow each other" if _contiguous(infos) else "do not follow each other"
        return Shared(
            words=f"{who} {row}; on which machine each of them ran was not recorded, so what they share is not known.",
            next="Record or name the host of every rank: a group of ranks on one machine has another cause than "
            "as many separate ones.",
        )
    table = {binding.rank: binding for binding in bindings(run)}
    for name, key in (("numa", _numa(table)), ("node", _node)):
        place = _one_place(own, infos, key)
        if place is not None:
            return _whole(own, infos, who, _place_name(name, infos[0], table), place)
    return Shared(words=_scattered(own, infos, who))


def same_place(own: OwnTime, rows: Iterable[int]) -> bool:
    """The ranks run on one known machine, make up most of its ranks, and other machines are fine."""
    infos = [own.infos[row] for row in rows]
    return all(info.host for info in infos) and _one_place(own, infos, _node) is not None


def _node(info: RankInfo) -> Hashable:
    return info.node


def _numa(table: dict[int, Binding]) -> Callable[[RankInfo], Hashable]:
    """Key of the NUMA node that a rank is bound to, else its GPU's; None where neither is known."""

    def key(info: RankInfo) -> Hashable:
        binding = table[info.rank]
        if len(binding.cpu_numa) == 1 and (binding.numa_nodes or 1) > 1:
            return info.node, binding.cpu_numa[0]
        if binding.gpu_numa is not None and (binding.numa_nodes or 1) > 1:
            return info.node, binding.gpu_numa
        return None

    return key


def _one_place(own: OwnTime, infos: list[RankInfo], key: Callable[[RankInfo], Hashable]) -> list[RankInfo] | None:
    """All ranks of the one place that the late ones share, when they are most of it and there are other places."""
    places = {key(info) for info in infos}
    if len(places) != 1 or None in places:
        return None
    here = [info for info in own.infos if key(info) in places]
    return here if len(infos) >= MOST * len(here) and len(here) < len(own.infos) else None


def _place_name(kind: str, info: RankInfo, table: dict[int, Binding]) -> str:
    if kind == "node":
        return info.host
    binding = table[info.rank]
    number = binding.cpu_numa[0] if len(binding.cpu_numa) == 1 else binding.gpu_numa
    return f"NUMA node {number} of {info.host}"


def _whole(own: OwnTime, infos: list[RankInfo], who: str, name: str, here: list[RankInfo]) -> Shared:
    late = {info.rank for info in infos}
    fine = tuple(info.rank for info in here if info.rank not in late)
    part = f"all {len(here)} ranks" if not fine else f"{len(late)} of the {len(here)} ranks"
    rest = f" (only {rank_names(fine)} there {'is' if len(fine) == 1 else 'are'} fine)" if fine else ""
    others = len(own.infos) - len(here)
    return Shared(
        words=f"{who} are {part} of {name}{rest}, and the other {others} ranks are fine: one cause that {name} shares "
        "(its processors, memory, power, cooling, disk or network interface) is likelier than as many separate ones.",
        place=name,
    )


def _scattered(own: OwnTime, infos: list[RankInfo], who: str) -> str:
    hosts = sorted({info.host for info in infos})
    if len(hosts) == 1:
        fine = sum(info.node == infos[0].node for info in own.infos) - len(infos)
        whole = fine == 0 and len(infos) == len(own.infos)
        if whole or len({info.node for info in own.infos}) == 1:
            return ""
        return f"{who} run on {hosts[0]}, where {fine} other ranks are fine."
    counts = ", ".join(f"{host} {sum(i.host == host for i in infos)}" for host in hosts[:8])
    return f"{who} run on {len(hosts)} machines ({counts}{', ...' if len(hosts) > 8 else ''}): they share no machine."


def _contiguous(infos: list[RankInfo]) -> bool:
    ranks = sorted(info.rank for info in infos)
    return ranks[-1] - ranks[0] == len(ranks) - 1
