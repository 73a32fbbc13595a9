import time

import pytest
from host_lab import RANK_PIDS, FakeHost, HostRows


@pytest.fixture(autouse=True)
def reads_cost_nothing(monkeypatch):
    """What is read less often on a slow machine would make these tests depend on the machine (see test_notes)."""
    monkeypatch.setattr(time, "thread_time_ns", lambda: 0)


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path / "host", rank_pids=dict(RANK_PIDS), own_pids={100, 120}, supervisor_pid=100)


@pytest.fixture
def rows():
    return HostRows()
