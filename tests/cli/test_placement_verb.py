"""`starprof placement` from end to end."""

import json

import numpy as np
import pytest

from starprof import cli


@pytest.fixture
def runs(tmp_path):
    """A table of runs, of which those on n3 are slow."""
    rng = np.random.default_rng(1)
    rows = ["run,step_time_ms,nodes"]
    for i in range(60):
        nodes = [f"n{n}" for n in rng.choice(10, 3, replace=False)]
        step_ms = (400 if "n3" in nodes else 250) * np.exp(0.02 * rng.standard_normal())
        rows.append(f"r{i},{step_ms:.1f},{' '.join(nodes)}")
    (tmp_path / "runs.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "runs.csv"


def test_the_slow_node_is_named(runs, capsys):
    assert cli.main(["placement", str(runs)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("SLOW NODES: Runs with n3 (1.6")
    assert "60 runs compared" in out


def test_json_is_versioned(runs, capsys):
    assert cli.main(["placement", str(runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["answer"], found["runs"]) == (1, "slow-nodes", 60)
    assert found["nodes"][0]["node"] == "n3"
    assert found["nodes"][0]["status"] == "slow"


def test_without_hosts_there_is_one_clear_line(tmp_path, capsys):
    rows = "".join(f"{step},{worker},{5 + worker}\n" for step in range(9) for worker in range(2))
    (tmp_path / "t.csv").write_text("step,worker,time_ms\n" + rows)
    assert cli.main(["placement", str(tmp_path / "t.csv")]) == 1
    assert "no run with step times and hosts" in capsys.readouterr().err
