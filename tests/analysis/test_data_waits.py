"""Logs with each rank's whole steps and its waiting for data: who holds up whom, and what stays unknown."""

import numpy as np
import pandas as pd
import pytest

from starprof.analysis import diagnose
from starprof.model.rundata import RankInfo, RunData, Steps
from starprof.model.tables.job import EVENT, GAP, NODE, UNAVAILABLE


def judged(data_s, step_s=12.0, ranks=None):
    """Verdict on ranks that wait `data_s` (R, S) for data in steps that are as long for all."""
    data = np.asarray(data_s, float)
    rng = np.random.default_rng(5)
    whole = step_s * (1 + 0.003 * rng.standard_normal(data.shape)) + data.max(axis=0)
    numbers = range(len(data)) if ranks is None else ranks
    return diagnose(
        RunData(
            info={"name": "logs", "timing": "wall", "note": ""},
            attempt=0,
            ranks=tuple(RankInfo(rank=r, node=-1, host="") for r in numbers),
            steps=Steps(
                np.arange(data.shape[1]),
                {"dur_us": whole * 1e6, "data_wait_us": data * 1e6},
                np.ones(data.shape, np.int64),
            ),
            samples={},
            events=pd.DataFrame(columns=list(EVENT.names)),
            gaps=pd.DataFrame(columns=list(GAP.names)),
            unavailable=pd.DataFrame(columns=list(UNAVAILABLE.names)),
            nodes=pd.DataFrame(columns=list(NODE.names)),
        )
    )


def usual(ranks=12, steps=200):
    return 0.02 + 0.01 * np.random.default_rng(2).random((ranks, steps))


def test_ranks_that_waited_minutes_for_data_in_one_step_are_named_with_that_step():
    data = usual()
    data[4:8, 173] = [332.5, 332.2, 312.0, 195.5]
    verdict = judged(data, ranks=range(140, 152))
    (finding,) = verdict.findings
    assert verdict.verdict == "straggler"
    assert finding.ranks == (144, 145, 146, 147)
    assert (finding.kind, finding.cause, finding.onset_step) == ("one-off", "data-loading", 173)
    assert finding.cost_seconds == pytest.approx(332, rel=0.02)
    assert "196 s to 332 s for data in step 173" in finding.evidence[0]


def test_a_rank_that_always_waits_for_data_is_named():
    data = usual()
    data[3] += 4.0
    verdict = judged(data)
    assert verdict.verdict == "straggler"
    assert [(f.ranks, f.cause, f.kind) for f in verdict.findings] == [((3,), "data-loading", "chronic")]


def test_stalls_that_go_round_blame_nobody():
    data = usual()
    for step, rank in ((50, 1), (90, 4), (130, 7), (160, 9)):
        data[rank, step] += 60
    verdict = judged(data)
    assert verdict.verdict == "rotating"
    assert not any(f.ranks for f in verdict.findings)


def test_equal_waiting_leaves_open_who_is_slow_in_the_rest():
    verdict = judged(usual())
    assert verdict.verdict == "inconclusive"
    assert verdict.findings == ()
    assert "computing or communicating" in verdict.reason


def test_all_ranks_waiting_alike_is_uniform():
    data = usual()
    data[:, 100:] += 5.0
    assert judged(data).verdict == "uniform"
