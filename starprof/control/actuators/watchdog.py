"""`python -P -m starprof.control.actuators.watchdog`: waits until its parent is gone, and puts back what that has left.

The parent holds the other end of our standard input; a kill of any kind closes it. Where both are killed, whatever of
starprof starts next does the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from starprof.control.actuators.repair import repair

ALL_IS_WELL = b"done"
ENDS_S = 60.0
"""A parent that was told to end takes no longer."""


@contextmanager
def watched() -> Iterator[None]:
    """As long as this lasts, somebody puts back what this process leaves when it is killed."""
    argv = [sys.executable, "-P", "-m", "starprof.control.actuators.watchdog"]
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), home]))
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdin is not None
    try:
        yield
    except BaseException:
        process.stdin.close()  # it looks through what is left as soon as this process has ended
        raise
    with suppress(BrokenPipeError):
        process.stdin.write(ALL_IS_WELL)
        process.stdin.close()
    process.wait()


def main() -> None:
    """Until the parent is gone."""
    parent = os.getppid()
    if os.read(0, 16) == ALL_IS_WELL:
        return
    deadline_s = time.monotonic() + ENDS_S
    while os.getppid() == parent and time.monotonic() < deadline_s:
        time.sleep(0.02)
    repair()


if __name__ == "__main__":
    main()
