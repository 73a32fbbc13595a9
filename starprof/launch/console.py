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
