"""One rank is delayed in a known place by a known time."""

import pytest
from harness import Setting, assert_blames, run

from starprof.demo.faults import Fault

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("layer", ["first", "last"])
def test_a_delay_in_backward_is_named_although_every_rank_s_backward_takes_equally_long(tmp_path, layer):
    """The ranks' backward wall times are equal: DDP makes all wait for the slow rank's last gradient."""
    outcome = run(tmp_path, Setting(Fault("backward", rank=1, step=30, delay_ms=200, layer=layer), steps=60))
    finding = assert_blames(outcome, rank=1, causes={"backward-compute"}, cost_seconds=outcome.delay_seconds)
    assert finding["cause_share"] >= 0.8


def test_a_slow_data_loader_is_named(tmp_path):
    outcome = run(tmp_path, Setting(Fault("loader", rank=2, step=40, delay_ms=80)))
    assert_blames(outcome, rank=2, causes={"data-loading"}, cost_seconds=outcome.delay_seconds)


def test_a_slow_forward_is_named(tmp_path):
    outcome = run(tmp_path, Setting(Fault("forward", rank=3, step=40, delay_ms=80)))
    assert_blames(outcome, rank=3, causes={"forward-compute"}, cost_seconds=outcome.delay_seconds)


def test_a_slow_optimizer_is_named(tmp_path):
    outcome = run(tmp_path, Setting(Fault("optimizer", rank=2, step=40, delay_ms=60)))
    assert_blames(outcome, rank=2, causes={"optimizer"}, cost_seconds=outcome.delay_seconds)


def test_twenty_milliseconds_are_found(tmp_path):
    outcome = run(tmp_path, Setting(Fault("backward", rank=0, step=60, delay_ms=20), steps=160))
    assert_blames(outcome, rank=0, causes={"backward-compute"}, cost_seconds=outcome.delay_seconds)


def test_six_milliseconds_of_a_66_ms_step_are_found(tmp_path):
    setting = Setting(
        Fault("backward", rank=2, step=100, delay_ms=6), steps=300, ranks=3, script=("--accelerator-ms=60",)
    )
    outcome = run(tmp_path, setting)
    if outcome.noise_seconds > 0.006:
        pytest.skip(
            f"healthy steps of this job vary by {outcome.noise_seconds * 1000:.1f} ms: 6 ms do not stand out here"
        )
    # So small a delay hides in part behind the others' noise, and the job's own times show it only roughly.
    truths = (outcome.delay_seconds, outcome.lost_seconds)
    assert_blames(outcome, rank=2, causes={"backward-compute"}, cost_seconds=truths)


def test_half_a_second_in_every_tenth_step_is_found_with_its_shape(tmp_path):
    fault = Fault("backward", rank=1, step=40, delay_ms=500, every=10)
    outcome = run(tmp_path, Setting(fault, steps=160))
    finding = assert_blames(outcome, rank=1, causes={"backward-compute"}, cost_seconds=outcome.delay_seconds)
    assert finding["kind"] in {"periodic", "transient"}
    assert any("10" in line for line in finding["evidence"]), finding["evidence"]


def test_garbage_collection_is_named(tmp_path):
    outcome = run(tmp_path, Setting(Fault("gc", rank=1, step=40, every=5), steps=120))
    assert_blames(outcome, rank=1, causes={"gc"}, cost_seconds=outcome.delay_seconds)
