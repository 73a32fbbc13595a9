"""Stalls of data loading: one slow worker of a loader, batches of one kind, and a single rank against its own steps."""

from dataclasses import replace

import numpy as np
import pytest
from verdicts import blamed, only_finding, words

from starprof.analysis import diagnose
from starprof.analysis.batch_kind import kind_words, stalled_steps
from starprof.analysis.settings import DEFAULT
from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.model import causes

STEPS = np.arange(100)


def one_in(workers, slow, ranks=(0,), of=1, us=40_000.0, steps=240):
    """Ranks that wait at every n-th step, as with n loader workers of which one is slow."""
    faults = (Slow("data_wait", ranks, us=us, every=workers, start=slow),)
    return SyntheticRun(of, steps, faults=faults, counters=False).data()


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_one_slow_worker_of_the_only_rank_is_no_rank_s_fault(workers):
    verdict = diagnose(one_in(workers, slow=1))
    finding = only_finding(verdict)
    assert (verdict.verdict, blamed(verdict)) == ("none", set())
    assert (finding.kind, finding.cause) == ("periodic", causes.DATA_LOADING)
    assert f"a loader with {workers} workers" in words(finding)
    assert f"worker {1 if workers > 1 else 0} of {workers}" in words(finding)


def test_loaders_that_all_have_a_slow_worker_blame_no_rank():
    verdict = diagnose(one_in(4, slow=2, ranks=None, of=8))
    assert (verdict.verdict, blamed(verdict)) == ("none", set())
    assert only_finding(verdict).cause == causes.DATA_LOADING


def test_a_rank_whose_loader_has_a_slow_worker_is_named_with_that_reason():
    verdict = diagnose(one_in(5, slow=1, ranks=(3,), of=4))
    finding = only_finding(verdict)
    assert (finding.ranks, finding.cause) == ((3,), causes.DATA_LOADING)
    assert "every 5th batch" in words(finding)


def test_waits_at_random_steps_are_no_worker_s():
    run = SyntheticRun(1, 240, faults=(Slow("data_wait", None, us=40_000.0, share=0.25),), counters=False)
    assert "worker" not in " ".join(words(f) for f in diagnose(run.data()).findings)


def test_single_stalls_of_the_only_rank_are_told_with_what_to_try():
    run = SyntheticRun(1, 200, faults=(Slow("data_wait", None, us=4e6, start=80, end=81),), counters=False)
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.kind, finding.onset_step) == ("none", "one-off", 80)
    assert "second time" in finding.next
    assert "nobody to compare it with" in verdict.reason


def test_stalls_of_one_kind_of_batch_name_the_kind():
    tokens = np.where(STEPS % 8 == 3, 20_736.0, 5_184.0)
    (line,) = kind_words(np.array([43, 51, 59, 75]), STEPS, {"tokens": tokens})
    assert "20736 tokens or more, as 13 % of all steps do" in line


def test_the_smallest_batches_can_be_a_kind_too():
    samples = np.where(STEPS % 10 == 0, 1.0, 32.0)
    (line,) = kind_words(np.array([20, 40, 60]), STEPS, {"samples": samples})
    assert "1 samples or less" in line


@pytest.mark.parametrize(
    ("stalled", "size"),
    [
        pytest.param([43, 51, 60], np.where(STEPS % 8 == 3, 2.0, 1.0), id="one of another kind"),
        pytest.param([43, 51], np.where(STEPS % 8 == 3, 2.0, 1.0), id="two only"),
        pytest.param([1, 3, 5, 7], np.where(STEPS % 2 == 1, 2.0, 1.0), id="a kind that half of the steps are of"),
        pytest.param([43, 51, 59], np.ones(100), id="sizes that do not change"),
        pytest.param([43, 51, 59], np.where(STEPS == 51, np.nan, np.where(STEPS % 8 == 3, 2.0, 1.0)), id="not known"),
    ],
)
def test_chance_is_no_kind(stalled, size):
    assert kind_words(np.array(stalled), STEPS, {"tokens": size}) == []


def test_a_stall_is_a_wait_that_stands_out_by_much_of_a_step():
    waits = np.where(STEPS % 8 == 3, 3e6, 1e6)
    waits[43] = 40e6
    assert stalled_steps(waits, 15e6, DEFAULT).tolist() == [43]


def test_batches_of_one_kind_are_told_from_the_memory_that_they_need():
    stalls = tuple(Slow("data_wait", (1,), us=3e6, start=k, end=k + 1) for k in (43, 91, 140, 171))
    data = SyntheticRun(2, 200, gpus=True, faults=stalls).data()
    samples = data.samples["gpu_sample"].copy()
    starts = data.steps.start_mono_ns[1]
    for k in (43, 75, 91, 120, 140, 171):
        inside = (samples["mono_ns"] >= starts[k]) & (samples["mono_ns"] < starts[k + 1])
        samples.loc[inside, "memory_used_bytes"] = 70e9
    verdict = diagnose(replace(data, samples={**data.samples, "gpu_sample": samples}))
    assert "70 GB of GPU memory in use or more" in " ".join(words(f) for f in verdict.findings)
