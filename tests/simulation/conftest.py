"""Public measurements, where they are: `STARPROF_PUBLIC_DATA`, else `shared/data` beside the project."""

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("STARPROF_PUBLIC_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture
def public_data():
    """Path of one set by its name; skips the test where the set is not there."""

    def path(name):
        if not (DATA / name).exists():
            pytest.skip(f"public data set {name} is not at {DATA}")
        return DATA / name

    return path
