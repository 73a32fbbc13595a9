"""Parameter servers that end with their test."""

import pytest
from ps_lab import Lab


@pytest.fixture
def lab(tmp_path):
    """Starts a parameter server."""
    started = []

    def start(workers, name="job", **told):
        one = Lab(tmp_path / name, workers, **told)
        started.append(one)
        return one

    yield start
    for one in started:
        one.end()
