"""A short form of benchmarks/fuzz_wire.py."""

import pytest
from wire_fuzz import fuzz


@pytest.mark.parametrize("seed", [1, 2])
def test_random_messages_crash_nothing_and_leave_nothing(seed):
    told = fuzz(4_000, seed)
    assert told["stranger: refused"] > 100
    assert told["proven: taken"] > 500
    assert told["proven: refused"] > 100
