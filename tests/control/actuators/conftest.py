import pytest
from actuators_lab import Running

from starprof.control.actuators import hand
from starprof.model import env


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """Journals of a test are its own."""
    folder = tmp_path / "state"
    monkeypatch.setenv(env.STATE, str(folder))
    return folder


@pytest.fixture
def running(tmp_path):
    """Starts jobs that end with the test."""
    jobs = []

    def start(**options):
        jobs.append(Running(tmp_path / f"job{len(jobs)}", **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A job of two ranks to which everything may be done."""
    started = Running(tmp_path_factory.mktemp("job"), allow="all")
    yield started.ready()
    started.kill()


@pytest.fixture
def job(shared, state):
    """The same for each test, as it was before."""
    yield shared
    hand.take_back(shared.here.key)
