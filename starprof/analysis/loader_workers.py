"""One slow worker of a data loader: batches come in the order of the workers, so every n-th step waits for it.

A loader with n workers takes their batches in turn, though others may be ready earlier. Who is slow is one worker
inside a rank (or its share of the data), no rank.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.causes import ms
from starprof.analysis.causes.base import rank_names
from starprof.analysis.causes.phase import MAX_WORKERS, worker_words
from starprof.analysis.cost import Reduction
from starprof.analysis.findings import Context
from starprof.analysis.own_time import OwnTime
from starprof.analysis.settings import Settings
from starprof.analysis.shapes import period_of, periodic_bounds
from starprof.analysis.slowness import Slowness
from starprof.analysis.words import confidence
from starprof.model import causes
from starprof.model.verdict import Finding

MOST_RANKS = 0.9
USUAL = 0.4
"""With two workers half of the steps wait: what is usual is the level of the shorter waits."""
EVEN = 0.3
MIN_WAIT = 0.05
"""Least wait, as a share of the healthy step."""


def slow_workers(own: OwnTime, settings: Settings) -> list[Slowness]:
    """Waits at every n-th step of (nearly) all ranks, so that no rank is late because of them."""
    waits = own.phases["data_wait"]
    found = {row: turn for row in range(own.shape[0]) if (turn := _turns(waits[row], own, settings)) is not None}
    periods = {period for period, _ in found.values()}
    if len(found) < MOST_RANKS * own.shape[0] or len(periods) != 1:
        return []
    hits = np.array([late for _, late in found.values()])
    together: Bools = hits.mean(axis=0) >= MOST_RANKS
    columns = np.flatnonzero(together)
    period = periods.pop()
    if period_of(columns) != period:
        return []
    start, end = periodic_bounds(columns, period, own.shape[1], own.hidden_steps)
    gone = {row: np.where(together, np.maximum(0.0, waits[row] - _usual(waits[row])), 0.0) for row in found}
    return [
        Slowness(
            kind="periodic",
            rows=tuple(found),
            start=start,
            end=end,
            onset=(start, int(columns[0])),
            steps=together,
            reduction=Reduction(gone),
            source="workers",
            blame=False,
            period=period,
        )
    ]


def _usual(waits: Floats) -> float:
    known = waits[~np.isnan(waits)]
    return float(np.median(known[known <= np.quantile(known, USUAL)])) if len(known) else 0.0


def _turns(waits: Floats, own: OwnTime, settings: Settings) -> tuple[int, Bools] | None:
    """(workers, late steps) of one rank whose every n-th wait is long; None when there is no such turn."""
    usual = _usual(waits)
    low = waits[waits <= np.nanquantile(waits, USUAL)]
    sigma = float(np.median(np.abs(low - usual))) if len(low) else 0.0
    late: Bools = np.nan_to_num(waits - usual, nan=0.0) > max(MIN_WAIT * own.healthy_step_us, settings.spike_z * sigma)
    period = period_of(np.flatnonzero(late))
    if period is None or period > MAX_WORKERS or abs(float(late.mean()) * period - 1.0) > EVEN:
        return None
    return period, late


def worker_finding(context: Context, slowness: Slowness) -> Finding:
    """Every n-th batch comes late on all ranks (or the only one)."""
    own, period = context.own, slowness.period or 0
    waits = np.nanmax(np.array([own.phases["data_wait"][row] for row in slowness.rows])[:, slowness.steps], axis=0)
    who = rank_names(tuple(own.rank(row) for row in slowness.rows)).capitalize()
    first = int(own.steps[np.flatnonzero(slowness.steps)[0]])
    lines = [
        f"{who} wait{'s' if len(slowness.rows) == 1 else ''} {ms(float(np.median(waits)))} for data in every "
        f"{period}. step from step {first} on, and hardly in the others; no rank is late because of it.",
        worker_words(period),
        f"If step 0 took the first batch, it is worker {first % period} of {period} (counted from 0).",
    ]
    return replace(
        context.base(slowness),
        cause=causes.DATA_LOADING,
        cause_share=1.0,
        confidence=confidence(slowness, 1.0, True),
        evidence=tuple(lines),
        action="Even out the work of the loader's workers (shards or files of one size, no slow file for one of them), "
        "or let batches come out of order (in_order=False of DataLoader) where their order does not matter; more "
        "prefetching alone does not help, as the slow worker sets the pace.",
        verify=f"data_wait_us must be as short in every {period}. step as in the others.",
        next="Time the workers themselves (worker id and seconds per batch) to see which of them is slow.",
    )
