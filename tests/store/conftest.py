import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "spool"))  # spool_parts

from store_parts import new_spool

from starprof.spool.layout import Spool


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    return tmp_path / "job.starprof"


@pytest.fixture
def spool(run_file: Path) -> Spool:
    return new_spool(run_file)
