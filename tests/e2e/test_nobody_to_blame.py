"""Slow or healthy, but no rank is a straggler."""

import pytest
from harness import Setting, assert_blames_nobody, run

from starprof.demo.faults import Fault

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("attempt", range(5))
def test_a_healthy_job_has_no_straggler(tmp_path, attempt):
    outcome = run(tmp_path, Setting(steps=80 + 20 * attempt))
    assert_blames_nobody(outcome, verdict="none")


def test_checkpoints_of_rank_0_are_periodic_work_and_no_straggler(tmp_path):
    script = ("--checkpoint-every=10", "--checkpoint-mb=100", f"--checkpoint={tmp_path / 'checkpoint.pt'}")
    outcome = run(tmp_path, Setting(steps=120, script=script))
    assert_blames_nobody(outcome, verdict="none")
    assert [(f["kind"], f["cause"]) for f in outcome.verdict["findings"]] == [("periodic", "checkpoint")]


def test_more_of_everything_on_every_rank_is_uniform(tmp_path):
    outcome = run(tmp_path, Setting(Fault("everything", rank=-1, step=50, delay_ms=15), steps=120))
    assert_blames_nobody(outcome, verdict="uniform")
    (finding,) = outcome.verdict["findings"]
    assert finding["kind"] == "uniform"
    assert abs(finding["onset_step"] - outcome.onset) <= 3
    assert finding["cost_seconds"] == pytest.approx(outcome.delay_seconds, rel=0.2)
