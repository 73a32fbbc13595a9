"""The table of where ranks run: GPU, its NUMA node, cores and theirs, interface; what does not fit, and a command.

Ranks with the same place on different nodes are one row, so that a job of many equal nodes has as many rows as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from starprof.analysis.binding import Binding, bindings, cpu_lists
from starprof.analysis.counters import Counters
from starprof.analysis.machine import Machine, address, machines
from starprof.analysis.network.rails import Rail, gpu_pci
from starprof.model.rundata import RankInfo, RunData

REMOTE = "cores on another NUMA node than its GPU"
UNBOUND = "may run on several NUMA nodes"
FAR_NIC = "interface on another NUMA node than its GPU"
LISTED = 3


@dataclass(frozen=True, slots=True)
class Place:
    """One row.

    Attributes:
        ranks: whom it is about.
        nodes: on how many nodes.
        gpu: PCI address of the GPU, else its UUID, "" when there is none or it is not known.
        gpu_numa: NUMA node of the GPU, None when not known.
        cpus: cores that the rank may run on, as a list, "" when not known.
        cpu_numa: their NUMA nodes.
        nic: interface that serves it; several where it is one of them; empty when not known.
        how: how the interface is known.
        faults: what does not fit, in words; empty when all that is known does.
        command: what binds the rank to its GPU's NUMA node, "" when nothing needs to change or it is not known.
    """

    ranks: tuple[int, ...]
    nodes: int
    gpu: str
    gpu_numa: int | None
    cpus: str
    cpu_numa: tuple[int, ...]
    nic: tuple[str, ...]
    how: str
    faults: tuple[str, ...]
    command: str

    @property
    def who(self) -> str:
        """The ranks in short: 0, 8, ... 504 (64 ranks)."""
        return rank_list(self.ranks)


def binding_table(run: RunData) -> tuple[Place, ...]:
    """The rows, those with faults first; empty when nothing is known that could fit or not."""
    counters = Counters(run)
    rail_map = counters.rails
    told = machines(run)
    table = bindings(run)
    infos = {info.rank: info for info in run.ranks}
    single: list[tuple[int, Place]] = []
    commands = _commands(run, table)
    for binding in table:
        info = infos[binding.rank]
        rail = rail_map.of_rank.get(binding.rank, Rail())
        place = _place(info, binding, rail, told.get(info.node, Machine()), gpu_pci(info, counters))
        single.append((info.node, replace(place, command=commands.get(info.rank, "") if place.faults else "")))
    several = any(rail_map.several(node) and place.nic for node, place in single)
    if not several and not any(_telling(place, binding) for (_, place), binding in zip(single, table, strict=True)):
        return ()
    rows = _together(single)
    return tuple(sorted(rows, key=lambda place: (not place.faults, place.ranks)))


def _telling(place: Place, binding: Binding) -> bool:
    """Whether a row says more than that a process runs on some cores."""
    card = bool(place.gpu) and not _is_uuid(place.gpu)
    return place.gpu_numa is not None or card or (binding.numa_nodes or 1) > 1


def _place(info: RankInfo, binding: Binding, rail: Rail, machine: Machine, pci: str) -> Place:
    device = machine.gpu(pci)
    gpu_numa = binding.gpu_numa if binding.gpu_numa is not None else device.numa if device is not None else None
    bound = replace(binding, gpu_numa=gpu_numa)
    faults = [REMOTE] if bound.remote else [UNBOUND] if bound.unbound and (gpu_numa is not None) else []
    cards = [machine.card(nic) for nic in rail.nics]
    far = [card for card in cards if card is not None and card.numa is not None and gpu_numa not in (None, card.numa)]
    if rail.known and far:
        faults.append(FAR_NIC)
    return Place(
        ranks=(info.rank,),
        nodes=1,
        gpu=address(pci) if pci else info.gpu_uuid or "",
        gpu_numa=gpu_numa,
        cpus=binding.cpus,
        cpu_numa=binding.cpu_numa,
        nic=rail.nics,
        how=rail.how,
        faults=tuple(faults),
        command="",
    )


def _commands(run: RunData, table: Sequence[Binding]) -> dict[int, str]:
    """A command per rank that gives it its own share of the cores of its GPU's NUMA node."""
    lists = cpu_lists(run)
    sharing: dict[tuple[int, int], list[int]] = {}
    for binding in table:
        if binding.gpu_numa is not None:
            sharing.setdefault((binding.node, binding.gpu_numa), []).append(binding.rank)
    result = {}
    for binding in table:
        if binding.gpu_numa is None:
            continue
        ranks = sharing[binding.node, binding.gpu_numa]
        whole = lists.get(binding.node, {}).get(binding.gpu_numa, "")
        cores = share_of_cpus(whole, ranks.index(binding.rank), len(ranks))
        one_node = (binding.numa_nodes or 0) == 1
        if cores and one_node:
            result[binding.rank] = f"taskset -c {cores}"
        elif cores:
            result[binding.rank] = f"numactl --physcpubind={cores} --membind={binding.gpu_numa}"
        else:
            result[binding.rank] = binding.command
    return result


