"""Coordinators and ranks that end with their test."""

import pytest
from coordinator_lab import Coordinator, Job


@pytest.fixture
def begin(tmp_path):
    """Starts a coordinator and its job of some ranks."""
    started = []

    def start(size, *, ranks=True, **settings):
        coordinator = Coordinator(tmp_path, size, **settings)
        started.append(coordinator)
        job = None
        if ranks:
            job = Job(size, lambda: coordinator.address)
            started.append(job)
        return coordinator, job

    yield start
    for one in reversed(started):
        one.end()
