"""One series of step times for the whole job: what is told of it, and that nobody is ever blamed."""

import numpy as np
import pytest
from series_runs import RESTARTS, SAVES, job_run, judged, noise

from starprof.analysis import diagnose


def kinds(verdict):
    return [finding.kind for finding in verdict.findings]


def test_a_steady_series_is_fine_and_the_reason_says_what_it_cannot_show():
    verdict = judged(10 * noise(300))
    assert verdict.verdict == "none"
    assert verdict.findings == ()
    assert verdict.cost.seconds == 0
    assert "slow from the first step to the last would not show" in verdict.reason


def test_a_lasting_shift_of_six_percent_is_dated_and_measured_and_blames_nobody():
    seconds = 105 * noise(400, cv=0.01)
    seconds[150:] *= 1.057
    verdict = judged(seconds, steps=42_632 + np.arange(400))
    (finding,) = verdict.findings
    assert verdict.verdict == "inconclusive"
    assert finding.kind == "chronic"
    assert finding.ranks == ()
    low, high = finding.onset_interval
    assert low <= 42_782 <= high
    assert high - low < 20
    assert finding.slowdown == pytest.approx(1.057, abs=0.005)
    assert finding.evidence[0].startswith("The job became 5.")
    assert finding.cost_seconds == pytest.approx(105 * 0.057 * 250, rel=0.1)
    assert verdict.cost.seconds == pytest.approx(finding.cost_seconds)
    assert verdict.cost.gpu_hours == pytest.approx(finding.cost_seconds * 64 / 3600, rel=0.01)
    assert "which rank did it can't be told" in verdict.reason
    assert "restart without a part of the nodes" in finding.next


def test_a_shift_that_ends_is_transient():
    seconds = noise(300)
    seconds[100:160] *= 1.5
    (finding,) = judged(seconds).findings
    assert finding.kind == "transient"
    assert abs(finding.onset_step - 100) <= 1
    assert abs(finding.end_step - 159) <= 1


def test_two_regimes_one_worse_than_the_other_are_two_findings():
    usual = [32, 33, 32.5, 32, 33, 32, 34, 32, 33, 32, 33, 32]
    seconds = [*usual, 101, 103, 102, 99, 104, 102, 101, 760, 744, 921, 700, 810]
    verdict = judged(seconds)
    assert verdict.verdict == "inconclusive"
    assert kinds(verdict) == ["chronic", "transient"]
    assert {f.onset_step for f in verdict.findings} == {12, 19}


def test_a_slow_regime_that_comes_and_goes_is_one_finding():
    seconds = noise(600)
    for start in (100, 250, 400):
        seconds[start : start + 60] *= 3.3
    (finding,) = judged(seconds).findings
    assert "3 stretches that come and go" in finding.evidence[0]
    assert finding.cost_seconds == pytest.approx(2.3 * 180, rel=0.05)


def test_stalls_are_listed_by_step_and_size_with_the_cause_unknown():
    seconds = 12 * noise(300, cv=0.005)
    for step, factor in {182: 1.46, 189: 2.02, 225: 1.83, 266: 3.37}.items():
        seconds[step] *= factor
    verdict = judged(seconds)
    assert verdict.verdict == "inconclusive"
    sizes = {f.onset_step: f.slowdown for f in verdict.findings}
    assert sizes == pytest.approx({182: 1.46, 189: 2.02, 225: 1.83, 266: 3.37}, rel=0.02)
    assert all(f.kind == "one-off" and f.cause == "unknown" and not f.ranks for f in verdict.findings)
    assert verdict.cost.seconds == pytest.approx(12 * (0.46 + 1.02 + 0.83 + 2.37), rel=0.05)


def test_a_stall_that_the_log_shows_as_waiting_for_data_has_that_cause_and_still_blames_nobody():
    data = 0.02 * noise(300, cv=0.3, seed=4)
    data[[120, 220]] += 8
    verdict = judged(noise(300, cv=0.01) + data, data_wait_us=data * 1e6)
    assert [(f.onset_step, f.cause, f.ranks) for f in verdict.findings] == [
        (120, "data-loading", ()),
        (220, "data-loading", ()),
    ]
    assert "what the others did is not told" in verdict.findings[0].evidence[1]


def test_a_shift_outside_the_waiting_for_data_is_not_put_down_to_it():
    data = 0.02 * noise(300, cv=0.3, seed=4)
    seconds = noise(300, cv=0.01)
    seconds[150:] *= 1.3
    (finding,) = judged(seconds + data, data_wait_us=data * 1e6).findings
    assert finding.cause == "unknown"


def test_one_cheap_stall_in_a_long_run_is_listed_and_leaves_the_verdict_alone():
    seconds = noise(1000)
    seconds[500] *= 2
    verdict = judged(seconds)
    assert verdict.verdict == "none"
    assert kinds(verdict) == ["one-off"]
    assert verdict.cost.seconds == 0


