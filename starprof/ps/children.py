"""Processes of a parameter server: what they are started with, and where they listen."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from pathlib import Path

from starprof.errors import TransportError
from starprof.model import env
from starprof.ps.speech import TOKEN

START_S = 60.0


def call_oneself(name: str) -> None:
    """Have this process go by a name that tells what it is, where the kernel lets it; see `model.serverprocesses`."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def environ_of(secret: str) -> dict[str, str]:
    """For a server's processes: never recorded themselves, and with the secret."""
    left_out = {env.SPOOL, env.CONTROL, "PYTHONPATH"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    home = os.environ.get(env.HOME) or str(Path(__file__).resolve().parents[2])
    return {**kept, "PYTHONPATH": home, TOKEN: secret}


def listening(process: subprocess.Popen[bytes], log: Path | None = None) -> tuple[str, int]:
    """Where a process listens that says so in its first line.

    Raises:
        TransportError: it doesn't.
    """
    assert process.stdout is not None
    line, deadline_s = b"", time.monotonic() + START_S
    while not line.endswith(b"\n"):
        left_s = deadline_s - time.monotonic()
        ready = left_s > 0 and select.select([process.stdout], [], [], left_s)[0]
        more = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not more:
            process.kill()
            process.wait()
            raise TransportError(f"a process of the parameter server has not started{f': see {log}' if log else ''}")
        line += more
    process.stdout.close()
    host, port = json.loads(line)["listening"]
    return str(host), int(port)
