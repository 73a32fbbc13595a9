"""Modes whose rounds have a closed form. The forms are ours where no source is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from starprof.decision.choice.outlook import Outlook, Stream

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats


def mean_over(period_s: float, gradients: float) -> Stream:
    """Updates along the mean of so many gradients."""
    return Stream(period_s, 1.0, 1.0, 1.0 / gradients)


def ssgd(times: Floats) -> Outlook:
    """Everybody waits for the slowest."""
    workers = times.shape[1]
    period = float(times.max(axis=1).mean())
    return Outlook("ssgd", {}, (mean_over(period, workers),), workers / period)


def asgd(times: Floats, mode: str = "asgd") -> Outlook:
    """Nobody waits: 1/sum(1/t) between updates; worker i's gradient sees sum of t_i/t_j over the others."""
    usual, workers = times.mean(axis=0), times.shape[1]
    rates = 1.0 / usual
    stale = usual * rates.sum() - 1.0
    share = rates / rates.sum()
    mean = float((share * stale).sum())
    return Outlook(
        mode,
        {},
        (Stream(1.0 / float(rates.sum()), 1.0 / workers, workers**-2.0, workers**-2.0),),
        float(rates.sum()),
        int(np.ceil(stale.max())),
        mean,
        skew=float(np.abs(share - 1.0 / workers).sum() / 2.0),
    )


def ringmaster(times: Floats, r: int) -> Outlook:
    """As asgd, without those whose gradients would be too old: the quickest k that keep all delays below r."""
    usual, workers = np.sort(times.mean(axis=0)), times.shape[1]
    delays = usual * np.cumsum(1.0 / usual) - 1.0
    kept = max(1, int(np.searchsorted(delays, r - 1e-9)))
    inner = asgd(usual[None, :kept])
    share = np.concatenate([(1.0 / usual[:kept]) / (1.0 / usual[:kept]).sum(), np.zeros(workers - kept)])
    stream = Stream(inner.streams[0].period_s, 1.0 / workers, workers**-2.0, workers**-2.0)
    return Outlook(
        "ringmaster",
        {"r": r},
        (stream,),
        float((1.0 / usual).sum()),
        min(inner.max_staleness, r - 1),
        inner.mean_staleness,
        skew=float(np.abs(share - 1.0 / workers).sum() / 2.0),
        drops=kept < workers,
    )


def ssp(times: Floats, s: int) -> Outlook:
    """In the long run nobody makes more iterations than the slowest; gradients go in one by one."""
    workers, period = times.shape[1], float(times.mean(axis=0).max())
    # In one iteration of the slowest, each worker contributes once: what a gradient misses are the others' since.
    missed = times.mean(axis=0) / period * (workers - 1)
    mean = float(missed.mean())
    stream = Stream(period / workers, 1.0 / workers, workers**-2.0, workers**-2.0)
    most = min((2 * s + 1) * (workers - 1), workers)
    return Outlook("ssp", {"s": s}, (stream,), workers / period, most, mean)


def lb_bsp(times: Floats, batch: int) -> Outlook:
    """Batches follow speed: everybody takes the harmonic mean, times its scatter; a mean over all samples."""
    usual, workers = times.mean(axis=0), times.shape[1]
    balanced = workers / float((1.0 / usual).sum())
    period = float((times / usual).max(axis=1).mean()) * balanced
    return Outlook("lb-bsp", {"batch_size": batch}, (mean_over(period, workers),), workers / period)


def dynamic_x(times: Floats, groups: Sequence[Sequence[int]], workers: Sequence[int]) -> Outlook:
    """Each group waits for its slowest; groups don't wait for each other (arXiv 2512.09685)."""
    place = {worker: at for at, worker in enumerate(workers)}
    count = len(workers)
    periods = np.array([times[:, [place[w] for w in group]].max(axis=1).mean() for group in groups])
    sizes = np.array([len(group) for group in groups])
    streams = tuple(
        Stream(float(t), size / count, (size / count) ** 2, size / count**2)
        for t, size in zip(periods, sizes, strict=True)
    )
    stale = periods * (1.0 / periods).sum() - 1.0
    rate = sizes / periods
    share = np.repeat(rate / rate.sum() / sizes, sizes)
    return Outlook(
        "dynamic-x",
        {"groups": [list(group) for group in groups]},
        streams,
        float(rate.sum()),
        int(np.ceil(stale.max() - 1e-9)),
        float((rate * stale).sum() / rate.sum()),
        skew=float(np.abs(share - 1.0 / count).sum() / 2.0),
    )


