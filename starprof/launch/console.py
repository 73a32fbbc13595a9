"""What the recorder says while it stands beside the job: whole lines on stderr, never on the job's stdout."""

from __future__ import annotations

import os

_STDERR = 2


def say(text: str) -> None:
    """One line on stderr; a terminal or pipe that is gone is no reason to fail."""
    try:
        os.write(_STDERR, f"starprof: {text}\n".encode(errors="replace"))
    except OSError:
        return


def last_line(path: os.PathLike[str]) -> str:
    """Last line of a log that is not empty, "" when there is none."""
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123 - accepts any path-like
            lines = [line.strip() for line in file if line.strip()]
    except OSError:
        return ""
    return lines[-1] if lines else ""
