"""Real jobs on a GPU under control: replicas stay the same, and native steps wait for nothing of ours."""

import os
import signal
import time

import pytest
from test_faults import until
from test_setups import same

PLAN = {"12": ["m-sync", {"m": 1}], "40": ["ssgd", {}], "60": ["native", {}]}
SETUPS = {
    "sgd": {},
    "adamw with clipping and a schedule": {"optimizer": "adamw", "clip": True, "schedule": "cosine"},
    "bfloat16": {"dtype": "bfloat16"},
    "scaler": {"scaler": True, "clip": True, "autocast": True},
    "several buckets": {"model": "large", "ddp": {"bucket_cap_mb": 0.2}},
}


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())
def test_two_ranks_that_share_a_gpu_have_identical_replicas(job, setup):
    running = job({**setup, "ask": PLAN}, world=2)
    told = running.wait()
    same(told)
    assert told[-1]["executed"] < 120, "the slow rank has skipped nothing: " + running.text(1)
    assert told[0]["accuracy"] > 0.3


def test_a_rank_that_was_away_takes_the_state_of_another(job):
    running = job({"ask": {"12": ["m-sync", {"m": 1}]}, "epochs": 4, "usual_s": 0.02, "slow_s": 0.03}, world=2)
    until(running, 0, 40)
    os.kill(running.ranks[1].pid, signal.SIGSTOP)
    time.sleep(6)
    os.kill(running.ranks[1].pid, signal.SIGCONT)
    same(running.wait())


def test_native_steps_with_nccl_never_make_the_host_wait(job):
    told = job({"backend": "nccl", "user": "no host waits", "clip": True, "optimizer": "adamw"}, world=1).wait()
    assert told[0]["executed"] == 120
