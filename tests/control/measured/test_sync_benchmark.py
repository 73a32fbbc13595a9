"""What rounds are for, on real jobs of the benchmark's: a slow rank does not slow the others down."""

import json
import subprocess
import sys
from pathlib import Path

from starprof.control import modes

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "sync"
CELLS = "^digits-4 persistent (native|m-sync) 0$"


def benchmark(*words):
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_m_sync_is_faster_than_native_steps_with_a_slow_rank(tmp_path):
    file = tmp_path / "results.jsonl"
    benchmark("run", "--only", CELLS, "--epochs", 1, "--out", file)
    found = {record["how"]: record for record in map(json.loads, file.read_text().splitlines())}
    assert found.keys() == {"native", "m-sync"}
    for record in found.values():
        assert "step_ms" in record, record
        assert record["identical"], record
        assert record["accuracy"] > 0.5
    assert found["native"]["used"] == [1.0] * 4
    assert found["m-sync"]["updates"] > 50
    assert found["m-sync"]["used"][-1] < 0.5, "the slow rank's gradients come too late"
    assert found["m-sync"]["step_ms"] < found["native"]["step_ms"] / 1.5, found
    assert benchmark("run", "--only", CELLS, "--out", file).stderr == "", "what is there is not run again"
    assert "| digits, 4, persistent | m-sync |" in benchmark("tell", "--out", file).stdout


def test_every_mode_that_a_running_job_can_have_is_looked_at():
    cells = benchmark("list").stdout.splitlines()
    assert {cell.split()[2] for cell in cells} >= set(modes.available())
