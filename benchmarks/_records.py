"""Results of long benchmarks: a line of JSON each as soon as it is there, so that a second start goes on behind it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, Any]]:
    """What is there; a line that was cut off is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def append(path: Path, record: dict[str, Any]) -> None:
    """Add a line, behind one that was cut off too."""
    with path.open("ab+") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(record).encode() + b"\n")
