"""`starprof simulate`: several modes side by side, from recorded and from synthetic workers."""

import json

import numpy as np
import pytest

from starprof.cli import main


def told(capsys, *args):
    assert main(["simulate", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_modes_side_by_side(capsys):
    result = told(capsys, "--mode", "ssgd", "--mode", "m-sync m=7", "--iterations", "100", "--phi", "50")
    ssgd, m_sync = result["modes"]
    assert result["schema"] == 1
    assert [ssgd["mode"], m_sync["mode"]] == ["ssgd", "m-sync m=7"]
    assert ssgd["seconds_to_target"] == pytest.approx(100 * 1.0, rel=0.05)  # one of eight is twice as slow
    assert m_sync["seconds_to_target"] < 0.7 * ssgd["seconds_to_target"]
    assert m_sync["dropped_share"] > 0


def test_a_table_for_people(capsys):
    assert main(["simulate", "--kind", "even", "--iterations", "20", "--workers", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "mode"
    assert lines[1].split()[:3] == ["ssgd", lines[1].split()[1], "1.00"]
    assert len(lines) == 9


def test_equal_seeds_give_equal_results(capsys):
    args = ("--kind", "heavy-tailed", "--iterations", "30", "--mode", "asgd", "--seed")
    assert told(capsys, *args, "5") == told(capsys, *args, "5")
    assert told(capsys, *args, "5")["modes"] != told(capsys, *args, "6")["modes"]


def test_workers_of_another_tools_table(tmp_path, capsys):
    """The last worker takes twice as long: the sum of the rates in asgd, the slowest in ssgd."""
    random = np.random.default_rng(0)
    rows = ["step,worker,iteration_ms"]
    rows += [f"{i},{w},{(100, 100, 200)[w] * random.uniform(0.99, 1.01):.3f}" for i in range(200) for w in range(3)]
    (tmp_path / "times.csv").write_text("\n".join(rows))
    result = told(capsys, str(tmp_path / "times.csv"), "--mode", "ssgd", "--mode", "asgd", "--iterations", "100")
    assert result["workers"] == 3
    ssgd, asgd = result["modes"]
    assert ssgd["updates_per_s"] == pytest.approx(5.0, rel=0.03)
    assert asgd["updates_per_s"] == pytest.approx(25.0, rel=0.03)


def test_training_for_real(capsys):
    result = told(capsys, "--train", "mlp", "--rate", "0.3", "--iterations", "80", "--mode", "ssgd", "--workers", "4")
    (ssgd,) = result["modes"]
    assert ssgd["accuracy"] > 0.8
    assert ssgd["stopped"] == "progress"


@pytest.mark.parametrize(
    "args",
    [("--kind", "odd"), ("--mode", "fast"), ("--mode", "m-sync"), ("--train", "gpt"), ("--exchange", "post")],
    ids=" ".join,
)
def test_what_does_not_exist_is_refused(args, capsys):
    assert main(["simulate", *args]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_kinds_are_listed(capsys):
    assert main(["simulate", "--kind", "list"]) == 0
    assert "rotating" in capsys.readouterr().out.split()
