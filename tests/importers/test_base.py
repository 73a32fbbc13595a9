"""The builder that all importers end in: what no run may hold is refused there, once for all."""

import numpy as np
import pandas as pd
import pytest

from starprof.analysis import diagnose
from starprof.errors import InputError
from starprof.importers.base import common_name, run_of
from starprof.importers.source import Source
from starprof.model.rundata import RankInfo
from starprof.model.tables.trace import COLLECTIVE
from starprof.store.query import load_run
from starprof.store.save import save_run

SOURCES = [Source("logs/a.log", None)]


def build(*, ranks=(0, 1), steps=(0, 1, 2), dur_us=1e5, **given):
    columns = {"dur_us": np.full((len(ranks), len(steps)), dur_us)}
    return run_of("x", SOURCES, ranks=[RankInfo(r, 0, "") for r in ranks], steps=list(steps), columns=columns, **given)


def test_steps_follow_each_other_when_no_start_is_told():
    assert build().steps.start_mono_ns[0].tolist() == [1, 100_000_001, 200_000_001]


def test_step_without_a_record_has_no_start():
    run = run_of("x", SOURCES, ranks=[RankInfo(0, 0, "")], steps=[0, 1], columns={"dur_us": np.array([[np.nan, 5.0]])})
    assert run.steps.start_mono_ns.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"ranks": (1, 1)},
        {"steps": (0, 1, 1)},
        {"steps": (2, 1, 0)},
        {"dur_us": -1.0},
        {"dur_us": np.inf},
        {"dur_us": 1e300},
    ],
)
def test_what_cannot_be_true_is_refused_in_one_line(wrong):
    with pytest.raises(InputError) as refused:
        build(**wrong)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("column", ["start_us", "dur_us", "min_dur_us", "std_dur_us"])
@pytest.mark.parametrize("value", [1e300, np.inf, -np.inf])
def test_calls_of_impossible_length_are_refused(column, value):
    calls = pd.DataFrame([{**dict.fromkeys(COLLECTIVE.names), "rank": 0, "dur_us": 1.0, column: value}])
    with pytest.raises(InputError, match="too large"):
        build(collectives=calls)


def test_a_table_without_rows_is_none_as_in_a_run_file():
    run = build(collectives=pd.DataFrame(columns=list(COLLECTIVE.names)))
    assert run.collectives is None
    assert run.operations is None


def test_run_is_named_by_its_file_or_by_what_its_files_share():
    assert build().info["name"] == "a.log"
    assert common_name([Source("x/logs/a", None), Source("x/logs/b", None)]) == "logs"
    assert common_name([Source("t.tar!a/r0", None), Source("t.tar!b/r1", None)]) == "t.tar"


def test_what_rounds_to_no_microsecond_is_none_kept_or_not(tmp_path):
    times = np.full((1, 30), 2.5e6)
    times[0, 7] = 1e-314
    run = run_of("mllog", SOURCES, ranks=[RankInfo(0, 0, "")], steps=range(30), columns={"dur_us": times}, timing="job")
    assert run.steps["dur_us"][0, 7] == 0
    save_run(run, tmp_path / "kept.starprof")
    assert diagnose(load_run(tmp_path / "kept.starprof")).to_json() == diagnose(run).to_json()


@pytest.mark.filterwarnings("error")
def test_a_short_run_without_any_rank_s_own_time_is_inconclusive():
    columns = {"dur_us": np.full((2, 3), np.nan), "blocked_us": np.full((2, 3), 5.0)}
    run = run_of("x", SOURCES, ranks=[RankInfo(r, 0, "") for r in (0, 1)], steps=range(3), columns=columns)
    assert diagnose(run).verdict == "inconclusive"
