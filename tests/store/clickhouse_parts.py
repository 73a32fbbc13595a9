"""A ClickHouse engine for tests: see `chdb_server`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

SERVER = Path(__file__).with_name("chdb_server.py")
WAIT_S = 60

needs_engine = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("chdb", "clickhouse_connect")),
    reason="chdb or clickhouse-connect is not installed",
)


@dataclass
class Engine:
    """A running server."""

    process: subprocess.Popen[str]
    port: int

    @classmethod
    def start(cls, folder: Path, secret: str = "", port: int = 0) -> Self:
        argv = [sys.executable, str(SERVER), str(folder), str(port), secret]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return cls(process, int(process.stdout.readline()))

    @property
    def url(self) -> str:
        return f"clickhouse://127.0.0.1:{self.port}/starprof"

    def misbehave(self, how: str, table: str, which: int = 1) -> None:
        """Once, at one of the next inserts into the table."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{how} {table} {which}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ready\n"

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
