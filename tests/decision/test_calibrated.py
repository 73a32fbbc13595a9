"""What a plan reads from a calibration."""

import math
from types import SimpleNamespace

import pandas as pd
import pytest

from starprof.decision.advice import room
from starprof.decision.advice.nodes import NodeLoad
from starprof.decision.resources import Amount, NodeUse, calibrated, reallocate


def phase(at, kind, level, iteration_s, cores, rate=0.0, mode="native", ranks=2):
    return [
        {
            "node": 0,
            "mono_ns": at,
            "attempt": 0,
            "rank": rank,
            "kind": kind,
            "level": level,
            "mode": mode,
            "options": None,
            "took_us": 5_000_000,
            "steps": 100,
            "iteration_us": None if iteration_s is None else round(iteration_s * 1e6),
            "own_us": None,
            "cores": cores / ranks,
            "bytes_per_s": rate / ranks,
        }
        for rank in range(ranks)
    ]


def job():
    """Two ranks, 2 cores and 1 MB/s in all, iterations of 0.1 s that a delay makes longer by as much."""
    rows = phase(1, "base", None, 0.1, 2.0, 1e6)
    for at, delay_s in ((2, 1.0), (3, 0.025), (4, 0.05)):
        share = 0.1 / (0.1 + delay_s)
        rows += phase(at, "delay", delay_s, 0.1 + delay_s, 2.0 * share, 1e6 * share)
    rows += phase(5, "cores", 1.0, 0.2, 1.0)
    return rows + phase(6, "mode", None, 0.05, 3.5, 4e6, mode="asgd")


def test_what_is_freed_is_that_of_delays_that_plans_make():
    found = calibrated(job())
    # 2 cores of 2 ranks, delayed by a quarter and a half of 0.1 s: 0.4 and 0.667 of 2 cores freed.
    assert found.freed_per_s.cores == pytest.approx((0.025 * 0.4 + 0.05 * 2 / 3) / (0.025**2 + 0.05**2) / 2)
    assert found.freed_by_second.cores == pytest.approx(2.0 * (1 - 0.1 / 1.1) / 2)
    assert found.sensitivity == pytest.approx(1.0)
    assert found.throttled[0].slowdown == pytest.approx(2.0)


def test_a_plan_is_made_of_it():
    found = calibrated(job())
    need = found.need("a", "asgd", 0.9)
    assert need.extra == Amount(1.5, 3e6)
    assert found.need("a", "m-sync", 0.9) is None
    neighbour = found.neighbour("b", slack_s=0.01)
    done = reallocate(NodeUse("n", Amount(4.0, 1e9), Amount(3.0, 1e6), (neighbour,)), need)
    assert not done.refused, done.steps
    assert done.granted.cores == pytest.approx(1.0)
    assert done.delays[0].job == "b"


def test_the_newest_calibration_counts():
    again = [{**row, "mono_ns": row["mono_ns"] + 100} for row in phase(1, "base", None, 0.3, 1.0)]
    found = calibrated([*job(), *again])
    assert found.iteration_s == pytest.approx(0.3)
    assert found.modes == {}
    assert found.neighbour("b") is None


def test_nothing_measured_is_nothing_known():
    found = calibrated([])
    assert math.isnan(found.iteration_s)
    assert found.neighbour("b") is None
    assert calibrated(phase(1, "base", None, None, 1.0)).to_json()["iteration_s"] is None


def test_advice_says_whether_the_node_has_room():
    run = SimpleNamespace(calibrations=pd.DataFrame(job()))
    roomy, full = (NodeLoad("n", Amount(cores, 1e9), Amount(1.0, 0.0), {}, 2) for cores in (8.0, 3.5))
    (plan,) = room.rooms(run, [roomy], [0], "asgd", 0.2)
    assert room.cautions([plan], "asgd") == [
        "asgd was measured to need 1.5 cores and 3 MB/s more on n, and that is free."
    ]
    (plan,) = room.rooms(run, [full], [0], "asgd", 0.2)
    assert "is not free there" in room.cautions([plan], "asgd")[0]
    assert room.rooms(run, [full], [0], "m-sync", 0.2) == []
    assert room.rooms(SimpleNamespace(calibrations=None), [full], [0], "asgd", 0.2) == []
