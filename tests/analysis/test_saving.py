"""Periodic work of rank 0 that the bytes which it writes show to be saving."""

from dataclasses import replace

import numpy as np
import pytest
from verdicts import blamed, only_finding, words

from starprof.analysis import diagnose
from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.model import causes


def saving(written_at, every=20, amount=3e9, hz=10):
    """A verdict on a job whose rank 0 is late every n steps, and writes at the given steps."""
    run = SyntheticRun(4, 400, faults=(Slow("unaccounted", (0,), us=1e6, every=every, start=every - 1),))
    data = run.data()
    samples = data.samples["process_sample"].copy()
    mine = samples.index[samples["rank"] == 0]
    times = samples.loc[mine, "mono_ns"].to_numpy(float)
    starts = data.steps.start_mono_ns[0, written_at].astype(float)
    samples["write_bytes"] = 0.0
    samples.loc[mine, "write_bytes"] = np.sum([np.clip((times - s) / 1e9, 0, 1) * amount for s in starts], axis=0)
    samples.loc[np.setdiff1d(mine, mine[:: 10 // hz]), "write_bytes"] = np.nan
    return diagnose(replace(data, samples={**data.samples, "process_sample": samples}))


@pytest.mark.parametrize(("every", "hz"), [(20, 10), (40, 10), (100, 2)])
def test_bytes_written_in_the_late_steps_are_a_checkpoint_and_nobody_is_blamed(every, hz):
    verdict = saving(np.arange(every - 1, 400, every), every, hz=hz)
    finding = only_finding(verdict)
    assert (verdict.verdict, blamed(verdict)) == ("none", set())
    assert (finding.kind, finding.cause) == ("periodic", causes.CHECKPOINT)
    assert "wrote 3 GB each time" in words(finding)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param({"written_at": np.arange(9, 400, 20)}, id="between the late steps"),
        pytest.param({"written_at": np.arange(0, 400, 1), "amount": 1e8}, id="all the time"),
        pytest.param({"written_at": np.arange(19, 400, 20), "amount": 1e4}, id="a few kilobytes"),
    ],
)
def test_other_bytes_leave_it_open_what_rank_0_does(case):
    assert only_finding(saving(**case)).cause == causes.USER_CODE
