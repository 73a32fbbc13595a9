from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from reports_fixtures import healthy, make_run, make_verdict

from starprof.model.rundata import RunData, Steps
from starprof.model.verdict import NotCollected, Verdict
from starprof.reports import facts


def with_columns(run: RunData, **columns: list[list[float]]) -> RunData:
    """The run with a few steps whose given columns are exactly these, others NaN."""
    arrays = {name: np.array(values, dtype=float) for name, values in columns.items()}
    ranks, steps = next(iter(arrays.values())).shape
    return replace(
        run,
        ranks=run.ranks[:ranks],
        steps=Steps(np.arange(steps), arrays, np.ones((ranks, steps), dtype=np.int64)),
    )


def test_lateness_of_two_ranks_is_measured_from_the_earlier_one(run: RunData):
    late = facts.lateness_us(with_columns(run, arrival_us=[[100.0], [350.0]]))
    assert late.tolist() == [[0.0], [250.0]]


def test_lateness_when_half_of_the_ranks_are_late_is_measured_from_the_punctual_half(run: RunData):
    late = facts.lateness_us(with_columns(run, arrival_us=[[100.0], [100.0], [300.0], [300.0]]))
    assert late.ravel().tolist() == [0.0, 0.0, 200.0, 200.0]


def test_lateness_ignores_ranks_without_a_record(run: RunData):
    late = facts.lateness_us(with_columns(run, arrival_us=[[np.nan], [100.0], [120.0], [np.nan]]))
    np.testing.assert_array_equal(late.ravel(), [np.nan, 0.0, 20.0, np.nan])


def test_own_time_is_the_step_without_its_collectives(run: RunData):
    own = facts.own_us(with_columns(run, dur_us=[[100.0, 90.0]], blocked_us=[[40.0, np.nan]]))
    np.testing.assert_array_equal(own, [[60.0, np.nan]])


def test_total_time_takes_the_median_rank_of_every_step(run: RunData):
    few = with_columns(run, dur_us=[[1e6, 2e6], [1e6, 2e6], [9e6, np.nan]])
    assert facts.total_seconds(few, healthy(run)) == pytest.approx(3.0)


def test_total_time_fits_the_cost_and_its_share(run: RunData, verdict: Verdict):
    assert facts.total_seconds(run, verdict) == pytest.approx(verdict.cost.seconds / verdict.cost.share)


def test_a_run_without_steps_has_no_total_time(run: RunData):
    assert np.isnan(facts.total_seconds(with_columns(run, dur_us=np.empty((2, 0)).tolist()), healthy(run)))


def test_window_is_the_steps_of_the_finding(run: RunData, verdict: Verdict):
    finding = replace(verdict.findings[0], onset_step=50, end_step=59)
    assert run.steps.steps[facts.window(run, finding)].tolist() == list(range(50, 60))


def test_the_culprit_has_the_longest_own_time_and_blocks_least_inside_the_window(run: RunData, verdict: Verdict):
    medians = facts.rank_medians(run, facts.window(run, verdict.findings[0]))
    assert medians.own.argmax() == 1
    assert medians.blocked.argmin() == 1
    assert medians.late[1] == pytest.approx(30_000, rel=0.1)


def test_of_many_ranks_the_culprit_the_extremes_and_the_median_are_shown():
    many = make_run(ranks=64, culprit=40)
    rows, left_out = facts.telling_rows(many, make_verdict(many, culprit=40), at_most=16)
    own = facts.rank_medians(many, facts.window(many, make_verdict(many).findings[0])).own
    assert 40 in rows
    assert int(own.argmin()) in rows
    assert left_out == 64 - len(rows) > 0


def test_all_ranks_are_shown_where_they_fit(run: RunData, verdict: Verdict):
    assert facts.telling_rows(run, verdict, at_most=16) == ([0, 1, 2, 3], 0)


def test_hook_errors_count_what_the_hook_counted_and_notes_stay_apart(run: RunData):
    events = pd.DataFrame(
        [
            {"kind": "hook-error", "node": 0, "rank": 2, "value": 3.0, "detail": "KeyError at step"},
            {"kind": "hook-error", "node": 0, "rank": 2, "value": 7.0, "detail": "KeyError at step"},
            {"kind": "hook-note", "node": 0, "rank": 0, "value": np.nan, "detail": "no step boundary seen"},
            {"kind": "gc", "node": 0, "rank": 0, "value": 900.0, "detail": None},
        ]
    )
    found = facts.troubles(replace(run, events=events))
    assert [(t.kind, t.place, t.count) for t in found] == [("hook-error", "rank 2", 7), ("hook-note", "rank 0", 1)]


def test_one_missing_source_on_several_nodes_is_told_once(run: RunData):
    unavailable = pd.DataFrame([{"node": n, "source": "nvml", "reason": "no NVIDIA driver"} for n in (0, 1)])
    verdict = replace(healthy(run), not_collected=(NotCollected("nvml", "no NVIDIA driver"),))
    found = facts.missing(replace(run, unavailable=unavailable), verdict)
    assert found == [facts.Missing("nvml", "node 0, node 1", "no NVIDIA driver")]


def test_a_gap_says_how_long_and_how_many_rows(run: RunData):
    gaps = pd.DataFrame(
        [
            {
                "source": "ring",
                "node": 0,
                "rank": 3,
                "from_mono_ns": 1e9,
                "to_mono_ns": 3.5e9,
                "lost_rows": 12.0,
                "reason": "agent was killed",
            }
        ]
    )
    (gap,) = facts.missing(replace(run, gaps=gaps), replace(healthy(run), not_collected=()))
    assert gap == facts.Missing("ring", "rank 3", "agent was killed for 2.5 s (12 rows lost)")


def test_an_agent_that_was_restarted_is_charged_for_both_lives(run: RunData):
    samples = pd.DataFrame(
        {
            "node": 0,
            "mono_ns": [0, 1_000_000_000, 2_000_000_000, 3_000_000_000],
            "cpu_us": [0.0, 4_000.0, 1_000.0, 6_000.0],
            "rss_bytes": 2e7,
            "ticks": [0.0, 10.0, 0.0, 10.0],
            "late_ticks": 0.0,
        }
    )
    (cost,) = facts.agent_costs(replace(run, samples={"agent_sample": samples}))
    assert cost.cpu_share == pytest.approx(0.009 / 3)
    assert cost.late_share == 0.0
