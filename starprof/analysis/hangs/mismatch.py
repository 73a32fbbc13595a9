"""Calls that don't fit together: members of a group that made different calls under the same number."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

SAME_SIZE = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
"""Calls in which every member passes the same number of bytes."""


@dataclass(frozen=True)
class Mismatch:
    """One call of one group that members made differently.

    Attributes:
        made: what each set of members called, the most frequent first.
    """

    group: str
    sequence: int
    made: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def odd(self) -> tuple[int, ...]:
        """Those that differ from the majority; empty when there is none."""
        count = sum(len(ranks) for _, ranks in self.made)
        if 2 * len(self.made[0][1]) <= count or count < 3:
            return ()
        return tuple(sorted(rank for _, ranks in self.made[1:] for rank in ranks))


def mismatches(collectives: pd.DataFrame) -> tuple[Mismatch, ...]:
    """The first mismatched call of each group that has one pending.

    A call that everybody has completed did fit, whatever it was named.

    Args:
        collectives: table `collective`.
    """
    rows = collectives[collectives["sequence"].notna() & collectives["name"].notna() & collectives["state"].notna()]
    frame = pd.DataFrame(
        {
            "group": rows["group_name"].astype(object),
            "sequence": rows["sequence"].astype("int64"),
            "rank": rows["rank"].astype("int64"),
            "name": rows["name"].astype(object),
            "bytes": rows["bytes"].astype("Int64").astype(float).where(rows["name"].isin(SAME_SIZE)),
            "pending": rows["state"].ne("completed"),
        }
    )
    keys = ["group", "sequence"]
    varied = frame.groupby(keys, sort=False).agg(
        names=("name", "nunique"), sizes=("bytes", "nunique"), pending=("pending", "any")
    )
    bad = varied[((varied["names"] > 1) | (varied["sizes"] > 1)) & varied["pending"]].reset_index()
    parts = frame.merge(bad[keys], on=keys).sort_values("sequence", kind="stable")
    found: dict[str, Mismatch] = {}
    for _, part in parts.groupby(keys, sort=False):
        wrong = _mismatch(part)
        if wrong is not None:
            found.setdefault(wrong.group, wrong)
    return tuple(found.values())


def _mismatch(part: pd.DataFrame) -> Mismatch | None:
    """What the members called, all calls of one number; None when all did the same after all.

    Calls that are launched as one share their number: a rank may have several, and then has to have the same ones.
    """
    calls: dict[int, list[tuple[str, float]]] = {}
    for rank, name, size in zip(part["rank"].tolist(), part["name"], part["bytes"].tolist(), strict=True):
        calls.setdefault(rank, []).append((str(name), -1.0 if size != size else size))
    by_name = len({tuple(sorted({name for name, _ in own})) for own in calls.values()}) > 1
    made: dict[str, list[int]] = {}
    for rank, own in calls.items():
        words = sorted({name if by_name or size < 0 else f"{name} of {int(size)} bytes" for name, size in own})
        made.setdefault(" and ".join(words), []).append(rank)
    if len(made) < 2:
        return None
    ordered = sorted(made.items(), key=lambda item: (-len(item[1]), item[0]))
    first = part.iloc[0]
    return Mismatch(
        str(first["group"]), int(first["sequence"]), tuple((what, tuple(sorted(ranks))) for what, ranks in ordered)
    )
