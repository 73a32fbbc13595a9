"""Job-level series with known truth."""

import numpy as np
import pandas as pd
from scipy.signal import lfilter

from starprof.analysis import diagnose
from starprof.model import events
from starprof.model.columns import row
from starprof.model.rundata import STEPS_PER_RECORD, RankInfo, RunData, Steps
from starprof.model.tables.job import EVENT, GAP, NODE, UNAVAILABLE


def noise(n, cv=0.03, ar1=0.0, heavy=False, seed=0):
    """Positive factors around 1, as step times scatter: lognormal AR(1), or with Student's t of 3 degrees."""
    rng = np.random.default_rng([11, seed])
    white = np.clip(rng.standard_t(3, n) / np.sqrt(3.0), -4, 12) if heavy else rng.standard_normal(n)
    scaled = white * np.sqrt(1 - ar1**2)
    scaled[0] = white[0]
    return np.exp(np.sqrt(np.log1p(cv**2)) * lfilter([1.0], [1.0, -ar1], scaled))


def job_run(seconds, *, steps=None, told=(), per_record=1, world_size=64, **columns):
    """A run with one row of step times; `told` are (kind, step) of events."""
    seconds = np.asarray(seconds, float)
    steps = np.arange(len(seconds)) if steps is None else np.asarray(steps)
    matrix = {"dur_us": seconds[None] * 1e6} | {k: np.asarray(v, float)[None] for k, v in columns.items()}
    detail = {"world_size": world_size, STEPS_PER_RECORD: per_record}
    rows = [row(EVENT, attempt=0, step=step, kind=kind) for kind, step in told]
    return RunData(
        info={"name": "log", "timing": "job", "note": ""},
        attempt=0,
        ranks=(RankInfo(rank=0, node=0, host="", detail=detail),),
        steps=Steps(steps, matrix, np.ones((1, len(seconds)), np.int64)),
        samples={},
        events=pd.DataFrame(rows, columns=list(EVENT.names)),
        gaps=pd.DataFrame(columns=list(GAP.names)),
        unavailable=pd.DataFrame(columns=list(UNAVAILABLE.names)),
        nodes=pd.DataFrame(columns=list(NODE.names)),
    )


def judged(seconds, **run):
    """The verdict on such a run."""
    return diagnose(job_run(seconds, **run))


SAVES = events.CHECKPOINT
RESTARTS = events.RESTART