def local_sgd(times: Floats, period: int) -> Outlook:
    """`period` steps on one's own, then a mean of states: scatter averages out, lasting differences don't.

    The steps are counted as synchronous ones on parameters that are half a period old, which is our approximation.
    """
    workers = times.shape[1]
    usual = times.mean(axis=0)
    # The sum of so many iterations scatters by the root of their number.
    lasting = usual + (times - usual) / np.sqrt(period)
    step_s = float(lasting.max(axis=1).mean())
    drift = (period - 1) / 2.0
    options = {"period": period}
    return Outlook("local-sgd", options, (mean_over(step_s, workers),), workers / step_s, drift_steps=drift)


def hierarchical(times: Floats, groups: Sequence[Sequence[int]], workers: Sequence[int], period: int) -> Outlook:
    """As local-sgd with groups in the place of workers; inside a group everybody waits."""
    place = {worker: at for at, worker in enumerate(workers)}
    of_groups = np.stack([times[:, [place[w] for w in group]].max(axis=1) for group in groups], axis=1)
    inner = local_sgd(of_groups, period)
    step_s = inner.streams[0].period_s
    options = {"groups": [list(group) for group in groups], "period": period}
    stream = mean_over(step_s, len(workers))
    return Outlook("hierarchical", options, (stream,), len(workers) / step_s, drift_steps=inner.drift_steps)


def drop_compute(times: Floats, tau_s: float, micro_batches: int) -> Outlook:
    """Everybody stops after tau with the micro-batches done by then, one at least; a mean over their samples."""
    one = times / micro_batches
    done = np.clip(np.floor(tau_s / one + 1e-9), 1, micro_batches)
    # A micro-batch that is under way at tau is ended.
    done = np.where((done < micro_batches) & (done * one < tau_s * (1 - 1e-9)), done + 1, done)
    period = float((done * one).max(axis=1).mean())
    gradients = float(done.sum(axis=1).mean()) / micro_batches
    share = done.mean(axis=0) / done.mean(axis=0).sum()
    workers = times.shape[1]
    skew = float(np.abs(share - 1.0 / workers).sum() / 2.0)
    options = {"tau_s": tau_s}
    return Outlook("drop-compute", options, (mean_over(period, gradients),), workers / period, skew=skew, drops=True)


def rennala(times: Floats, batch: int) -> Outlook:
    """Until `batch` fresh gradients are there, after each worker's gradient under way, which is stale by then.

    With workers at independent places of their iterations, tau seconds bring `max(0, tau/t_i - 1)` fresh ones of
    worker i in the mean, and one more of the worker whose gradient ended the round before, which begins with it. The
    period is the tau at which these sum to the batch.
    """
    usual = np.sort(times.mean(axis=0))
    rates = np.cumsum(1.0 / usual)
    counts = np.arange(1, len(usual) + 1)
    taus = (batch - 1 + counts) / rates
    after = np.append(usual[1:], np.inf)
    at = int(np.argmax(taus <= after))
    period = float(taus[at])
    by_rate = np.where(usual <= period * (1 + 1e-9), 1.0 / usual, 0.0)
    fresh = np.maximum(0.0, period / usual - 1.0) + by_rate / by_rate.sum()
    share = fresh / fresh.sum()
    skew = float(np.abs(share - 1.0 / len(usual)).sum() / 2.0)
    return Outlook(
        "rennala",
        {"batch": batch},
        (mean_over(period, batch),),
        float(rates[-1]),
        skew=skew,
        drops=True,
    )
