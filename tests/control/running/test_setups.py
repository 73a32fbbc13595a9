"""Real jobs of four processes that are moved through modes while they run: at the end all ranks are the same."""

import pytest

PLAN = {"12": ["m-sync", {"m": 3}], "40": ["asgd", {}], "60": ["ssgd", {}], "75": ["native", {}]}
SETUPS = {
    "sgd": {},
    "adamw with clipping, a schedule and an average": {
        "optimizer": "adamw",
        "clip": True,
        "schedule": "cosine",
        "average": True,
    },
    "groups with a cycle and bucket views": {
        "optimizer": "groups",
        "schedule": "cycle",
        "ddp": {"gradient_as_bucket_view": True},
    },
    "two optimizers and several buckets": {
        "optimizer": "two",
        "clip": True,
        "model": "large",
        "ddp": {"bucket_cap_mb": 0.2},
    },
    "accumulation and loader workers": {"accumulate": 2, "batches": 80, "clip": True, "workers": 2},
    "scaler": {"scaler": True, "clip": True},
    "autocast and evaluation by all": {"autocast": True, "optimizer": "adamw", "user": "evaluation"},
    "unused parameters": {"model": "unused", "ddp": {"find_unused_parameters": True}, "optimizer": "adamw"},
    "static graph and tied parameters": {"model": "tied", "ddp": {"static_graph": True}},
    "batch norm, compiled": {"model": "bn", "user": "compile"},
}


def same(told):
    first = told[0]
    for other in told[1:]:
        for what in ("parameters", "optimizers", "schedules", "rates", "scaler", "average"):
            assert other[what] == first[what], (what, first, other)


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())
def test_replicas_are_identical(job, setup):
    running = job({**setup, "ask": PLAN})
    told = running.wait()
    same(told)
    iterations = 3 * setup.get("batches", 40) // setup.get("accumulate", 1)
    assert told[0]["executed"] > 80
    assert told[-1]["executed"] < iterations, "the slow rank has skipped nothing: " + running.text(3)
    assert told[0]["accuracy"] > 0.3
