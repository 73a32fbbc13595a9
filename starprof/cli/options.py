"""Options of a synchronisation mode, as they are written on a command line."""

from __future__ import annotations

import json
from collections.abc import Iterable

from starprof.errors import UsageError


def options_of(texts: Iterable[str]) -> dict[str, object]:
    """What NAME=VALUE texts say; a value is JSON where it can be read as such, else a text.

    Raises:
        UsageError: one of them has another form, or a name comes twice.
    """
    options: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"an option is given as NAME=VALUE, not {text!r}")
        if name in options:
            raise UsageError(f"option {name} is given twice")
        try:
            options[name] = json.loads(value)
        except (ValueError, RecursionError):
            options[name] = value
    return options
