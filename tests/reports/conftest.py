"""Fixtures of the report tests; the makers are in reports_fixtures.py."""

from __future__ import annotations

import pytest
from reports_fixtures import make_run, make_verdict

from starprof.model.rundata import RunData
from starprof.model.verdict import Verdict


@pytest.fixture(scope="session")
def run() -> RunData:
    """Four ranks, 200 steps, rank 1's backward 30 ms longer from step 50 on."""
    return make_run()


@pytest.fixture(scope="session")
def verdict(run: RunData) -> Verdict:
    """What a diagnosis of `run` says."""
    return make_verdict(run)
