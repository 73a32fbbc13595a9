"""Which sources belong to one job, where an importer finds that they can't all: told by what overlaps, and by folders.

Files of one job never tell the same thing twice (a rank, a rank's steps). Where some do, the folders that divide the
job from others are those at which the overlap ends; in one folder the names without their rank tell, or the order of
several captures of the same ranks; else nothing does.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence

from starprof.errors import InputError
from starprof.importers.source import Source

Told = Mapping[Source, frozenset[Hashable]]
"""What each source tells that no other source of the same job may tell again: ranks, as a rule."""

_NUMBER = re.compile(r"\d+")
_RANK_IN_NAME = re.compile(r"((?:rank|worker|gpu|node|host|part)[-_. ]?)\d+", re.IGNORECASE)


class SeveralJobsError(InputError):
    """Sources of several jobs were to be read as one.

    Attributes:
        parts: the sources of each job.
    """

    def __init__(self, message: str, parts: Sequence[Sequence[Source]]) -> None:
        super().__init__(message)
        self.parts = tuple(tuple(part) for part in parts)


def each_its_own(sources: Sequence[Source]) -> list[list[Source]]:
    """Every file is a job."""
    return [[source] for source in sources]


def by_overlap(told: Told, *, alone: bool = False) -> list[list[Source]]:
    """Jobs of which no two sources tell the same.

    Args:
        told: the sources in order, with what each tells.
        alone: a source may be a whole job: where nothing divides those that overlap, each is one.

    Returns:
        The parts, in the order of their first sources; a part in which something is told twice can't be divided.
    """
    parts = _divided(list(told), told, 0)
    return [p for part in parts for p in (each_its_own(part) if alone and _overlaps(part, told) else [part])]


def folders_of(source: Source) -> tuple[str, ...]:
    """The folders (and the archive) that a source lies in, outermost first."""
    return tuple(part for part in re.split(r"[/!]", source.name)[:-1] if part not in {"", "."})


def by_folder(sources: Sequence[Source]) -> list[list[Source]]:
    """The sources of each folder, in the order of their first ones."""
    parts: dict[tuple[str, ...], list[Source]] = {}
    for source in sources:
        parts.setdefault(folders_of(source), []).append(source)
    return list(parts.values())


def _divided(sources: list[Source], told: Told, depth: int) -> list[list[Source]]:
    if not _overlaps(sources, told):
        return [sources]
    deepest = max(len(folders_of(s)) for s in sources)
    while depth < deepest:
        children: dict[str, list[Source]] = {}
        for source in sources:
            children.setdefault("/".join(folders_of(source)[depth : depth + 1]), []).append(source)
        depth += 1
        if len(children) > 1:
            parts = _together([_divided(child, told, depth) for child in children.values()], told)
            return sorted(parts, key=lambda part: sources.index(part[0]))
    return _in_one_folder(sources, told)


def _together(children: list[list[list[Source]]], told: Told) -> list[list[Source]]:
    """Folders that are whole by themselves and overlap with no other are parts of one job."""
    whole = [child[0] for child in children if len(child) == 1]
    others = [part for child in children if len(child) > 1 for part in child]
    if not others and not _overlaps([s for part in whole for s in part], told):
        return [[s for part in whole for s in part]]
    return whole + others


def _in_one_folder(sources: list[Source], told: Told) -> list[list[Source]]:
    for pattern, kept in ((_RANK_IN_NAME, r"\1"), (_NUMBER, "")):
        parts: dict[str, list[Source]] = {}
        for source in sources:
            parts.setdefault(pattern.sub(kept, source.base), []).append(source)
        if 1 < len(parts) < len(sources) and not any(_overlaps(part, told) for part in parts.values()):
            return list(parts.values())
    return _captures(sources, told) or [sources]


def _captures(sources: list[Source], told: Told) -> list[list[Source]]:
    """The first, second, ... file of everybody, where all have as many; none otherwise."""
    by_told: dict[frozenset[Hashable], list[Source]] = {}
    for source in sources:
        by_told.setdefault(told[source], []).append(source)
    files = list(by_told.values())
    first = [mine[0] for mine in files]
    if len({len(mine) for mine in files}) > 1 or _overlaps(first, told):
        return []
    return [list(capture) for capture in zip(*files, strict=True)]


def _overlaps(sources: Sequence[Source], told: Told) -> bool:
    seen: set[Hashable] = set()
    for source in sources:
        if not seen.isdisjoint(told[source]):
            return True
        seen |= told[source]
    return False
