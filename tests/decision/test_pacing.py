"""Rates with which workers of a node send, so that it stays below its limit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starprof.decision.resources import Amount, Sender, pace

NODE = Amount(8.0, 1000.0)


def sender(name: str = "w", size: float = 100.0, ready: float = 0.5, deadline: float = 1.0, **more: float) -> Sender:
    return Sender(name, size, ready, deadline, **more)


def test_whoever_has_time_sends_just_in_time():
    pacing = pace([sender("a"), sender("b", deadline=1.5)], NODE)
    assert pacing.bytes_per_s == pytest.approx({"a": 200.0, "b": 100.0})
    assert pacing.late_s == 0.0


def test_otherwise_all_are_late_by_the_same_least_time():
    pacing = pace([sender("a"), sender("b")], Amount(8.0, 200.0))
    # 180 bytes/s for 200 bytes: 1.111 s instead of half a second.
    assert pacing.late_s == pytest.approx(200.0 / 180.0 - 0.5)
    assert pacing.bytes_per_s == pytest.approx({"a": 90.0, "b": 90.0})
    assert pacing.total.bytes_per_s == pytest.approx(180.0)


def test_processors_limit_rates_too():
    pacing = pace([sender(cores_per_byte_per_s=0.01)], Amount(1.0, 1000.0))
    assert pacing.bytes_per_s["w"] == pytest.approx(90.0)


def test_a_slow_connection_is_late_by_itself():
    assert pace([sender(most_bytes_per_s=50.0)], NODE).late_s == pytest.approx(1.5)


def test_what_others_use_is_left_to_them():
    assert pace([sender()], NODE, used=Amount(0.0, 800.0)).late_s == pytest.approx(0.5)


def test_a_full_node_is_refused():
    pacing = pace([sender()], NODE, used=Amount(0.0, 950.0))
    assert (pacing.bytes_per_s, pacing.late_s) == ({}, math.inf)
    assert "not enough" in pacing.refused


def test_next_to_no_time_is_none():
    assert pace([sender(ready=0.0, deadline=1e-310)], NODE).late_s == pytest.approx(100.0 / 900.0)


def test_nobody_needs_nothing():
    assert pace([], NODE).bytes_per_s == {}


@pytest.mark.parametrize("wrong", [{"size": 0.0}, {"ready": -1.0}, {"deadline": math.nan}, {"most_bytes_per_s": 0.0}])
def test_a_sender_out_of_range_is_an_error(wrong: dict):
    with pytest.raises(ValueError, match="out of range"):
        sender(**wrong)


senders_ = st.lists(
    st.tuples(st.floats(1.0, 1e3), st.floats(0.0, 2.0), st.floats(0.0, 3.0), st.floats(0.0, 0.01)),
    min_size=1,
    max_size=4,
).map(
    lambda rows: [
        sender(f"w{at}", size, ready, ready + more, cores_per_byte_per_s=cores)
        for at, (size, ready, more, cores) in enumerate(rows)
    ]
)


@settings(max_examples=40, deadline=None)
@given(senders_, st.floats(10.0, 2e3), st.integers(0, 2**32 - 1))
def test_no_other_rates_make_the_latest_less_late(senders, rate, seed):
    node = Amount(8.0, rate)
    pacing = pace(senders, node)
    if pacing.refused:
        return
    rates = np.array([pacing.bytes_per_s[s.worker] for s in senders])
    assert pacing.total.within(node.times(0.9 + 1e-9))
    ready = np.array([s.ready_s for s in senders])
    sizes = np.array([s.size_bytes for s in senders])
    deadlines = np.array([s.deadline_s for s in senders])
    assert (ready + sizes / rates <= deadlines + pacing.late_s + 1e-6).all()
    # Random divisions of the whole node, scaled so that they fit.
    others = np.random.default_rng(seed).dirichlet(np.ones(len(senders)), size=500) * 0.9 * rate
    cores = others @ np.array([s.cores_per_byte_per_s for s in senders])
    others *= np.minimum(1.0, 0.9 * 8.0 / np.maximum(cores, 1e-12))[:, None]
    late = (ready + sizes / np.maximum(others, 1e-12) - deadlines).max(axis=1)
    assert late.min() >= pacing.late_s - 1e-6 or pacing.late_s == 0.0
