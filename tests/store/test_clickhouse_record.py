"""`starprof record --store`: a real job into a database, from its first step to its verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from clickhouse_parts import Engine, needs_engine

from starprof.errors import UsageError
from starprof.launch import start
from starprof.store.clickhouse.address import parse
from starprof.store.clickhouse.transfer import runs_in
from starprof.store.query import load_run

pytestmark = needs_engine

SCRIPT = """
import os, torch
assert "STARPROF_CLICKHOUSE_PASSWORD" not in os.environ
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_a_job_is_recorded_into_the_database(engine: Engine, tmp_path: Path) -> None:
    before = {run.run_id for run in runs_in_if_any(engine)}
    job = [sys.executable, "-c", SCRIPT]
    recorded = subprocess.run(
        [sys.executable, "-m", "starprof", "record", "--store", engine.url, "-o", "named", "--", *job],
        cwd=tmp_path,
        env={**os.environ, "STARPROF_CLICKHOUSE_PASSWORD": "any"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert recorded.returncode == 0, recorded.stderr
    (run,) = (run for run in runs_in(parse(engine.url)) if run.run_id not in before)
    assert f"now: starprof summary {engine.url}/{run.run_id}" in recorded.stderr
    assert (run.name, run.ranks) == ("named", 1)
    read = load_run(f"{engine.url}/{run.run_id}")
    assert read.steps.steps.tolist() == list(range(20))
    assert (read.info["exit_code"], read.info["note"]) == (0, "")
    assert list(tmp_path.iterdir()) == []  # neither file nor spool


def runs_in_if_any(engine: Engine):
    from starprof.store.clickhouse import client

    connection = client.connect(parse(engine.url))
    try:
        client.prepare(connection, parse(engine.url))
    finally:
        connection.close()
    return runs_in(parse(engine.url))


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ({"store": "postgres://localhost"}, "is no database"),
        ({"store": "clickhouse://localhost", "join": "localhost:1"}, "belongs to node 0"),
        ({"store": "clickhouse://localhost", "max_size": "1G"}, "is for run files"),
        ({"store": "clickhouse://localhost/db/run"}, "gets an id of its own"),
    ],
)
def test_what_can_not_be_is_refused_before_the_job_starts(
    wish: dict[str, str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STARPROF_TOKEN", "x" * 40)
    with pytest.raises(UsageError, match=why):
        start.decide(start.Wish(command=("true",), **wish), os.environ)
