import pytest
from jobs import Job


@pytest.fixture
def job(tmp_path):
    """Starts jobs; whatever still runs at the end of the test is killed."""
    started = []

    def start(setup, **options):
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Job(folder, setup, **options))
        return started[-1]

    yield start
    for each in started:
        each.kill()
