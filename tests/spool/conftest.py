from pathlib import Path

import pytest
from spool_parts import TinyRing


@pytest.fixture
def tiny_ring(tmp_path: Path) -> TinyRing:
    return TinyRing(tmp_path / "n0-17-99.ring")
