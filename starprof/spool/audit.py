"""The audit log of a run: who joined, who was refused, and every action on the job, one JSON object a line.

`NAME.audit` lies beside the run file and outlives its spool. Only its owner may read it. Lines are appended by
one write each, so several processes may write; whatever goes wrong with it never stops what is logged.

    {"at_unix_s": ..., "pid": ..., "uid": ..., "by": "advisor", "action": "mode", ...}

    audit = Audit.beside(run_file)
    audit.note("mode", by="user", to="backup", reason="...", outcome="accepted")
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from starprof.spool.layout import SPOOL_SUFFIX

SUFFIX = ".audit"
MAX_BYTES = 64 << 20
MAX_LINE_BYTES = 4096
MAX_STRANGERS_PER_MINUTE = 10
"""Whoever knows no secret must not be able to fill the disk with what is said about him."""

_STRANGE = frozenset({"stranger", "refused"})


class Audit:
    """The log of one run, or of one server."""

    def __init__(self, path: Path) -> None:
        """Nothing is written before the first note."""
        self.path = path
        self._minute = -1
        self._strangers = 0

    @classmethod
    def beside(cls, run_file: Path) -> Audit:
        """The log of a run."""
        return cls(run_file.with_suffix(SUFFIX))

    @classmethod
    def of_spool(cls, root: Path) -> Audit:
        """The log of the run whose spool this is."""
        return cls.beside(root.with_name(root.name.removesuffix(SPOOL_SUFFIX)))

    def note(self, action: str, *, by: str, **fields: object) -> bool:
        """Write down what was done, or tried, by whom; tells whether it is written.

        Args:
            action: such as `mode`, `freeze`, `node-joined`, `stranger`.
            by: who wanted it.
            fields: whatever belongs to it, plain JSON.
        """
        if action in _STRANGE and not self._may_tell():
            return False
        head = {"at_unix_s": round(time.time(), 3), "pid": os.getpid(), "uid": os.getuid()}
        line = json.dumps({**head, "by": by, "action": action, **fields}, default=str)
        if len(line) > MAX_LINE_BYTES:
            line = json.dumps({**head, "by": by[:200], "action": action[:200], "cut": line[: MAX_LINE_BYTES // 2]})
        return self._append(line.encode() + b"\n")

    def _may_tell(self) -> bool:
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._strangers = minute, 0
        self._strangers += 1
        return self._strangers <= MAX_STRANGERS_PER_MINUTE

    def _append(self, data: bytes) -> bool:
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return False
        try:
            if os.fstat(fd).st_size > MAX_BYTES:
                return False
            return os.write(fd, data) == len(data)
        except OSError:
            return False
        finally:
            os.close(fd)


def read(path: Path) -> list[dict[str, object]]:
    """All entries of a log, oldest first; a line that can't be read is left out."""
    entries = []
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries
