"""What the server answers: one JSON object for each question, by `do`.

    jobs      the names of the jobs that it follows
    live      `job` (the only one if not given), `ranks` at most: the job as it is now, see `view`
    steps     `job`: own and whole step times of every rank over the recent window
    metrics   OpenMetrics text of all jobs

Answers have `ok` and `schema`; where `ok` is false `error` is one line, and `usage` tells whether the question itself
was wrong. Nothing that can be asked here changes anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from starprof.errors import NoDataError, StarprofError, UsageError
from starprof.serve import openmetrics, view
from starprof.serve.jobwatch import JobWatch

SOCKET = "live.sock"
"""In the spool of a run, and in the folder of a server of many."""

MOST_RANKS = 100_000


class Desk:
    """Answers questions about some jobs, by name."""

    def __init__(self, jobs: Mapping[str, JobWatch]) -> None:
        self.jobs = jobs

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Whatever is asked, and however wrong: one object."""
        try:
            deed = _DEEDS.get(str(question.get("do")))
            if deed is None:
                raise UsageError(f"there is nothing to ask that is called {str(question.get('do'))[:40]!r}")
            return {"ok": True, "schema": view.SCHEMA, **deed(self, question)}
        except StarprofError as error:
            usage = isinstance(error, UsageError)
            return {"ok": False, "schema": view.SCHEMA, "error": str(error), "usage": usage}

    def metrics(self) -> str:
        """OpenMetrics text."""
        return openmetrics.text(self.jobs, time.monotonic())

    def _one(self, question: Mapping[str, Any]) -> tuple[str, JobWatch]:
        name = question.get("job")
        if name is None and len(self.jobs) == 1:
            return next(iter(self.jobs.items()))
        there = ", ".join(sorted(self.jobs)[:20]) or "none"
        if name is None:
            raise UsageError(f"which job? there are: {there}")
        if not isinstance(name, str) or name not in self.jobs:
            raise NoDataError(f"there is no job {str(name)[:80]!r} here; there are: {there}")
        return name, self.jobs[name]

    def _live(self, question: Mapping[str, Any]) -> dict[str, Any]:
        ranks = question.get("ranks", view.RANKS_AT_MOST)
        if type(ranks) is not int or not 0 < ranks <= MOST_RANKS:
            raise UsageError(f"ranks is a number from 1 to {MOST_RANKS}")
        name, watch = self._one(question)
        return view.describe(watch, name, time.monotonic(), ranks=ranks)

    def _steps(self, question: Mapping[str, Any]) -> dict[str, Any]:
        name, watch = self._one(question)
        times = watch.step_times()
        if times is None:
            raise NoDataError(f"no step of {name} is complete yet")
        return {
            "job": name,
            "ranks": [info.rank for info in times.ranks],
            "steps": times.steps.tolist(),
            **{key: _listed(getattr(times, key)) for key in ("own_us", "dur_us", "blocked_us")},
        }

    def _jobs(self, _question: Mapping[str, Any]) -> dict[str, Any]:
        return {"jobs": sorted(self.jobs)}

    def _metrics(self, _question: Mapping[str, Any]) -> dict[str, Any]:
        return {"text": self.metrics()}


def _listed(values: Any) -> list[list[float | None]]:
    """Rows of whole microseconds, None where there is no record."""
    return [[None if np.isnan(v) else round(v) for v in row] for row in values.tolist()]


_DEEDS: dict[str, Callable[[Desk, Mapping[str, Any]], dict[str, Any]]] = {
    "live": Desk._live,
    "steps": Desk._steps,
    "jobs": Desk._jobs,
    "metrics": Desk._metrics,
}
