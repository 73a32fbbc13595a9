"""What several late ranks have in common: GPU, NUMA node, network interface, machine, switch. Read, never assumed.

An element explains a group of late ranks when it holds all of them, they are most of what it holds, and it does not
hold the whole job. Where two explain them equally well, both are said, and which test tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from starprof.analysis.binding import Binding, bindings
from starprof.analysis.causes.base import rank_names
from starprof.analysis.counters import Counters
from starprof.analysis.machine import machines
from starprof.analysis.network.rails import Rails
from starprof.analysis.own_time import OwnTime
from starprof.model.rundata import RankInfo, RunData

MOST = 0.6
"""Share of a place's ranks that must be late for the place to be what they share."""

_PARTS = {
    "GPU": "the card, what it shares between them, or its link to the host",
    "NUMA node": "its processors, memory, or what hangs at its PCI roots",
    "interface": "the card, its cable, its switch port, or the PCI bridge above it",
    "node": "its processors, memory, power, cooling, disk or network interface",
}
_ABOVE = "the switch, its uplink, or what the nodes below it share"


@dataclass(frozen=True)
class Shared:
    """What late ranks share.

    Attributes:
        words: a sentence on it, empty for a single rank.
        place: name of the one place whose ranks nearly all are late while all others are fine, else "".
        next: what to record when the map is not known, or which test tells two places apart.
    """

    words: str = ""
    place: str = ""
    next: str = ""


@dataclass(frozen=True)
class Element:
    """One link of the chain rank - GPU - NUMA node - interface - node - switch that late ranks share.

    Attributes:
        kind: such as `NUMA node`.
        name: with its place, such as "NUMA node 1 of host7".
        here: all ranks that it holds.
    """

    kind: str
    name: str
    here: tuple[RankInfo, ...]


def shared_place(counters: Counters, own: OwnTime, rows: Iterable[int]) -> Shared:
    """Describe what a group of late ranks shares.

    Args:
        counters: look-ups of the run.
        own: the ranks that were compared.
        rows: the late ones among them.
    """
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
    found = explaining(counters, own.infos, infos)
    if not found:
        return Shared(words=_scattered(own, infos, who))
    if len(found) > 1:
        return _several(own, infos, who, found)
    return Shared(words=_whole(own, infos, who, found[0]), place=found[0].name)


def same_place(counters: Counters, own: OwnTime, rows: Iterable[int]) -> bool:
    """One recorded place holds the ranks, they make up most of it, and others are fine."""
    infos = [own.infos[row] for row in rows]
    return all(info.host for info in infos) and bool(explaining(counters, own.infos, infos))


def explaining(counters: Counters, everybody: Sequence[RankInfo], late: Sequence[RankInfo]) -> list[Element]:
    """The elements that explain late ranks best, from the inside out; several when they do it equally well.

    Args:
        counters: look-ups of the run.
        everybody: the ranks that were compared.
        late: the late ones among them.
    """
    found: list[Element] = []
    for kind, key, name in _chain(counters, late):
        keys = {key(info) for info in late}
        if len(keys) != 1 or None in keys:
            continue
        here = tuple(info for info in everybody if key(info) in keys)
        if len(late) >= MOST * len(here) and len(here) < len(everybody):
            found.append(Element(kind, name(late[0]), here))
    fewest = min((len(element.here) for element in found), default=0)
    return [element for element in found if len(element.here) == fewest]


Key = Callable[[RankInfo], Hashable]
Name = Callable[[RankInfo], str]


def _chain(counters: Counters, late: Sequence[RankInfo]) -> list[tuple[str, Key, Name]]:
    """(kind, what tells two of them apart, name), from the inside out; those inside a node only when one is asked."""
    chain: list[tuple[str, Key, Name]] = []
    if len({info.node for info in late}) == 1:
        chain += _inside(counters)
    chain.append(("node", lambda info: info.node, lambda info: info.host))
    return chain + _above(counters.run)


