"""Starting real recordings and looking at what they leave behind."""

import contextlib
import os
import signal
import subprocess
import sys

import duckdb
import pytest
from launch_lab import Recording, processes


@pytest.fixture
def launch(tmp_path):
    """Start `starprof record ARGUMENTS` in `tmp_path` (or `cwd`), and leave nothing running."""
    started = []

    def start(*arguments, cwd=tmp_path, env=None, prefix=(), program=(sys.executable, "-m", "starprof"), **options):
        process = subprocess.Popen(
            [*prefix, *program, "record", *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(process)
        return Recording(cwd, process)

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
    for pid in processes(str(tmp_path)):  # before the pipes are read to their end: they hold them open
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in started:
        process.communicate()


@pytest.fixture
def query():
    """Rows of a SELECT in a run file."""

    def rows(run_file, select):
        with duckdb.connect(str(run_file), read_only=True) as connection:
            return connection.execute(select).fetchall()

    return rows
