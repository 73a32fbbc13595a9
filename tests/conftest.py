"""What every test needs."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ALONE = {
    "agent",
    "collectors",
    "demo",
    "e2e",
    "gpu",
    "measured",
    "test_coordinator_strangers.py",
    "test_faults.py",
    "test_random_sequences.py",
    "test_recorded.py",
    "test_slow_interface.py",
}
"""Folders and files whose tests time something or run real jobs: a test beside them would be the noise they measure."""

REAL = ALONE | {"advisor", "control", "hook", "launch", "ps", "serve", "store", "test_kineto_real.py", "wire"}
"""Those whose processes the machine's scheduler may always delay beyond every deadline: a failed one gets another try.

Both tries are told in the summary, so nothing that fails now and then goes unseen. All others are judged at once.
"""

PUBLIC_DATA = Path(os.environ.get("STARPROF_PUBLIC_DATA") or Path(__file__).parents[2] / "shared" / "data")
"""Public traces and measurements with known answers: where the variable says, else beside the project."""

# How long an example takes depends on what else the machine does.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# A shell starts background jobs with Ctrl-C ignored, and our children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    for item in items:
        parts = set(item.path.relative_to(Path(__file__).parent).parts)
        if ALONE & parts:
            item.add_marker(pytest.mark.alone)
        if REAL & parts or item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter):
    """Why a test that got another try failed at first."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"first try of {report.nodeid}", "-")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture
def public_data():
    """Path of one public set by its name; skips the test where the set is not there."""

    def path(name):
        if not (PUBLIC_DATA / name).exists():
            pytest.skip(f"public data set {name} is not at {PUBLIC_DATA}")
        return PUBLIC_DATA / name

    return path
