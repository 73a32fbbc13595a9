"""Whom slow interfaces serve, in words: the ranks behind them, or the whole node where that is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from starprof.analysis.causes.base import rank_names
from starprof.analysis.network.rails import Rails
from starprof.model.rundata import RankInfo

HOW_MANY_NAMED = 4


@dataclass(frozen=True, slots=True)
class Users:
    """Ranks that some interfaces serve.

    Attributes:
        words: how that is known, or that it is not and all ranks of the node are meant; empty with one interface.
        certainty: of the map, 0..1.
    """

    ranks: tuple[int, ...]
    words: tuple[str, ...] = ()
    certainty: float = 1.0


def users(
    infos: Sequence[RankInfo], rail_map: Rails, faces: Iterable[tuple[int, str]], host: Callable[[int], str]
) -> Users:
    """Ranks behind interfaces; all ranks of a node where its map is not certain.

    Args:
        infos: the ranks that are looked at.
        rail_map: which interface serves which rank.
        faces: the interfaces, as (node, name).
        host: name of a node.
    """
    found = [_of_one(infos, rail_map, node, nic, host(node)) for node, nic in dict.fromkeys(faces)]
    ranks = {rank for one in found for rank in one.ranks}
    words = [line for one in found for line in one.words]
    return Users(
        tuple(sorted(ranks)), tuple(words[:HOW_MANY_NAMED]), min((one.certainty for one in found), default=1.0)
    )


def _of_one(infos: Sequence[RankInfo], rail_map: Rails, node: int, nic: str, host: str) -> Users:
    here = tuple(info.rank for info in infos if info.node == node)
    if not rail_map.several(node):
        return Users(here)
    mine = rail_map.users(infos, node, nic)
    if not mine:
        count = len(rail_map.of_node[node])
        unknown = (
            f"Which of the {count} interfaces of {host} serves which rank is not known; {nic} is one of them, and the "
            "node is meant as a whole."
        )
        return Users(here, (unknown,))
    rail = rail_map.of_rank[mine[0]]
    others = tuple(rank for rank in here if rank not in mine)
    rest = f"; {rank_names(others)} of {host} {'use' if len(others) > 1 else 'uses'} others" if others else ""
    verb = "use" if len(mine) > 1 else "uses"
    line = f"{rank_names(mine).capitalize()} {verb} {nic} of {host} ({rail.how}){rest}."
    return Users(mine, (line,), rail.certainty)
