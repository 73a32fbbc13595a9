"""Tests that need a GPU: skipped where there is none."""

import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "control" / "running"))

from jobs import Job  # noqa: E402 - from the folder beside


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Starts jobs whose models may go into rounds on a GPU; whatever still runs at the end of the test is killed."""
    monkeypatch.setenv("STARPROF_CONTROL_GPU", "1")
    started = []

    def start(setup, **options):
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Job(folder, {"device": "cuda", **setup}, **options))
        return started[-1]

    yield start
    for each in started:
        each.kill()