def test_more_stalls_than_are_shown_one_by_one_are_summed_up():
    seconds = noise(1000, cv=0.01)
    places = np.sort(np.random.default_rng(1).choice(np.arange(10, 990), 14, replace=False))
    seconds[places] *= 2
    verdict = judged(seconds)
    assert len(verdict.findings) == 6
    assert all(str(p) in " ".join(e for f in verdict.findings for e in f.evidence) for p in places)


def test_spikes_at_even_distances_are_periodic_and_no_reason_for_alarm():
    seconds = noise(500)
    seconds[49::50] *= 4
    verdict = judged(seconds)
    assert verdict.verdict == "none"
    (finding,) = verdict.findings
    assert finding.kind == "periodic"
    assert "Every 50 steps" in finding.evidence[0]
    assert finding.cost_seconds == pytest.approx(30, rel=0.1)


def test_periodic_spikes_that_the_log_explains_have_a_cause():
    seconds = noise(500)
    seconds[49::50] *= 4
    verdict = judged(seconds, told=[(SAVES, step) for step in range(49, 500, 50)])
    assert [f.cause for f in verdict.findings] == ["checkpoint"]


def test_stalls_between_periodic_saves_are_told_apart_from_them():
    seconds = noise(500)
    seconds[49::50] *= 4
    seconds[[123, 321]] *= 6
    verdict = judged(seconds)
    assert kinds(verdict) == ["one-off", "one-off", "periodic"]
    assert {f.onset_step for f in verdict.findings[:2]} == {123, 321}


def test_steps_that_take_longer_and_longer_are_a_trend():
    seconds = noise(400) * np.linspace(1, 1.4, 400)
    verdict = judged(seconds)
    assert verdict.verdict == "inconclusive"
    assert kinds(verdict) == ["trend"]
    assert verdict.findings[0].cost_seconds == pytest.approx(0.2 * 400, rel=0.2)


def test_warm_up_at_the_start_and_after_a_restart_is_left_out():
    seconds = noise(300)
    seconds[:4] *= [30, 5, 2, 1.5]
    seconds[150:153] *= [20, 4, 1.6]
    verdict = judged(seconds, told=[(RESTARTS, 150)])
    assert verdict.verdict == "none"
    assert verdict.findings == ()


def test_a_job_that_gets_faster_in_its_first_part_was_settling():
    seconds = noise(400)
    seconds[:60] *= 1.2
    assert judged(seconds).verdict == "none"


def test_a_batch_size_ramp_is_noted_and_no_slowness():
    samples = np.repeat([16, 32, 64, 128], 80)
    verdict = judged(noise(320) * (1 + samples / 16), samples=samples)
    assert verdict.verdict == "none"
    assert "samples of a step (16 to 128) change" in verdict.reason


def test_a_shift_within_one_batch_size_is_found_despite_the_ramp():
    samples = np.repeat([16, 32, 64], [80, 80, 240])
    seconds = noise(400, cv=0.01) * (1 + samples / 16)
    seconds[250:] *= 1.1
    verdict = judged(seconds, samples=samples)
    assert verdict.verdict == "inconclusive"
    assert abs(verdict.findings[0].onset_step - 250) <= 2


def test_lengths_that_change_from_step_to_step_explain_their_own_time():
    tokens = np.random.default_rng(3).integers(1000, 8000, 300)
    verdict = judged(noise(300, cv=0.02) * tokens / 4000, tokens=tokens)
    assert verdict.verdict == "none"
    assert verdict.findings == ()
    assert "exponent" in verdict.reason


def test_records_that_are_means_of_several_steps_cost_as_many_steps():
    seconds = noise(200, cv=0.01)
    seconds[100:] *= 1.2
    (finding,) = judged(seconds, steps=10 * np.arange(1, 201), per_record=10).findings
    assert finding.cost_seconds == pytest.approx(0.2 * 100 * 10, rel=0.1)
    assert finding.onset_step == pytest.approx(1001, abs=10)


def test_too_few_steps_are_no_answer_but_what_was_seen_is_told():
    verdict = judged([105.16, 105.17, 106.25, 110.17, 111.14], steps=range(42_780, 42_785))
    assert verdict.verdict == "inconclusive"
    assert "may be chance" in verdict.reason
    assert verdict.findings == ()


@pytest.mark.parametrize("seconds", [[], [1.0], [np.nan] * 30, [0.0] * 30, [1.0] * 30, [1e-9] * 20 + [1e9] * 20])
def test_odd_series_get_a_verdict(seconds):
    assert judged(seconds).verdict in ("none", "inconclusive")


def test_step_records_of_ranks_are_for_others_to_judge():
    run = job_run(noise(100))
    run.info["timing"] = None
    assert "one series" not in diagnose(run).reason


def test_noise_that_drifts_and_jumps_about_is_no_slowdown():
    recipes = [(n, cv, ar1) for n in (20, 60, 150, 600) for cv in (0.01, 0.05, 0.2) for ar1 in (0.0, 0.5, 0.9)]
    verdicts = [judged(noise(n, cv, ar1, seed=i)) for i, (n, cv, ar1) in enumerate(recipes)]
    assert [v.verdict for v in verdicts] == ["none"] * len(recipes)
    assert not any(v.findings for v in verdicts)
