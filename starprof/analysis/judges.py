"""Kinds of evidence other than step records, most telling first: each has a judge that looks for its own.

A judge gets the run, the thresholds and a verdict that is filled in but for the answer; it returns None when the run
holds no evidence of its kind. Adding one is a module and one line here.
"""

from __future__ import annotations

from collections.abc import Callable

from starprof.analysis import (
    arrivals,
    call_statistics,
    counters_only,
    data_readiness,
    data_waits,
    hang,
    job_series,
    pairs,
    whatif,
    workers,
)
from starprof.analysis.settings import Settings
from starprof.model.rundata import RunData
from starprof.model.verdict import Verdict

Judge = Callable[[RunData, Settings, Verdict], Verdict | None]

JUDGES: tuple[Judge, ...] = (
    hang.judge,
    whatif.judge,
    arrivals.judge,
    call_statistics.judge,
    job_series.judge,
    data_waits.judge,
    workers.judge,
    data_readiness.judge,
    pairs.judge,
    counters_only.judge,
)
