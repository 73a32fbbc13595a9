"""`starprof analyze`: everything behind the paths as one run, for callers that know it is of one job."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from starprof.errors import InputError
from starprof.importers.collect import collect
from starprof.importers.found import Found, named, read_groups, recognised
from starprof.model.rundata import RunData


def load(paths: Sequence[str], source_format: str | None = None) -> RunData:
    """Read what is behind the paths as one run; `info["note"]` says what was left out.

    The steps come from the most telling format that is there; metrics are added to them.

    Args:
        paths: files, folders, globs, archives.
        source_format: an importer's NAME; recognised from the content when None.

    Raises:
        UsageError: there is no such format.
        InputError: nothing is recognised, what is can't be read, or it is of several jobs.
    """
    chosen = None if source_format is None else named(source_format)
    with tempfile.TemporaryDirectory(prefix="starprof-") as scratch:
        sources = collect(paths, Path(scratch))
        if not sources:
            raise InputError(f"{paths[0]} holds no file")
        found = Found([(chosen, sources)]) if chosen is not None else recognised(sources)
        others = {source.name: "" for _, own in found.steps[1:] for source in own}
        return read_groups([*found.steps[:1], *found.metrics], {**found.left, **others})
