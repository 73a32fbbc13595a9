"""Jobs whose parameters are in half precision: replicas stay the same bits, and rounds of all are as native steps."""

import pytest
import torch
from test_setups import PLAN, same

SETUPS = {
    "bfloat16": {"dtype": "bfloat16"},
    "float16 with clipping": {"dtype": "float16", "clip": True},
    "bfloat16 and float32": {"dtype": "mixed", "optimizer": "adamw", "model": "large", "ddp": {"bucket_cap_mb": 0.2}},
}


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())
def test_replicas_in_half_precision_are_identical(job, setup):
    running = job({**setup, "ask": PLAN})
    told = running.wait()
    same(told)
    assert told[0]["executed"] > 80
    assert told[-1]["executed"] < 120, "the slow rank has skipped nothing: " + running.text(3)
    assert told[0]["accuracy"] > 0.3


def test_rounds_of_all_are_as_native_steps(job):
    setup = {"dtype": "mixed", "user": "keeps its parameters", "epochs": 1, "batches": 24, "slow_s": 0.003}
    jobs = [job(setup, control=False), job({**setup, "ask": {"10": ["ssgd", {}]}})]
    for running in jobs:
        same(running.wait())
    native, rounds = (torch.load(running.folder / "parameters.pt") for running in jobs)
    assert {one.dtype for one in native} == {torch.bfloat16, torch.float32}
    for one, other in zip(native, rounds, strict=True):
        # Native steps add up halves; fourteen rounds on, that is a bit or two.
        assert (one - other).abs().max() <= 4 * torch.finfo(torch.bfloat16).eps * one.abs().max()
    assert not all(torch.equal(one, other) for one, other in zip(native, rounds, strict=True)), "no round was made"
