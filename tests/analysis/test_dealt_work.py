"""Work that is dealt out unevenly: larger batches and heavier stages make ranks late, and no device is to blame."""

from dataclasses import replace

import numpy as np
import pytest
from verdicts import blamed, only_finding, words

from starprof.analysis import diagnose
from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.model import causes

COMPUTE = ("forward", "backward")
STAGES = [{"pp": i // 2, "dp": i % 2} for i in range(8)]


def with_batches(run, ratio, exponent=1.0, **columns):
    """The run with forward and backward in proportion to `ratio` (R, S), and these size columns."""
    own = run.own_us
    for phase in COMPUTE:
        own[phase] *= ratio**exponent
    data = run.data()
    sizes = {name: values * np.ones(ratio.shape) for name, values in columns.items()}
    return replace(data, steps=replace(data.steps, columns={**data.steps.columns, **sizes}))


def with_roles(data, roles):
    return replace(data, ranks=tuple(replace(i, role=r) for i, r in zip(data.ranks, roles, strict=True)))


def lengths(seed, ranks=8, steps=300, sigma=0.3):
    return np.exp(sigma * np.random.default_rng(seed).standard_normal((ranks, steps)))


def run(**recipe):
    return SyntheticRun(**{"ranks": 8, "steps": 300, "counters": False, **recipe})


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.6])
@pytest.mark.parametrize("seed", range(3))
def test_sequences_of_changing_length_are_workload_skew_and_blame_nobody(seed, exponent):
    ratio = lengths(seed)
    verdict = diagnose(with_batches(run(seed=seed), ratio, exponent, tokens=np.rint(4096 * ratio)))
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause, finding.kind) == ("workload-skew", causes.SEQUENCE_LENGTH, "rotating")
    assert blamed(verdict) == set()
    assert "tokens" in words(finding)


def test_the_gain_is_what_even_batches_would_save():
    ratio = lengths(1)
    uneven = with_batches(run(seed=1, cv=0.01), ratio, tokens=np.rint(4096 * ratio))
    even = run(seed=1, cv=0.01).seconds()
    verdict = diagnose(uneven)
    centre = np.median(ratio, axis=0)
    as_peers = run(seed=1, cv=0.01)
    for phase in COMPUTE:
        as_peers.own_us[phase] *= np.minimum(ratio, centre)
    skewed = run(seed=1, cv=0.01)
    for phase in COMPUTE:
        skewed.own_us[phase] *= ratio
    assert even > 0
    assert verdict.cost.seconds == pytest.approx(skewed.seconds() - as_peers.seconds(), rel=0.2)


def test_one_rank_with_longer_batches_all_the_time_is_no_straggler():
    ratio = np.ones((8, 300))
    ratio[3] = 1.3
    finding = only_finding(diagnose(with_batches(run(), ratio, samples=32 * ratio)))
    assert (finding.ranks, finding.kind, finding.cause) == ((), "chronic", causes.BATCH_IMBALANCE)
    assert "Rank 3" in words(finding)


def test_uneven_micro_batches_are_named_rather_than_the_samples_and_tokens_in_them():
    ratio = np.ones((8, 300))
    ratio[3] = 5 / 4
    data = with_batches(run(), ratio, micro_batches=4 * ratio, samples=32 * ratio, tokens=4096 * ratio)
    finding = only_finding(diagnose(data))
    assert (finding.ranks, finding.cause) == ((), causes.BATCH_IMBALANCE)
    assert "micro-batches" in words(finding)


def test_a_rank_slower_than_its_larger_batch_explains_is_a_straggler_too():
    ratio = np.ones((8, 300))
    ratio[3] = 1.25
    slow = run(faults=tuple(Slow(p, (3,), factor=1.5) for p in COMPUTE))
    assert blamed(diagnose(with_batches(slow, ratio, samples=32 * ratio))) == {3}


def test_a_slow_rank_is_found_among_batches_of_changing_length():
    ratio = lengths(2, sigma=0.15)
    slow = run(seed=2, faults=tuple(Slow(p, (5,), factor=1.4, start=100) for p in COMPUTE))
    verdict = diagnose(with_batches(slow, ratio, tokens=np.rint(4096 * ratio)))
    assert (verdict.verdict, blamed(verdict)) == ("straggler", {5})
    assert {f.cause for f in verdict.findings if not f.ranks} <= {causes.SEQUENCE_LENGTH}


def test_sizes_that_time_does_not_follow_explain_nothing():
    ratio = lengths(3)
    slow = run(faults=(Slow("backward", (1,), us=20_000, start=100),))
    verdict = diagnose(with_batches(slow, ratio, 0.0, tokens=np.rint(4096 * ratio)))
    assert (verdict.verdict, blamed(verdict)) == ("straggler", {1})


def test_a_slow_rank_that_is_given_less_is_not_late_and_not_named():
    ratio = np.ones((8, 300))
    ratio[3] = 0.7
    slow = run(faults=tuple(Slow(p, (3,), factor=1 / 0.7) for p in COMPUTE))
    assert diagnose(with_batches(slow, ratio, samples=32 * ratio)).verdict == "none"


def test_sizes_that_were_not_recorded_explain_nothing():
    slow = run(faults=(Slow("backward", (1,), us=20_000, start=100),))
    assert blamed(diagnose(with_batches(slow, np.ones((8, 300)), tokens=np.nan))) == {1}


def test_a_heavy_stage_is_one_structural_finding():
    heavy = run(faults=(Slow("backward", (6, 7), us=20_000),))
    verdict = diagnose(with_roles(heavy.data(), STAGES))
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.kind, finding.cause) == ("structural", "structural", causes.PIPELINE_STAGE)
    assert (finding.ranks, finding.role) == ((), {"pp": 3})
    assert finding.cost_seconds == pytest.approx(heavy.cost_seconds(), rel=0.2)


def test_a_slow_rank_of_a_heavy_stage_is_named_beside_the_stage():
    faults = (Slow("backward", (6, 7), us=60_000), Slow("forward", (7,), us=30_000))
    verdict = diagnose(with_roles(run(faults=faults).data(), STAGES))
    assert (verdict.verdict, blamed(verdict)) == ("straggler", {7})
    assert [f.role for f in verdict.findings if f.cause == causes.PIPELINE_STAGE] == [{"pp": 3}]


def test_one_slow_rank_of_a_stage_does_not_make_the_stage_heavy():
    verdict = diagnose(with_roles(run(faults=(Slow("backward", (7,), us=30_000, start=100),)).data(), STAGES))
    assert blamed(verdict) == {7}
    assert causes.PIPELINE_STAGE not in {f.cause for f in verdict.findings}


def test_a_stage_held_by_one_rank_says_that_its_device_may_be_slow_as_well():
    data = SyntheticRun(ranks=4, steps=300, counters=False, faults=(Slow("backward", (2,), us=30_000),)).data()
    verdict = diagnose(with_roles(data, [{"pp": i} for i in range(4)]))
    finding = only_finding(verdict)
    assert (finding.kind, finding.ranks) == ("structural", ())
    assert "can't be told" in words(finding)
    assert finding.next


@pytest.mark.parametrize("seed", range(8))
def test_healthy_stages_and_batches_are_no_finding(seed):
    ratio = lengths(seed, sigma=0.002)
    data = with_batches(run(seed=seed, cv=0.08, spread=0.02), ratio, tokens=np.rint(4096 * ratio))
    assert diagnose(with_roles(data, STAGES)).verdict == "none"
