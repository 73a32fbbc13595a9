"""What every test needs."""

import signal
from pathlib import Path

import pytest

ALONE = {"agent", "collectors", "demo", "e2e", "hook", "launch", "test_coordinator_strangers.py", "test_faults.py"}
"""Folders and files whose tests time something or run real jobs: a test beside them would be the noise they measure."""

# A shell starts background jobs with Ctrl-C ignored, and our children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    for item in items:
        if ALONE & set(item.path.relative_to(Path(__file__).parent).parts):
            item.add_marker(pytest.mark.alone)
