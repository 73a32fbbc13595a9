import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "spool"))  # spool_parts

from clickhouse_parts import Engine
from store_parts import new_spool

from starprof.spool.layout import Spool


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    return tmp_path / "job.starprof"


@pytest.fixture
def spool(run_file: Path) -> Spool:
    return new_spool(run_file)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A ClickHouse engine that all tests of this process share; each has runs of its own in it."""
    engine = Engine.start(tmp_path_factory.mktemp("clickhouse"))
    yield engine
    engine.stop()
