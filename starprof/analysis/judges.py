"""Kinds of evidence other than step records, most telling first: each has a judge that looks for its own.

A judge gets the run, the thresholds and a verdict that is filled in but for the answer; it returns None when the run
holds no evidence of its kind. Adding one is a module and one line here.
"""

from __future__ import annotations

from collections.abc import Callable

from starprof.analysis import counters_only, whatif, workers
from starprof.analysis.calls import arrivals, statistics
from starprof.analysis.hangs import judge as hangs
from starprof.analysis.job import judge as job
from starprof.analysis.link_tests import judge as link_tests
from starprof.analysis.loading import means, readiness, waits
from starprof.analysis.settings import Settings
from starprof.model.rundata import RunData
from starprof.model.verdict import Verdict

Judge = Callable[[RunData, Settings, Verdict], Verdict | None]

JUDGES: tuple[Judge, ...] = (
    hangs.judge,
    whatif.judge,
    arrivals.judge,
    statistics.judge,
    job.judge,
    means.judge,
    waits.judge,
    workers.judge,
    readiness.judge,
    link_tests.judge,
    counters_only.judge,
)
