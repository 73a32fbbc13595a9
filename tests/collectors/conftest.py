import pytest
from host_lab import RANK_PIDS, FakeHost, HostRows


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path / "host", rank_pids=dict(RANK_PIDS), own_pids={100, 120}, supervisor_pid=100)


@pytest.fixture
def rows():
    return HostRows()
