"""The running job's verdict: the same object and words as offline, and who may be blamed when."""

import json

from live import live, slowed

from starprof.analysis.live.detector import OnlineDetector
from starprof.analysis.live.verdict import live_verdict
from starprof.analysis.synthetic import SyntheticRun


def seen(*faults, steps=250):
    return live_verdict(live(SyntheticRun(ranks=8, steps=steps, cv=0.03, counters=False, faults=faults)))


def ranks(verdict):
    return {rank for finding in verdict.findings for rank in finding.ranks}


def test_a_confirmed_rank_is_a_straggler():
    verdict = seen(*slowed(3, 1.5, 120, None))
    assert (verdict.verdict, ranks(verdict)) == ("straggler", {3})
    assert "since step 120" in verdict.findings[0].evidence[0]
    assert verdict.cost.share > 0.1


def test_a_provisional_rank_is_told_and_not_blamed():
    verdict = seen(*slowed(3, 1.5, 120, None), steps=124)
    assert (verdict.verdict, ranks(verdict)) == ("none", set())
    assert "Provisional: rank 3 late since step 120" in verdict.reason


def test_what_has_ended_is_still_told_with_its_end():
    verdict = seen(*slowed(3, 1.5, 120, 180))
    (finding,) = verdict.findings
    assert (finding.kind, finding.ranks, finding.end_step) == ("transient", (3,), 179)
    assert "no more" in verdict.reason


def test_slow_stretches_that_go_round_blame_nobody():
    verdict = seen(*(f for i in range(4) for f in slowed(i, 1.5, 60 + 40 * i, 100 + 40 * i)))
    assert (verdict.verdict, ranks(verdict)) == ("rotating", set())


def test_before_the_noise_is_known_nothing_is_said():
    assert seen(steps=20).verdict == "inconclusive"
    detector = OnlineDetector(SyntheticRun(ranks=8, steps=2, counters=False).data().ranks)
    assert live_verdict(detector).steps is None


def test_a_healthy_job_has_no_straggler():
    verdict = seen()
    assert (verdict.verdict, verdict.findings) == ("none", ())


def test_its_json_is_that_of_every_verdict():
    verdict = seen(*slowed(3, 1.5, 120, None))
    assert json.loads(json.dumps(verdict.to_json()))["findings"][0]["ranks"] == [3]