def _inside(counters: Counters) -> list[tuple[str, Key, Name]]:
    table = {binding.rank: binding for binding in bindings(counters.run)}
    rail_map = counters.rails

    def numa_name(info: RankInfo) -> str:
        binding = table[info.rank]
        number = binding.cpu_numa[0] if len(binding.cpu_numa) == 1 else binding.gpu_numa
        return f"NUMA node {number} of {info.host}"

    return [
        ("GPU", _card(counters), lambda info: f"one GPU of {info.host}"),
        ("NUMA node", _numa(table), numa_name),
        ("interface", _nic(rail_map), lambda info: f"interface {rail_map.of_rank[info.rank].nics[0]} of {info.host}"),
    ]


def _above(run: RunData) -> list[tuple[str, Key, Name]]:
    """Switches or blocks, the nearest first, where they were recorded."""
    levels = {node: machine.levels for node, machine in machines(run).items() if machine.levels}
    deepest = max((len(above) for above in levels.values()), default=0)
    chain: list[tuple[str, Key, Name]] = []
    for depth in reversed(range(deepest)):
        here = {node: above[depth] for node, above in levels.items() if len(above) > depth}
        kind = next(iter(here.values())).kind
        keys = {node: level.key for node, level in here.items()}
        names = {node: f"{level.kind} {level.name}" for node, level in here.items()}
        chain.append((kind, _looked_up(keys), _named(names)))
    return chain


def _looked_up(keys: Mapping[int, Hashable]) -> Key:
    return lambda info: keys.get(info.node)


def _named(names: Mapping[int, str]) -> Name:
    return lambda info: names.get(info.node, "")


def _card(counters: Counters) -> Key:
    """Key of the physical GPU; None where it is not known."""

    def key(info: RankInfo) -> Hashable:
        gpu = counters.gpus.get((info.node, info.gpu_uuid or ""))
        uuid = (gpu.mig_parent if gpu is not None else "") or info.gpu_uuid
        return (info.node, uuid) if uuid else None

    return key


def _numa(table: Mapping[int, Binding]) -> Key:
    """Key of the NUMA node that a rank is bound to, else its GPU's; None where neither is known."""

    def key(info: RankInfo) -> Hashable:
        binding = table[info.rank]
        if len(binding.cpu_numa) == 1 and (binding.numa_nodes or 1) > 1:
            return info.node, binding.cpu_numa[0]
        if binding.gpu_numa is not None and (binding.numa_nodes or 1) > 1:
            return info.node, binding.gpu_numa
        return None

    return key


def _nic(rail_map: Rails) -> Key:
    """Key of the interface that serves a rank; None where it is not known, or the node has no other."""

    def key(info: RankInfo) -> Hashable:
        rail = rail_map.of_rank.get(info.rank)
        known = rail is not None and rail.known and rail_map.several(info.node)
        return (info.node, rail.nics[0]) if rail is not None and known else None

    return key


def _whole(own: OwnTime, infos: Sequence[RankInfo], who: str, element: Element) -> str:
    name, parts = element.name, _PARTS.get(element.kind, _ABOVE)
    return (
        f"{_extent(own, infos, who, element)}: one cause that {name} shares ({parts}) is likelier than as many "
        "separate ones."
    )


def _extent(own: OwnTime, infos: Sequence[RankInfo], who: str, element: Element) -> str:
    late = {info.rank for info in infos}
    fine = tuple(info.rank for info in element.here if info.rank not in late)
    part = f"all {len(element.here)} ranks" if not fine else f"{len(late)} of the {len(element.here)} ranks"
    rest = f" (only {rank_names(fine)} there {'is' if len(fine) == 1 else 'are'} fine)" if fine else ""
    others = len(own.infos) - len(element.here)
    return f"{who} are {part} of {element.name}{rest}, and the other {others} ranks are fine"


def _several(own: OwnTime, infos: Sequence[RankInfo], who: str, found: Sequence[Element]) -> Shared:
    """Elements that explain the group equally well, and the test that tells the first two apart."""
    first, second = found[0], found[1]
    names = [element.name for element in found]
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return Shared(
        words=f"{_extent(own, infos, who, first)}. {listed} explain that equally well; which of them it is can't be "
        "told from the ranks alone.",
        next=f"Let one of {who} use another {first.kind} but the same {second.kind} ({second.name}): if it is late "
        f"there too, {second.name} is the cause, otherwise {first.name}.",
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
