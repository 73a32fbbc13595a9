"""Kinds of evidence other than step records, most telling first: each has a judge that looks for its own.

A judge gets the run, the thresholds and a verdict that is filled in but for the answer; it returns None when the run
holds no evidence of its kind. Adding one is a module and one line here.
"""

from __future__ import annotations

from collections.abc import Callable

from starprof.analysis import arrivals, counters_only, hang, job_series, whatif, workers
from starprof.analysis.settings import Settings
from starprof.model.rundata import RunData
from starprof.model.verdict import Verdict

Judge = Callable[[RunData, Settings, Verdict], Verdict | None]

JUDGES: tuple[Judge, ...] = (
    hang.judge,
    whatif.judge,
    arrivals.judge,
    job_series.judge,
    workers.judge,
    counters_only.judge,
)
