"""`starprof analyze`: recognise what the user names, read it, and lay metrics beside the steps."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from starprof.errors import InputError, UsageError
from starprof.importers.base import Importer
from starprof.importers.collect import collect
from starprof.importers.merge import with_metrics
from starprof.importers.registry import importers, metrics_importers, steps_importers
from starprof.importers.source import Source
from starprof.model.rundata import RunData
from starprof.model.tables.job import UNAVAILABLE

SHOWN = 3


@dataclass(slots=True)
class _Found:
    """Which importer reads what.

    Attributes:
        groups: importers with their own sources; the first one has the steps, if any has.
        left: sources that nobody reads, with the reason where there is one.
    """

    groups: list[tuple[Importer, list[Source]]] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def load(paths: Sequence[str], source_format: str | None = None) -> RunData:
    """Read what is behind the paths as one run; `info["note"]` says what was left out.

    The steps come from the most telling format that is there; metrics are added to them.

    Args:
        paths: files, folders, globs, archives.
        source_format: an importer's NAME; recognised from the content when None.

    Raises:
        UsageError: there is no such format.
        InputError: nothing is recognised, or what is can't be read.
    """
    chosen = None if source_format is None else _named(source_format)
    with tempfile.TemporaryDirectory(prefix="starprof-") as scratch:
        sources = collect(paths, Path(scratch))
        if not sources:
            raise InputError(f"{paths[0]} holds no file")
        found = _Found([(chosen, sources)]) if chosen is not None else _recognised(sources)
        run, words = _read(found)
    notes = [_read_as(found), str(run.info.get("note") or ""), *words, _left_over(found)]
    return replace(run, info={**run.info, "note": "; ".join(n for n in notes if n)})


def _named(source_format: str) -> Importer:
    for importer in importers():
        if source_format == importer.NAME:
            return importer
    raise UsageError(f"no format {source_format!r}: there are {', '.join(i.NAME for i in importers())}")


def _recognised(sources: Sequence[Source]) -> _Found:
    """Ask the importers in order: the first with steps takes its own, then each of the metrics."""
    found = _Found()
    waiting: list[Source] = []
    for source in sources:
        try:
            if source.head:
                waiting.append(source)
            else:
                found.left[source.name] = "empty"
        except InputError as error:
            found.left[source.name] = str(error)
    for importer in steps_importers():
        own = [s for s in waiting if _takes(importer, s)]
        if own:
            found.groups.append((importer, own))
            waiting = [s for s in waiting if s not in own]
            break
    for importer in metrics_importers():
        own = [s for s in waiting if _takes(importer, s)]
        if own:
            found.groups.append((importer, own))
            waiting = [s for s in waiting if s not in own]
    if not found.groups:
        raise InputError(_nothing_known(sources, found))
    found.left |= {s.name: "" for s in waiting}
    return found


def _takes(importer: Importer, source: Source) -> bool:
    """Whether an importer recognises a source; one that is damaged beyond its head is nobody's."""
    try:
        return importer.recognises(source)
    except InputError:
        return False


def _nothing_known(sources: Sequence[Source], found: _Found) -> str:
    reasons = [reason for reason in found.left.values() if reason != "empty"]
    if len(found.left) == len(sources):
        return reasons[0] if reasons else f"{sources[0].name} is empty"
    names = ", ".join(s.name for s in sources[:SHOWN]) + (", ..." if len(sources) > SHOWN else "")
    known = ", ".join(i.NAME for i in importers())
    return f"no known format in {names}; --format names one of {known} if you know better"


def _read(found: _Found) -> tuple[RunData, list[str]]:
    """The first group's run with the others' samples; one that can't be read is left out, unless it is the first."""
    (importer, own), *others = found.groups
    run = importer.read(own)
    metrics, failed = [], []
    for other, sources in others:
        try:
            metrics.append(other.read(sources))
        except InputError as error:
            failed.append((other.NAME, str(error)))
            found.left |= {s.name: str(error) for s in sources}
    run, words = with_metrics(run, metrics)
    words = [str(m.info["note"]) for m in metrics if m.info.get("note")] + words
    rows = [[None, name, reason] for name, reason in failed] + [[None, "samples", word] for word in words]
    if rows:
        extra = pd.DataFrame(rows, columns=list(UNAVAILABLE.names))
        known = run.unavailable
        run = replace(run, unavailable=pd.concat([known, extra], ignore_index=True) if len(known) else extra)
    return run, words


def _read_as(found: _Found) -> str:
    parts = [i.NAME + (f" ({len(own)} files)" if len(own) > 1 else "") for i, own in found.groups]
    return f"read as {', '.join(parts)}"


def _left_over(found: _Found) -> str:
    if not found.left:
        return ""
    some = [Path(name).name + (f" ({why})" if why else "") for name, why in list(found.left.items())[:SHOWN]]
    more = f", ... ({len(found.left)} files)" if len(found.left) > SHOWN else ""
    return f"not read: {', '.join(some)}{more}"
