"""The running job's detector: what it says when, and that it agrees with the offline one on the same steps."""

from dataclasses import replace

import numpy as np
import pytest
from live import events, live, slowed, stream

from starprof.analysis import diagnose
from starprof.analysis.live.detector import OnlineDetector
from starprof.analysis.settings import DEFAULT
from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.errors import InputError


def run(factor=1.0, start=0, end=None, who=3, **recipe):
    faults = slowed(who, factor, start, end) if factor != 1.0 else ()
    return SyntheticRun(**{"ranks": 8, "steps": 300, "cv": 0.05, "counters": False, "faults": faults, **recipe})


def statuses(found):
    return [(finding.status, finding.rank) for _, finding in found]


@pytest.mark.parametrize(("ranks", "seed"), [(4, 0), (16, 1), (16, 2), (128, 3)])
def test_one_and_a_half_times_is_seen_within_three_steps_and_marked_provisional(ranks, seed):
    step, first = events(run(1.5, 120, ranks=ranks, seed=seed, steps=140))[0]
    assert (first.status, first.rank) == ("provisional", 3)
    assert step <= 122
    assert abs(first.onset_step - 120) <= 1


def test_it_is_confirmed_when_it_has_lasted_as_long_as_the_offline_rules_ask():
    found = events(run(1.5, 120))
    assert statuses(found) == [("provisional", 3), ("confirmed", 3)]
    assert found[1][0] <= 120 + DEFAULT.min_slow_steps + 2


def test_six_percent_is_seen_within_thirty_steps_in_nine_of_ten_jobs_with_little_noise():
    seen = [events(run(1.06, 150, seed=seed, cv=0.03, ranks=16, steps=181)) for seed in range(10)]
    assert sum(bool(found) and found[0][1].rank == 3 for found in seen) >= 9


def test_six_percent_in_more_noise_is_seen_when_that_can_be_told():
    found = [events(run(1.06, 150, seed=seed, ranks=16, steps=250)) for seed in range(5)]
    assert all({finding.rank for _, finding in one} == {3} for one in found)


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_a_one_off_is_never_confirmed_and_withdrawn_when_it_is_over(length):
    found = events(run(3.0, 120, 120 + length))
    assert [status for status, _ in statuses(found)] in ([], ["provisional", "withdrawn"])


def test_the_end_is_seen_and_a_second_slowness_of_the_same_rank_too():
    first, second = slowed(3, 1.5, 100, 160), slowed(3, 1.5, 200, None)
    found = events(run(faults=first + second))
    assert statuses(found) == [(s, 3) for s in ("provisional", "confirmed", "ended", "provisional", "confirmed")]
    assert abs(found[2][1].end_step - 159) <= 3
    assert abs(found[3][1].onset_step - 200) <= 3


def test_slow_from_the_first_step_on_starts_there():
    detector = live(run(1.3))
    (finding,) = detector.findings
    assert (finding.rank, finding.from_start, finding.onset_step) == (3, True, 0)


def test_the_first_slow_steps_of_a_job_are_warm_up():
    assert events(run(faults=slowed(3, 30.0, 0, 6), steps=150)) == []


def test_size_and_cost_are_those_of_the_injected_slowness():
    slow = run(1.4, 100)
    (finding,) = live(slow).findings
    assert finding.slowdown == pytest.approx(1.4, rel=0.05)
    assert finding.lost_us / 1e6 == pytest.approx(slow.cost_seconds(), rel=0.1)


def test_two_slow_ranks_are_two_findings():
    faults = slowed(3, 1.5, 100, None) + slowed(6, 1.3, 150, None)
    assert {finding.rank for finding in live(run(faults=faults)).findings} == {3, 6}


@pytest.mark.parametrize("ranks", [2, 3])
def test_few_ranks_are_enough(ranks):
    assert {f.rank for _, f in events(run(1.5, 120, who=1, ranks=ranks))} == {1}


def test_half_of_the_ranks_slow_from_the_start_are_named_and_nobody_else():
    slow = tuple(fault for who in (4, 5, 6, 7) for fault in slowed(who, 2.5, 0, None))
    assert {finding.rank for finding in live(run(faults=slow)).findings} == {4, 5, 6, 7}


def test_everybody_slower_at_once_is_nobodys_fault():
    everybody = tuple(fault for who in range(8) for fault in slowed(who, 1.5, 120, None))
    assert events(run(faults=everybody)) == []


