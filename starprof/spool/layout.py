"""Where things lie in a spool directory.

NAME.starprof.spool/
  run.json          what is recorded: run id, name, command, versions, start
  lock              held (flock) by the recorder that owns the run file
  rings/            one ring file per rank process, `n<node>-<pid>-<start ns>.ring`
  segments/         `<source>.<number>.part` while written, `.seg` when sealed (fsync, rename)
  agents/           `n<node>.json`: pid and state of the node's agent
  ingest.lock       held (flock) by the ingester at work, with its pid
Damaged files of rings/ and segments/ are kept as `*.bad`; everything else goes away when it is folded in.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SPOOL_SUFFIX = ".spool"
RUN_SUFFIX = ".starprof"


@dataclass(frozen=True, slots=True)
class Spool:
    """Paths of one spool directory."""

    root: Path

    @classmethod
    def beside(cls, run_file: Path) -> Spool:
        """The spool that belongs to a run file: same folder, same name + `.spool`."""
        return cls(run_file.with_name(run_file.name + SPOOL_SUFFIX))

    @property
    def run_json(self) -> Path:
        """Description of the run."""
        return self.root / "run.json"

    @property
    def lock(self) -> Path:
        """Lock file of the recorder."""
        return self.root / "lock"

    @property
    def rings(self) -> Path:
        """Folder of the ranks' ring files."""
        return self.root / "rings"

    @property
    def segments(self) -> Path:
        """Folder of segments."""
        return self.root / "segments"

    @property
    def agents(self) -> Path:
        """Folder of the agents' state files."""
        return self.root / "agents"

    def create(self) -> None:
        """Make the directories; they may exist."""
        for folder in (self.rings, self.segments, self.agents):
            folder.mkdir(parents=True, exist_ok=True)
