"""Several levels of slowness: of one rank, of everybody, and what is one slowness all the same."""

import numpy as np
import pytest
from verdicts import blamed, verdict_of

from starprof.analysis.regimes import regimes
from starprof.analysis.synthetic import CpuHog, Quota, Slow, Trouble
from starprof.model import causes

FOREIGN = {"gpu_sample.foreign_processes": 1.0, "gpu_sample.foreign_memory_bytes": 9e9}


def onsets(verdict):
    return sorted(finding.onset_step for finding in verdict.findings)


@pytest.mark.parametrize("times", [2.5, 12.0])
def test_a_rank_that_gets_much_worse_is_two_findings_with_their_own_onsets(times):
    faults = (
        Slow("forward", (2,), us=30_000.0, start=100, end=200),
        Slow("forward", (2,), us=30_000.0 * times, start=200),
    )
    verdict = verdict_of(*faults, counters=False)
    assert (verdict.verdict, blamed(verdict)) == ("straggler", {2})
    assert onsets(verdict) == pytest.approx([100, 200], abs=3)
    assert sorted((f.kind, f.end_step) for f in verdict.findings) == [("chronic", None), ("transient", 199)]


def test_the_second_regime_is_compared_with_the_healthy_past_not_with_the_first():
    compute = {"forward": 12_000.0, "backward": 22_000.0}
    worse = {name: 8 * us for name, us in compute.items()}
    faults = (Trouble((3,), compute, FOREIGN, start=100, end=200), Trouble((3,), worse, FOREIGN, start=200))
    verdict = verdict_of(*faults, gpus=True)
    assert {finding.cause for finding in verdict.findings} == {causes.GPU_FOREIGN_PROCESS}
    assert onsets(verdict) == pytest.approx([100, 200], abs=3)


@pytest.mark.parametrize(
    "fault",
    [
        Quota(2, us=60_000.0, share=0.5),
        CpuHog(2, share=0.5, start=100),
        Slow("forward", (2,), us=60_000.0, trend=True, start=50),
        Slow("forward", (2,), us=30_000.0, start=100),
    ],
)
def test_bursts_trends_and_noise_are_one_slowness(fault):
    assert len(verdict_of(fault).findings) == 1


@pytest.mark.parametrize("start", [0, 50])
def test_a_steep_rise_is_one_trend_from_its_beginning(start):
    verdict = verdict_of(Slow("forward", (1,), us=200_000.0, trend=True, start=start), counters=False)
    (finding,) = verdict.findings
    assert (finding.kind, finding.ranks) == ("trend", (1,))
    assert abs(finding.onset_step - start) <= 10


def test_everybody_slower_in_two_regimes_is_two_findings():
    faults = (Slow("forward", None, us=60_000.0, start=100, end=200), Slow("forward", None, us=300_000.0, start=200))
    verdict = verdict_of(*faults, counters=False)
    assert (verdict.verdict, blamed(verdict)) == ("uniform", set())
    assert onsets(verdict) == pytest.approx([100, 200], abs=3)


def test_a_level_of_everybody_that_comes_and_goes_is_seen_each_time():
    faults = [Slow("forward", None, us=60_000.0, start=a, end=b) for a, b in ((60, 130), (190, 240), (310, 400))]
    verdict = verdict_of(*faults, counters=False)
    assert (verdict.verdict, blamed(verdict)) == ("uniform", set())
    assert onsets(verdict) == pytest.approx([60, 190, 310], abs=3)


@pytest.mark.parametrize("ar1", [0.5, 0.9])
def test_noise_that_drifts_has_no_levels(ar1):
    for seed in range(3):
        assert verdict_of(seed=seed, ar1=ar1, cv=0.1, ranks=2, counters=False).verdict == "none"


def test_regimes_cover_the_stretch_and_short_ones_belong_to_a_neighbour():
    rng = np.random.default_rng(1)
    excess = np.r_[np.full(60, 10.0), np.full(5, 90.0), np.full(80, 40.0)] * (1 + 0.05 * rng.standard_normal(145))
    first, second = regimes(excess, 1.0, 10)
    assert (first.start, second.end) == (0, 145)
    assert first.end == second.start
    assert abs(second.start - 62) <= 5
