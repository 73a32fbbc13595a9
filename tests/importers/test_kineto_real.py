"""Traces that torch.profiler writes here and now, of real jobs with a real delay."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from free_ports import free_port

pytest.importorskip("torch")

from starprof.analysis import diagnose
from starprof.importers.load import load

pytestmark = pytest.mark.alone

JOB = Path(__file__).with_name("traced_job.py")
DELAY_S = 0.15


def traced(folder, world=2, **job):
    """The traces of a job, as they are loaded."""
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(JOB), str(rank), str(world), str(port), str(folder), json.dumps(job)],
            stderr=subprocess.PIPE,
        )
        for rank in range(world)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=240)
        assert rank.returncode == 0, errors.decode()[-2000:]
    return load([str(folder)])


def named(verdict):
    return {rank for finding in verdict.findings for rank in finding.ranks}


@pytest.mark.e2e
@pytest.mark.parametrize("steps", [14, 30], ids=["from its calls", "from its steps"])
def test_a_rank_that_is_delayed_inside_backward_is_named(tmp_path, steps):
    """Every rank's backward is equally long; only who waits for whom tells them apart."""
    run = traced(tmp_path, steps=steps, slow=1, where="backward", delay_s=DELAY_S)
    assert [r.rank for r in run.ranks] == [0, 1]
    assert len(run.steps.steps) == steps
    verdict = diagnose(run)
    assert verdict.verdict == "straggler"
    assert named(verdict) == {1}
    assert verdict.findings[0].cause == "backward-compute"


@pytest.mark.e2e
@pytest.mark.parametrize(("where", "cause"), [("forward", "forward-compute"), ("loader", "data-loading")])
def test_a_rank_that_is_delayed_before_its_gradients_is_named_with_the_phase(tmp_path, where, cause):
    verdict = diagnose(traced(tmp_path, world=3, slow=0, where=where, delay_s=DELAY_S))
    assert named(verdict) == {0}
    assert verdict.findings[0].cause == cause


@pytest.mark.e2e
def test_under_fsdp2_the_calls_of_all_ranks_are_matched_and_the_delayed_one_is_named(tmp_path):
    run = traced(tmp_path, slow=1, where="backward", delay_s=DELAY_S, fsdp=True)
    assert "unmatched collectives" not in set(run.unavailable["source"])
    verdict = diagnose(run)
    assert named(verdict) == {1}
    assert verdict.findings[0].cause == "backward-compute"


@pytest.mark.e2e
def test_without_marks_of_steps_the_calls_alone_name_the_delayed_rank(tmp_path):
    verdict = diagnose(traced(tmp_path, steps=70, slow=1, where="forward", delay_s=DELAY_S / 3, marks=False))
    assert verdict.steps is None
    assert named(verdict) == {1}


@pytest.mark.e2e
def test_in_a_healthy_job_nobody_is_named(tmp_path):
    assert named(diagnose(traced(tmp_path, world=4))) == set()


@pytest.mark.e2e
@pytest.mark.parametrize("steps", [1, 4])
def test_a_delay_in_few_steps_is_never_blamed_on_the_wrong_rank(tmp_path, steps):
    verdict = diagnose(traced(tmp_path, steps=steps, slow=0, where="backward", delay_s=DELAY_S))
    assert verdict.verdict == "inconclusive"
    assert named(verdict) == set()
    assert "rank 0" in verdict.reason
