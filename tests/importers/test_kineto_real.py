"""Traces that torch.profiler writes here and now, of a real job with a real delay."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from starprof.analysis import diagnose
from starprof.importers.load import load

pytestmark = pytest.mark.alone

JOB = Path(__file__).with_name("ddp_job.py")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def traced(folder, steps, slow, delay_s, world=2):
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(JOB), str(rank), str(world), str(port), str(steps), str(slow), str(delay_s),
             str(folder)],
            stderr=subprocess.PIPE,
        )
        for rank in range(world)
    ]  # fmt: skip
    for rank in ranks:
        _, errors = rank.communicate(timeout=240)
        assert rank.returncode == 0, errors.decode()[-2000:]
    return load([str(folder)])


@pytest.mark.e2e
@pytest.mark.parametrize("steps", [14, 30], ids=["from its calls", "from its steps"])
def test_a_rank_that_is_delayed_inside_backward_is_named(tmp_path, steps):
    """Every rank's backward is equally long; only who waits for whom tells them apart."""
    run = traced(tmp_path, steps=steps, slow=1, delay_s=0.15)
    assert [r.rank for r in run.ranks] == [0, 1]
    assert len(run.steps.steps) == steps
    verdict = diagnose(run)
    assert verdict.verdict == "straggler"
    assert {rank for f in verdict.findings for rank in f.ranks} == {1}
    assert verdict.findings[0].cause == "backward-compute"


@pytest.mark.e2e
def test_a_delay_in_few_steps_is_never_blamed_on_the_wrong_rank(tmp_path):
    verdict = diagnose(traced(tmp_path, steps=4, slow=0, delay_s=0.15))
    assert verdict.verdict == "inconclusive"
    assert not any(f.ranks for f in verdict.findings)
