"""Which importer reads which of the sources, and the run that comes out: steps of one format, metrics beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from starprof.errors import InputError, UsageError
from starprof.importers.base import Importer
from starprof.importers.merge import with_metrics
from starprof.importers.registry import importers, metrics_importers, steps_importers
from starprof.importers.source import Source
from starprof.model.rundata import RunData
from starprof.model.tables.job import UNAVAILABLE

SHOWN = 3

Group = tuple[Importer, list[Source]]


@dataclass(slots=True)
class Found:
    """Which importer reads what.

    Attributes:
        steps: importers with steps and their sources, the most telling format first.
        metrics: importers of samples and theirs.
        left: sources that nobody reads, with the reason where there is one.
    """

    steps: list[Group] = field(default_factory=list)
    metrics: list[Group] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def named(source_format: str) -> Importer:
    """The importer with this NAME.

    Raises:
        UsageError: there is none.
    """
    for importer in importers():
        if source_format == importer.NAME:
            return importer
    raise UsageError(f"no format {source_format!r}: there are {', '.join(i.NAME for i in importers())}")


def recognised(sources: Sequence[Source]) -> Found:
    """Ask the importers in order: each takes what is its own of what is left.

    Raises:
        InputError: nothing is recognised.
    """
    found = Found()
    waiting: list[Source] = []
    for source in sources:
        try:
            if source.head:
                waiting.append(source)
            else:
                found.left[source.name] = "empty"
        except InputError as error:
            found.left[source.name] = str(error)
    for groups, known in ((found.steps, steps_importers()), (found.metrics, metrics_importers())):
        for importer in known:
            own = [s for s in waiting if _takes(importer, s)]
            if own:
                groups.append((importer, own))
                taken = set(own)
                waiting = [s for s in waiting if s not in taken]
    if not found.steps and not found.metrics:
        raise InputError(_nothing_known(sources, found))
    found.left |= {s.name: "" for s in waiting}
    return found


def _takes(importer: Importer, source: Source) -> bool:
    """Whether an importer recognises a source; one that is damaged beyond its head is nobody's."""
    try:
        return importer.recognises(source)
    except InputError:
        return False


def _nothing_known(sources: Sequence[Source], found: Found) -> str:
    reasons = [reason for reason in found.left.values() if reason != "empty"]
    if len(found.left) == len(sources):
        return reasons[0] if reasons else f"{sources[0].name} is empty"
    names = ", ".join(s.name for s in sources[:SHOWN]) + (", ..." if len(sources) > SHOWN else "")
    known = ", ".join(i.NAME for i in importers())
    return f"no known format in {names}; --format names one of {known} if you know better"


def read_groups(groups: Sequence[Group], left: Mapping[str, str]) -> RunData:
    """The first group's run with the others' samples; one that can't be read is left out, unless it is the first.

    Args:
        groups: the steps, if there are any, then the metrics.
        left: sources that nobody reads, for the note.

    Raises:
        InputError: the first group can't be read.
    """
    (importer, own), *others = groups
    run = importer.read(own)
    left = dict(left)
    metrics, failed = [], []
    for other, sources in others:
        try:
            metrics.append(other.read(sources))
        except InputError as error:
            failed.append((other.NAME, str(error)))
            left |= {s.name: str(error) for s in sources}
    run, words = with_metrics(run, metrics)
    words = [str(m.info["note"]) for m in metrics if m.info.get("note")] + words
    rows = [[None, name, reason] for name, reason in failed] + [[None, "samples", word] for word in words]
    if rows:
        extra = pd.DataFrame(rows, columns=list(UNAVAILABLE.names))
        known = run.unavailable
        run = replace(run, unavailable=pd.concat([known, extra], ignore_index=True) if len(known) else extra)
    notes = [_read_as(groups), str(run.info.get("note") or ""), *words, left_over(left)]
    return replace(run, info={**run.info, "note": "; ".join(n for n in notes if n)})


def _read_as(groups: Sequence[Group]) -> str:
    parts = [i.NAME + (f" ({len(own)} files)" if len(own) > 1 else "") for i, own in groups]
    return f"read as {', '.join(parts)}"


def left_over(left: Mapping[str, str]) -> str:
    """The sources that nobody reads, in one line; empty when there are none."""
    if not left:
        return ""
    some = [Path(name).name + (f" ({why})" if why else "") for name, why in list(left.items())[:SHOWN]]
    more = f", ... ({len(left)} files)" if len(left) > SHOWN else ""
    return f"not read: {', '.join(some)}{more}"
