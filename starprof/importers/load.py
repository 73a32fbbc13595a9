"""`starprof analyze`: recognise what the user names, and read it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from starprof.errors import InputError, UsageError
from starprof.importers.base import Importer
from starprof.importers.collect import collect
from starprof.importers.registry import importers
from starprof.importers.source import Source
from starprof.model.rundata import RunData

SHOWN = 3


def load(paths: Sequence[str], source_format: str | None = None) -> RunData:
    """Read what is behind the paths as one run; `info["note"]` says what was left out.

    Args:
        paths: files, folders, globs, archives.
        source_format: an importer's NAME; recognised from the content when None.

    Raises:
        UsageError: there is no such format.
        InputError: nothing is recognised, or what is can't be read.
    """
    known = list(importers())
    if source_format is not None:
        known = [i for i in known if source_format == i.NAME]
        if not known:
            raise UsageError(f"no format {source_format!r}: there are {', '.join(i.NAME for i in importers())}")
    with tempfile.TemporaryDirectory(prefix="starprof-") as scratch:
        sources = collect(paths, Path(scratch))
        if not sources:
            raise InputError(f"{paths[0]} holds no file")
        chosen, own = _chosen(known, sources, recognise=source_format is None)
        run = chosen.read(own)
    return replace(run, info={**run.info, "note": _note(chosen, own, sources, str(run.info.get("note") or ""))})


def _chosen(known: Sequence[Importer], sources: Sequence[Source], *, recognise: bool) -> tuple[Importer, list[Source]]:
    """The importer and the sources that are its own."""
    if not recognise:
        return known[0], list(sources)
    for importer in known:
        own = [s for s in sources if s.head and importer.recognises(s)]
        if own:
            return importer, own
    if all(not s.head for s in sources):
        raise InputError(f"{sources[0].name} is empty")
    names = ", ".join(s.name for s in sources[:SHOWN]) + (", ..." if len(sources) > SHOWN else "")
    raise InputError(
        f"no known format in {names}; --format names one of {', '.join(i.NAME for i in known)} if you know better"
    )


def _note(chosen: Importer, own: Sequence[Source], sources: Sequence[Source], note: str) -> str:
    words = f"read as {chosen.NAME}" + (f" ({len(own)} files)" if len(own) > 1 else "")
    left = [s for s in sources if s not in own]
    if left:
        some = ", ".join(s.base for s in left[:SHOWN]) + (", ..." if len(left) > SHOWN else "")
        words += f"; not read: {some}"
    return f"{words}; {note}" if note else words
