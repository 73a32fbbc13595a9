"""What an agent leaves for its successor in `agents/n<node>.json`, replaced atomically after each write.

It only saves work and tells how long nobody recorded: rows that are sent twice are cut by the ledger.
"""

from __future__ import annotations

import json
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

    def save(self, path: Path) -> None:
        """Replace the file.

        Raises:
            OSError: it can't be written; the old one is still there.
        """
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(path)


def load_state(path: Path) -> AgentState | None:
    """The state that the agent before left; None when there was none or it can't be read."""
    try:
        return AgentState(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