def share_of_cpus(cpus: str, index: int, count: int) -> str:
    """One of `count` equal parts of a list of cores; "" where it can't be divided.

    Each run of numbers is divided by itself, so that hyperthreads, which the kernel numbers as a second run, stay
    with their cores.
    """
    parts = []
    for run in cpus.split(","):
        low, _, high = run.strip().partition("-")
        if not low.isdecimal() or not (high or low).isdecimal() or len(low) > 5 or len(high) > 5:
            return ""
        first, size = int(low), int(high or low) - int(low) + 1
        each = size // count
        if each < 1:
            return ""
        start = first + index * each
        parts.append(f"{start}-{start + each - 1}" if each > 1 else str(start))
    return ",".join(parts)


def _together(single: Iterable[tuple[int, Place]]) -> list[Place]:
    """Rows that differ in ranks and nodes only, as one."""
    groups: dict[Place, list[tuple[int, Place]]] = {}
    for node, place in single:
        key = replace(place, ranks=(), gpu="" if _is_uuid(place.gpu) else place.gpu)
        groups.setdefault(key, []).append((node, place))
    return [
        replace(
            key,
            ranks=tuple(sorted(place.ranks[0] for _, place in members)),
            nodes=len({node for node, _ in members}),
            gpu=key.gpu or (members[0][1].gpu if len(members) == 1 else ""),
        )
        for key, members in groups.items()
    ]


def _is_uuid(gpu: str) -> bool:
    """UUIDs differ from card to card and would keep equal places apart."""
    return gpu.startswith(("GPU-", "MIG-"))


def rank_list(ranks: Sequence[int]) -> str:
    """Ranks in short: runs as 0-3, even distances as 0, 8, ... 504."""
    if len(ranks) <= LISTED:
        return ", ".join(map(str, ranks))
    steps = {b - a for a, b in pairwise(ranks)}
    if steps == {1}:
        return f"{ranks[0]}-{ranks[-1]}"
    head = ", ".join(map(str, ranks[: LISTED - 1]))
    dots = "…" if len(steps) == 1 else "… (not evenly)"
    return f"{head}, {dots} {ranks[-1]} ({len(ranks)} ranks)"


def placing(places: Sequence[Place]) -> str:
    """What does not fit, in a sentence."""
    counts: dict[str, int] = {}
    for place in places:
        for fault in place.faults:
            counts[fault] = counts.get(fault, 0) + len(place.ranks)
    ranks = sum(len(place.ranks) for place in places)
    if counts:
        told = "; ".join(f"{fault} ({count} of {ranks} ranks)" for fault, count in counts.items())
        return f"What does not fit: {told}. That is no slowness by itself."
    if any(place.gpu_numa is not None and place.cpu_numa for place in places):
        return "All that is known fits together: ranks run beside their GPUs."
    return "What is known of where ranks run."
