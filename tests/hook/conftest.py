import pytest
from hook_job import Job


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)
