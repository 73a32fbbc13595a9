"""What `analyze --json` prints when what was named holds several jobs: the verdict of each.

Its JSON form is versioned (`schema`), documented in docs/verdict.md and stable: fields are added, never renamed. It has
`jobs`, which a single verdict has not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starprof.model.verdict import Verdict

JOBS_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """One of several jobs.

    Attributes:
        name: tells it from the others.
        files: what it was read from.
        verdict: None when it can't be read.
        note: how it was read; "" when there is nothing to say.
        error: why it can't be read, else "".
    """

    name: str
    files: tuple[str, ...]
    verdict: Verdict | None
    note: str = ""
    error: str = ""


def to_json(jobs: Sequence[JobVerdict], not_read: Mapping[str, str]) -> dict[str, Any]:
    """The stable JSON form (plain dicts and lists).

    Args:
        jobs: in the order in which they are shown.
        not_read: files that belong to no job, with the reason where there is one.
    """
    return {
        "schema": JOBS_SCHEMA,
        "jobs": [
            {
                "name": job.name,
                "files": list(job.files),
                "note": job.note,
                "error": job.error or None,
                "verdict": job.verdict.to_json() if job.verdict is not None else None,
            }
            for job in jobs
        ],
        "not_read": [{"file": name, "reason": reason} for name, reason in not_read.items()],
    }
