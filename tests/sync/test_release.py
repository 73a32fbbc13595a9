"""Whoever a decision releases hears of it, whatever else the same decision does."""

from starprof.sync.policies import Gradient, create
from starprof.sync.protocol.coordinator import Coordinator
from starprof.sync.protocol.messages import Arrive, Close, Go, Hello, Prepared


def test_a_late_gradient_that_is_dropped_as_a_round_closes_is_told_so():
    coordinator = Coordinator(range(3))
    coordinator.switch(lambda ranks, version: create("deadline", ranks, {"after_s": 1.0}, version))
    for rank in range(3):
        coordinator.told(Hello(rank, 0, 0))
    for rank in range(3):
        coordinator.told(Prepared(rank, 1, 2))
    coordinator.told(Arrive(0, Gradient(0, 0, 2), 2), 0.0)
    coordinator.woken(1.0)
    coordinator.told(Arrive(0, Gradient(0, 1, 3), 3), 2.0)
    # The round of that gradient is due at 3.0; this one of the round before comes first.
    said = coordinator.told(Arrive(2, Gradient(2, 0, 2), 2), 3.5)
    assert {rank for rank, message in said if isinstance(message, Close)} == {0, 1, 2}
    assert [(rank, m.number, m.kept) for rank, m in said if isinstance(m, Go)] == [(2, 0, False)]