def test_a_heavy_stage_is_compared_with_itself():
    heavy = tuple(fault for who in (6, 7) for fault in slowed(who, 1.6, 0, None))
    data, own, blocked = stream(run(faults=heavy + slowed(6, 1.2, 150, None)))
    ranks = [replace(info, role={"pp": info.rank // 2, "dp": info.rank % 2}) for info in data.ranks]
    detector = OnlineDetector(ranks)
    for step in range(own.shape[1]):
        detector.observe(step, own[:, step], blocked[:, step])
    assert {finding.rank for finding in detector.findings} == {6}


def test_missing_records_neither_accuse_nor_end_a_slowness():
    data, own, blocked = stream(run(1.5, 100, ranks=16))
    holes = np.random.default_rng(0).random(own.shape) < 0.2
    own[holes] = np.nan
    blocked[holes] = np.nan
    own[:, 200:210] = np.nan
    own[3, 220:240] = np.nan
    detector = OnlineDetector(data.ranks)
    found = [f for k in range(own.shape[1]) for f in detector.observe(k, own[:, k], blocked[:, k])]
    assert {finding.rank for finding in found} == {3}
    assert [f.status for f in found] == ["provisional", "confirmed"]


def test_a_rank_without_any_record_is_left_out():
    data, own, blocked = stream(run(1.5, 100))
    own[5], blocked[5] = np.nan, np.nan
    detector = OnlineDetector(data.ranks)
    for step in range(own.shape[1]):
        detector.observe(step, own[:, step], blocked[:, step])
    assert {finding.rank for finding in detector.findings} == {3}


def test_memory_does_not_grow_with_the_job():
    detector = live(run(steps=900, ranks=8))
    small = live(run(steps=560, ranks=8))

    def held(one):
        return sum(v.nbytes for v in vars(one._ring).values() if isinstance(v, np.ndarray))

    assert held(detector) == held(small)


@pytest.mark.parametrize(
    ("step", "own", "message"),
    [(5, [1.0, 2.0, 3.0], "3 own"), (0, [1.0] * 8, "must grow")],
)
def test_a_step_that_does_not_fit_is_an_input_error(step, own, message):
    detector = OnlineDetector(run().data().ranks)
    detector.observe(1, np.ones(8), np.ones(8))
    with pytest.raises(InputError, match=message):
        detector.observe(step, own, np.ones(len(own)))


def test_impossible_times_count_as_missing():
    data, own, blocked = stream(run(1.5, 100, ranks=16))
    own[5, ::7], own[6, ::9], blocked[7, ::5] = -1.0, np.inf, -np.inf
    detector = OnlineDetector(data.ranks)
    for step in range(own.shape[1]):
        detector.observe(step, own[:, step], blocked[:, step])
    assert {finding.rank for finding in detector.findings} == {3}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("factor", "start", "end"), [(1.5, 100, None), (1.2, 120, None), (1.3, 80, 180), (1.25, 0, None)]
)
def test_online_and_offline_name_the_same_rank_with_onsets_three_steps_apart_at_most(factor, start, end, seed):
    slow = run(factor, start, end, seed=seed, ranks=16, cv=0.03)
    (offline,) = diagnose(slow.data()).findings
    detector = live(slow)
    online = [*detector.findings, *(f for f in detector.history if f.status == "ended")]
    assert [finding.rank for finding in online] == list(offline.ranks)
    assert abs(online[0].onset_step - offline.onset_step) <= 3
    if end is not None:
        assert abs(online[0].end_step - offline.end_step) <= 3


@pytest.mark.parametrize(
    "fault",
    [
        (Slow("backward", us=50_000, rotating=True),),
        (Slow("backward", (2,), us=500_000, start=150, end=151),),
    ],
)
def test_what_is_nobodys_fault_confirms_nobody(fault):
    assert [f for _, f in events(run(faults=fault, cv=0.08)) if f.status == "confirmed"] == []


@pytest.mark.parametrize(("recipe", "holes"), [({"ranks": 16}, 0.0), ({"ranks": 5, "steps": 700}, 0.1)])
def test_steps_that_come_together_are_judged_as_if_they_came_one_by_one(recipe, holes):
    data, own, blocked = stream(run(faults=slowed(1, 1.5, 120, 180) + slowed(2, 1.3, 220, None), **recipe))
    own[np.random.default_rng(0).random(own.shape) < holes] = np.nan
    one_by_one, together = OnlineDetector(data.ranks), OnlineDetector(data.ranks)
    found = [f for k in range(own.shape[1]) for f in one_by_one.observe(k, own[:, k], blocked[:, k])]
    assert [f.status for f in found] == ["provisional", "confirmed", "ended", "provisional", "confirmed"]
    assert list(together.observe_many(np.arange(own.shape[1]), own, blocked)) == found
    assert together.run_us == pytest.approx(one_by_one.run_us)


def test_of_steps_that_do_not_grow_none_is_taken_in():
    detector = OnlineDetector(run().data().ranks)
    with pytest.raises(InputError, match="Step 4 came after step 4"):
        detector.observe_many([3, 4, 4], np.ones((8, 3)), np.ones((8, 3)))
    assert detector.last_step is None
