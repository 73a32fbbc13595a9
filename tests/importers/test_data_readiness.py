"""Data readiness per rank: whose training starves while the others wait, and who only seems to."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worker_fleets import blamed, loaded, said

from starprof.analysis import diagnose
from starprof.errors import InputError
from starprof.importers.load import load
from starprof.store.query import load_run
from starprof.store.save import save_run


def ready(ranks=8, samples=150, seed=0):
    """Readiness of ranks whose loading keeps up."""
    rng = np.random.default_rng([33, seed])
    return np.clip(1.0 - np.abs(0.01 * rng.standard_normal((ranks, samples))), 0, 1)


def starving(values, rank, start, end):
    result = values.copy()
    result[rank, start:end] = np.random.default_rng(rank).uniform(0, 0.1, end - start)
    return result


def as_json(values, first=1_700_000_000, every=60, names=None, *, texts=False):
    series = {"event_time": [first + every * k for k in range(values.shape[1])]}
    for row, mine in enumerate(values):
        cells = [None if np.isnan(v) else round(float(v), 4) for v in mine]
        series[names[row] if names else str(row)] = ["" if c is None else str(c) for c in cells] if texts else cells
    return json.dumps(series)


def verdict(folder, values, name="readiness.json", **how):
    return diagnose(loaded(folder, as_json(values, **how), name))


def test_ranks_that_keep_up_have_no_straggler(tmp_path):
    result = verdict(tmp_path, ready(32))
    assert (result.verdict, result.findings) == ("none", ())


@pytest.mark.parametrize("texts", [False, True])
def test_the_rank_that_starves_alone_is_named_with_onset_and_end(tmp_path, texts):
    result = verdict(tmp_path, starving(ready(), 5, 40, 100), texts=texts)
    (finding,) = result.findings
    assert (finding.kind, finding.ranks, finding.cause) == ("transient", (5,), "data-loading")
    assert (finding.onset_step, finding.end_step) == (40, 99)


def test_one_straggler_after_the_other_makes_two_findings(tmp_path):
    first, second = verdict(tmp_path, starving(starving(ready(), 4, 0, 60), 0, 70, 150)).findings
    assert (first.ranks, first.onset_step, first.end_step) == ((4,), 0, 59)
    assert (second.ranks, second.onset_step, second.end_step) == ((0,), 70, None)
    assert "one after the other" in verdict(tmp_path, starving(starving(ready(), 4, 0, 60), 0, 70, 150)).reason


def test_a_start_of_an_epoch_in_which_all_starve_blames_nobody(tmp_path):
    values = ready()
    values[:, 60:75] = 0.02
    assert verdict(tmp_path, values).verdict == "none"


def test_onset_hidden_in_a_start_of_an_epoch_is_an_interval(tmp_path):
    values = starving(ready(), 3, 60, 150)
    values[:, 60:75] = 0.02
    (finding,) = verdict(tmp_path, values).findings
    assert finding.onset_interval == (60, 75)


def test_all_ranks_starving_all_the_time_is_uniform(tmp_path):
    result = verdict(tmp_path, np.random.default_rng(0).uniform(0, 0.2, (8, 100)))
    assert result.verdict == "uniform"
    assert not blamed(result)


def test_a_short_dip_is_told_and_not_blamed(tmp_path):
    result = verdict(tmp_path, starving(ready(8, 300), 2, 50, 62))
    assert result.verdict == "none"
    assert "rank 2 in samples 50 to 61" in result.reason


def test_missing_samples_are_no_starving(tmp_path):
    values = ready()
    values[3, 20:120] = np.nan
    assert verdict(tmp_path, values).verdict == "none"


def test_the_cost_is_not_made_up(tmp_path):
    result = verdict(tmp_path, starving(ready(), 5, 40, 100))
    assert result.cost.seconds == 0.0
    assert "cost can't be told" in said(result)


def test_times_of_a_loaders_stage_are_not_taken_for_readiness(tmp_path):
    values = 0.3 + 0.02 * np.random.default_rng(0).standard_normal((8, 60))
    values[3] += 0.15
    result = verdict(tmp_path, values, name="stage.json")
    assert (result.verdict, result.findings) == ("inconclusive", ())
    assert "stage" in result.reason


def test_readiness_survives_the_run_file(tmp_path):
    run = loaded(tmp_path, as_json(starving(ready(), 5, 40, 100)), "readiness.json")
    save_run(run, tmp_path / "kept.starprof")
    assert diagnose(load_run(tmp_path / "kept.starprof")).findings == diagnose(run).findings


@pytest.mark.parametrize(
    "content",
    [
        '{"event_time": [1, 2], "0": [1]}',
        '{"event_time": [1, 2], "0": [1, 1]}',
        '{"event_time": [1, 2], "0": [1, 1], "rank_0": [1, 1]}',
        '{"event_time": [1, 2], "0": [1, 7], "1": [1, 1]}',
        '{"event_time": ["x", 2], "0": [1, 1], "1": [1, 1]}',
        '{"event_time": [1, 2], "0": [null, null], "1": ["", "a"]}',
        '{"event_time": [1e300, 2e300], "0": [1, 1], "1": [1, 1]}',
        '{"event_time": [' + "[" * 50_000,
        '{"event_time": [1, 2], "0": [1,',
    ],
)
def test_what_does_not_fit_together_is_one_clear_line(tmp_path, content):
    with pytest.raises(InputError) as error:
        loaded(tmp_path, content, "readiness.json")
    assert "\n" not in str(error.value)


def test_several_recordings_are_refused(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(as_json(ready()))
    with pytest.raises(InputError, match="2 recordings"):
        load([str(tmp_path)])


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=30), st.integers(0, 2000))
def test_damaged_files_are_read_or_refused_in_one_line(tmp_path, damage, place):
    data = as_json(ready(3, 20)).encode()
    message = ""
    try:
        loaded(tmp_path, data[:place] + damage + data[place + len(damage) :], "readiness.json")
    except InputError as error:
        message = str(error)
    assert "\n" not in message


def test_public_straggler_is_rank_4_first_and_rank_0_later(public_data):
    result = diagnose(load([str(public_data("spdl_dataloading") / "straggler_data_readiness.json")]))
    first, later = result.findings
    assert (first.ranks, later.ranks) == ((4,), (0,))
    assert {f.cause for f in result.findings} == {"data-loading"}
    assert first.onset_step == 0
    assert first.end_step < 90
    assert later.end_step is None


def test_public_healthy_stage_has_no_straggler(public_data):
    assert diagnose(load([str(public_data("spdl_dataloading") / "across_ranks_decompress.json")])).verdict == "none"


@pytest.mark.parametrize("name", ["across_ranks_compose_ave_time", "across_ranks_download"])
def test_public_stage_times_blame_nobody(public_data, name):
    result = diagnose(load([str(public_data("spdl_dataloading") / f"{name}.json")]))
    assert (result.verdict, result.findings) == ("inconclusive", ())


def test_public_fleet_with_two_slow_loaders_names_those_that_its_authors_name(public_data):
    result = diagnose(load([str(public_data("spdl_dataloading") / "across_ranks_data_readiness.json")]))
    assert blamed(result) == {0, 19}
