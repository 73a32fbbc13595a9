"""Logs with a line per worker and time: what is taken from them, and what a hot node says about its own workers."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worker_fleets import blamed, fleet, loaded, said

from starprof.analysis import diagnose
from starprof.errors import InputError
from starprof.importers.load import load

TOTALS = {0: 1.0, 1: 6.9, 2: 6.8, 3: 1.1, 4: 6.7, 5: 1.2, 6: 6.9, 7: 6.6, 8: 1.2, 9: 6.6, 10: 6.7, 11: 6.75}


def totals(values=TOTALS, form="rank: {rank}, total_time={value}"):
    return "starting\n" + "".join(form.format(rank=r, value=v) + "\n" for r, v in values.items()) + "done\n"


def durations(run):
    return run.steps.columns["dur_us"]


@pytest.mark.parametrize(
    "form",
    [
        "rank: {rank}, total_time={value}",
        "[rank {rank}] total_time = {value}",
        "INFO worker={rank} elapsed: {value}",
        "Rank {rank}: compute_time={value} other=3",
    ],
)
def test_lines_with_a_worker_and_a_time_are_read(tmp_path, form):
    run = loaded(tmp_path, totals(form=form), "run.log")
    assert [info.rank for info in run.ranks] == list(range(12))
    assert (durations(run)[:, 0] / run.ranks[0].detail["scale"]).tolist() == pytest.approx(list(TOTALS.values()))


@pytest.mark.parametrize(
    ("form", "micros"),
    [
        ("rank {rank} step_time_ms: {value}", 1e3),
        ("rank {rank} took_time={value}s", 1e6),
        ("rank {rank} time: {value} ms", 1e3),
        ("rank {rank} elapsed={value} us", 1.0),
    ],
)
def test_units_come_from_the_name_or_stand_behind_the_number(tmp_path, form, micros):
    run = loaded(tmp_path, totals(form=form), "run.log")
    assert durations(run)[1, 0] == pytest.approx(6.9 * micros, abs=0.5)


def test_step_numbers_place_the_times(tmp_path):
    values = fleet(workers=4, samples=40)
    text = "".join(f"rank={r} step={k} step_time_ms={values[r, k]:.3f}\n" for k in range(40) for r in range(4))
    run = loaded(tmp_path, text, "run.log")
    assert list(run.steps.steps) == list(range(40))
    assert np.allclose(durations(run), values * 1e3, atol=1)


def test_a_file_per_worker_is_one_run(tmp_path):
    for rank in range(4):
        lines = [f"rank {rank} step {k} compute_time_ms={100 + 30 * rank + k % 3}" for k in range(20)]
        (tmp_path / f"rank{rank}.log").write_text("\n".join(lines))
    assert len(load([str(tmp_path)]).ranks) == 4


def test_the_slow_majority_is_named_against_the_fast_ones(tmp_path):
    result = diagnose(loaded(tmp_path, totals(), "run.log"))
    (finding,) = result.findings
    assert finding.ranks == (1, 2, 4, 6, 7, 9, 10, 11)
    assert finding.confidence < 0.8
    assert "one value per worker" in said(result)


def test_one_value_each_of_equal_workers_blames_nobody(tmp_path):
    rng = np.random.default_rng(2)
    result = diagnose(loaded(tmp_path, totals({r: round(1 + 0.1 * rng.random(), 4) for r in range(12)}), "run.log"))
    assert result.verdict == "inconclusive"
    assert not blamed(result)


def test_a_hot_node_that_all_share_is_told_and_not_blamed(tmp_path):
    hosts = "".join(f"gather: {r} (n1): {v}\n" for r, v in TOTALS.items())
    (tmp_path / "run.log").write_text(totals() + hosts)
    (tmp_path / "sensors.log").write_text("Node: n1\nSocket id 0, Core 0: 91 C\nSocket id 0, Core 1: 95 C\n")
    result = diagnose(load([str(tmp_path)]))
    (finding,) = result.findings
    assert finding.cause == "unknown"
    assert finding.nodes == ()
    assert "91 to 95 C" in said(result)
    assert "does not tell them apart" in said(result)


def test_temperatures_alone_are_no_run(tmp_path):
    with pytest.raises(InputError, match="temperatures only"):
        loaded(tmp_path, "Node: n1\nSocket id 0, Core 0: 91 C\n", "sensors.log")


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40), st.integers(0, 300))
def test_damaged_logs_are_read_or_refused_in_one_line(tmp_path, damage, place):
    data = totals().encode()
    message = ""
    try:
        loaded(tmp_path, data[:place] + damage + data[place:], "run.log")
    except InputError as error:
        message = str(error)
    assert "\n" not in message


def test_public_darma_log_names_its_eight_slow_ranks(public_data):
    folder = public_data("darma_slow_node")
    result = diagnose(load([str(folder)]))
    assert result.verdict == "straggler"
    assert blamed(result) == {1, 2, 4, 6, 7, 9, 10, 11}
    assert "50 to 57 C" in said(result)
    assert {f.cause for f in result.findings} == {"unknown"}
