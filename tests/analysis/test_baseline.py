"""A run against one that is known as good: what everybody is slower in, how much, and that nobody is blamed."""

from dataclasses import replace

import numpy as np
import pytest

from starprof.analysis import diagnose
from starprof.analysis.baseline import against, clean_sibling, profile_of, with_sibling
from starprof.analysis.synthetic.faults import Slow
from starprof.analysis.synthetic.run import SyntheticRun
from starprof.model.rundata import RankInfo

PHASES = ("data_wait", "h2d", "forward", "backward", "optimizer", "unaccounted")
EVERYTHING = dict.fromkeys(PHASES, 10.0)


def healthy(seed=1, **recipe):
    return SyntheticRun(ranks=8, steps=120, seed=seed, **recipe).data()


def scaled(run, **factors):
    """The same run with phases (and `blocked`) of every rank that many times as long."""
    columns = dict(run.steps.columns)
    for phase, factor in factors.items():
        name = f"{phase}_us"
        columns["dur_us"] = columns["dur_us"] + (factor - 1.0) * np.nan_to_num(columns[name])
        columns[name] = columns[name] * factor
    return replace(run, steps=replace(run.steps, columns=columns))


def job_series(run):
    """The same run as a log tells it: one series for the whole job."""
    steps = replace(
        run.steps,
        columns={"dur_us": run.steps["dur_us"][:1]},
        start_mono_ns=run.steps.start_mono_ns[:1],
    )
    info = {**run.info, "timing": "job", "source_format": "mllog"}
    return replace(run, info=info, ranks=(RankInfo(0, 0, ""),), steps=steps, samples={})


def judged(run, *baselines):
    return against(diagnose(run), profile_of(run), [profile_of(b) for b in baselines])


def test_all_parts_ten_times_slower_alike_are_a_suspicion_of_the_launch():
    found = judged(scaled(healthy(), **EVERYTHING), healthy(2))
    (finding,) = found.findings
    assert (found.verdict, finding.kind, finding.cause) == ("uniform", "uniform", "configuration")
    assert finding.ranks == ()
    assert "OMP_NUM_THREADS" in finding.action
    assert 9 < finding.slowdown < 11


def test_communication_alone_is_network_or_transport():
    found = judged(scaled(healthy(), blocked=20.0), healthy(2))
    assert (found.verdict, found.findings[0].cause) == ("uniform", "network-path")
    assert found.findings[0].ranks == ()


@pytest.mark.parametrize(
    ("phase", "factor", "cause"),
    [
        ("data_wait", 20.0, "data-loading"),
        ("h2d", 60.0, "host-to-device"),
        ("forward", 2.0, "forward-compute"),
        ("backward", 2.0, "backward-compute"),
        ("optimizer", 6.0, "optimizer"),
    ],
)
def test_one_part_alone_is_named(phase, factor, cause):
    found = judged(scaled(healthy(), **{phase: factor}), healthy(2))
    assert (found.verdict, found.findings[0].cause, found.findings[0].ranks) == ("uniform", cause, ())


def test_forward_and_backward_alone_are_computing_of_unknown_cause():
    found = judged(scaled(healthy(), forward=2.0, backward=2.0), healthy(2))
    assert found.findings[0].cause == "unknown"
    assert "forward and backward" in " ".join(found.findings[0].evidence)


def test_parts_that_have_nothing_in_common_are_listed_and_not_named():
    found = judged(scaled(healthy(), data_wait=12.0, backward=1.6), healthy(2))
    assert found.findings[0].cause == "unknown"
    assert "waiting for data" in " ".join(found.findings[0].evidence)


def test_the_cost_is_what_the_steps_take_longer():
    slow, good = scaled(healthy(), forward=2.0), healthy()
    finding = judged(slow, good).findings[0]
    lost = (slow.steps["dur_us"] - good.steps["dur_us"])[0].sum() / 1e6
    assert finding.cost_seconds == pytest.approx(lost, rel=0.1)


def test_a_healthy_run_is_as_fast_as_its_baseline():
    for seed in range(2, 12):
        found = judged(healthy(seed), healthy(seed + 100))
        assert (found.verdict, found.findings) == ("none", ())
        assert "as fast as" in found.reason


def test_a_straggler_stays_the_answer_where_it_explains_the_difference():
    run = SyntheticRun(ranks=8, steps=200, seed=3, faults=(Slow("backward", ranks=(3,), factor=2.0),)).data()
    found = judged(run, SyntheticRun(ranks=8, steps=200, seed=4).data())
    assert found.verdict == "straggler"
    assert [f.ranks for f in found.findings] == [(3,)]
    assert "late ranks" in found.reason or "explain" in found.reason


def test_another_number_of_ranks_is_not_compared():
    found = judged(scaled(healthy(), **EVERYTHING), SyntheticRun(ranks=4, steps=120, seed=2).data())
    assert found.verdict == "none"
    assert "4 ranks" in found.reason


def test_another_size_of_batch_is_not_compared():
    good = healthy(2)
    tokens = {"tokens": np.full(good.steps["dur_us"].shape, 1000.0)}
    many = {"tokens": np.full(good.steps["dur_us"].shape, 2000.0)}
    slow = scaled(healthy(), forward=2.0)
    found = judged(
        replace(slow, steps=replace(slow.steps, columns=slow.steps.columns | many)),
        replace(good, steps=replace(good.steps, columns=good.steps.columns | tokens)),
    )
    assert found.findings == ()
    assert "batches differ" in found.reason


def test_baselines_that_differ_among_themselves_widen_the_doubt():
    slow = scaled(healthy(), forward=1.2)
    assert judged(slow, healthy(2), healthy(3)).findings != ()
    assert judged(slow, healthy(2), scaled(healthy(3), forward=1.3)).findings == ()


def test_a_series_of_the_whole_job_tells_how_much_but_not_that_everybody_is_slow():
    found = judged(job_series(scaled(healthy(), **EVERYTHING)), job_series(healthy(2)))
    assert found.verdict == "inconclusive"
    assert found.findings[0].cause == "unknown"
    assert "don't tell" in found.reason


def test_stalls_with_a_clean_sibling_are_not_the_programs_own():
    calm, stalled = job_series(healthy(5, cv=0.005)), job_series(healthy(6, cv=0.005))
    stalled.steps.columns["dur_us"][0, [60, 90]] *= 3.0
    verdict, profile = diagnose(stalled), profile_of(stalled)
    assert verdict.findings
    sibling = clean_sibling(verdict, profile, [(verdict, profile), (diagnose(calm), profile_of(calm))])
    assert sibling is not None
    told = with_sibling(verdict, sibling, "calm")
    assert "sibling run calm" in told.reason
    assert told.findings[0].ranks == ()


def test_a_sibling_with_other_step_times_tells_nothing():
    calm, stalled = job_series(scaled(healthy(5, cv=0.005), forward=1.5)), job_series(healthy(6, cv=0.005))
    stalled.steps.columns["dur_us"][0, [60, 90]] *= 3.0
    known = [(diagnose(calm), profile_of(calm))]
    assert clean_sibling(diagnose(stalled), profile_of(stalled), known) is None


def test_a_run_without_step_times_is_not_compared():
    verdict = diagnose(healthy())
    assert "step times" in against(verdict, None, [profile_of(healthy(2))]).reason
