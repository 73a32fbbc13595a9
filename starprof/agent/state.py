"""What an agent leaves for its successor in `agents/n<node>.json`, written after each write of a segment.

It only saves work and tells how long nobody recorded: rows that are sent twice are cut by the ledger. So it is
overwritten in place by one write(2), which a kill can't tear, needs no room on a full disk, and costs a
thirtieth of making a new file and renaming it. A damaged file counts as none.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class AgentState:
    """State of one agent process.

    Attributes:
        pid: process id of the agent.
        boot_id: boot in which its times are valid.
        last_mono_ns: when it last wrote samples.
        clean: it ended on purpose, with everything written.
        next_slots: ring stem -> number of the first slot that is not yet in the spool.
    """

    pid: int
    boot_id: str
    last_mono_ns: int
    clean: bool = False
    next_slots: dict[str, int] = field(default_factory=dict)


class StateFile:
    """The file, kept open."""

    def __init__(self, path: Path) -> None:
        """Open or create it.

        Raises:
            OSError: it can't be written.
        """
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._length = 0

    def save(self, state: AgentState) -> None:
        """Overwrite the content.

        Raises:
            OSError: it can't be written.
        """
        data = json.dumps(asdict(state)).encode()
        # Blanks over the rest of a longer one before: JSON allows them.
        self._length = max(self._length, len(data), os.fstat(self._fd).st_size if not self._length else 0)
        os.pwrite(self._fd, data.ljust(self._length), 0)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


def load_state(path: Path) -> AgentState | None:
    """The state that the agent before left; None when there was none or it can't be read."""
    try:
        return AgentState(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
