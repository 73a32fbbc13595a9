import pytest
from agent_lab import Lab


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "run.starprof.spool")
    yield lab
    lab.close()
