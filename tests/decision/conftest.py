"""Decisions are held against the policies at work, as the tests of the policies play them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "sync"))
