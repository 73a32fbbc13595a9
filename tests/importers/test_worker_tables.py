"""Tables of times per worker are understood from their header and content, and what was guessed is said."""

import gzip

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worker_fleets import fleet, loaded, long_table, synchronous, wide_table

from starprof.errors import InputError
from starprof.importers.load import load

NAN = float("nan")


def durations(run):
    return run.steps.columns["dur_us"]


def test_a_table_with_a_row_per_worker_and_sample_is_read(tmp_path):
    values = fleet(workers=5, samples=30)
    run = loaded(tmp_path, long_table(values))
    assert [info.rank for info in run.ranks] == [0, 1, 2, 3, 4]
    scale = run.ranks[0].detail["scale"]
    assert np.allclose(durations(run) / scale, values, rtol=1e-5)


def test_a_table_with_a_column_per_worker_is_read(tmp_path):
    values = fleet(workers=6, samples=25)
    run = loaded(tmp_path, wide_table(values))
    assert [info.rank for info in run.ranks] == list(range(6))
    assert list(run.steps.steps) == list(range(25))
    assert np.allclose(durations(run) / run.ranks[0].detail["scale"], values, rtol=1e-5)


@pytest.mark.parametrize("separator", ["\t", ";", "|"])
def test_other_separators_are_seen(tmp_path, separator):
    run = loaded(tmp_path, long_table(fleet(workers=3, samples=20), separator=separator), "times.tsv")
    assert len(run.ranks) == 3


@pytest.mark.parametrize(
    ("header", "micros"),
    [
        ("rank,step,step_time_ms", 1e3),
        ("rank,step,compute_s", 1e6),
        ("rank,step,duration (us)", 1.0),
        ("rank,step,durationSeconds", 1e6),
    ],
)
def test_the_unit_is_taken_from_the_name(tmp_path, header, micros):
    values = fleet(workers=3, samples=20, base=400.0)
    run = loaded(tmp_path, long_table(values, header=header, every=1.0, first=0.0))
    assert np.allclose(durations(run), values * micros, rtol=1e-5, atol=0.5)
    assert "arbitrary" not in run.info["note"]


def test_a_time_without_a_unit_is_in_arbitrary_units_and_the_note_says_so(tmp_path):
    run = loaded(tmp_path, long_table(fleet(workers=3, samples=20)))
    assert run.ranks[0].detail["unit"] == "arbitrary"
    assert "arbitrary units" in run.info["note"]
    assert "unit of the times" in set(run.unavailable["source"])


def test_the_note_says_which_column_was_taken_for_what(tmp_path):
    run = loaded(tmp_path, long_table(fleet(workers=3, samples=20), header="rank,step,step_time_ms", every=1.0))
    assert all(word in run.info["note"] for word in ("'rank'", "'step_time_ms'", "'step'", "ms"))


def test_the_times_of_a_time_column_are_kept(tmp_path):
    run = loaded(tmp_path, long_table(fleet(workers=3, samples=20), every=30.0, first=5.0))
    assert (run.steps.start_mono_ns[0] / 1e9).tolist() == [5.0 + 30.0 * k for k in range(20)]


@pytest.mark.parametrize(("factor", "first"), [(1.0, 1.7e9), (1e3, 1.7e12), (1e6, 1.7e15)])
def test_wall_clocks_are_told_apart_by_their_size(tmp_path, factor, first):
    lines = ["worker,timestamp,dur_ms"]
    lines += [f"{w},{first + 10 * factor * k:.0f},{400 + 7 * w + k}" for k in range(20) for w in range(3)]
    run = loaded(tmp_path, "\n".join(lines))
    assert np.allclose(np.diff(run.steps.start_mono_ns[0]) / 1e9, 10.0, atol=1e-3)


def test_dates_are_times_too(tmp_path):
    lines = ["worker,timestamp,dur_ms"]
    lines += [f"{w},2026-01-31 10:00:{k:02d},{400 + 9 * w + k}" for k in range(20) for w in range(3)]
    run = loaded(tmp_path, "\n".join(lines))
    assert np.allclose(np.diff(run.steps.start_mono_ns[0]) / 1e9, 1.0)


def test_workers_sampled_at_their_own_moments_meet_on_a_common_grid(tmp_path):
    rng = np.random.default_rng(3)
    lines = ["worker,time,batch_time"]
    for w in range(4):
        at = np.cumsum(rng.uniform(8.0, 12.0, 60))
        lines += [f"{w},{t:.2f},{400 + rng.normal(0, 5):.2f}" for t in at]
    run = loaded(tmp_path, "\n".join(lines))
    assert 50 <= len(run.steps.steps) <= 80
    assert (~np.isnan(durations(run))).mean() > 0.7


def test_missing_samples_and_late_workers_are_holes_not_zeros(tmp_path):
    values = fleet(workers=4, samples=40)
    values[2, :15] = NAN
    values[1, 20] = NAN
    run = loaded(tmp_path, long_table(values))
    assert np.isnan(durations(run)[2, :15]).all()
    assert np.isnan(durations(run)[1, 20])
    assert not np.isnan(durations(run)[0]).any()


def test_workers_with_names_get_numbers_and_keep_their_names(tmp_path):
    run = loaded(tmp_path, long_table(fleet(workers=3, samples=20), names=["ann", "bob", "cid"]))
    assert [info.rank for info in run.ranks] == [0, 1, 2]
    assert [info.detail["label"] for info in run.ranks] == ["ann", "bob", "cid"]


def test_numbers_in_the_workers_names_are_their_ranks(tmp_path):
    run = loaded(tmp_path, long_table(fleet(workers=3, samples=20), names=["worker-12", "worker-3", "worker-7"]))
    assert [info.rank for info in run.ranks] == [3, 7, 12]


def test_hosts_are_kept(tmp_path):
    lines = ["rank,host,step,dur_ms"]
    lines += [f"{w},node{w // 2},{k},{400 + 20 * w + k % 7}" for k in range(20) for w in range(4)]
    run = loaded(tmp_path, "\n".join(lines))
    assert [info.host for info in run.ranks] == ["node0", "node0", "node1", "node1"]


def test_waiting_in_a_column_of_its_own_makes_it_a_run_with_waiting_told_apart(tmp_path):
    rng = np.random.default_rng(1)
    lines = ["rank,step,forward_ms,backward_ms,allreduce_ms,step_time_ms"]
    for k in range(120):
        own = 100 + rng.normal(0, 1, 4) + np.array([0, 0, 40, 0])
        for r in range(4):
            blocked = own.max() - own[r] + 5
            lines.append(f"{r},{k},{own[r] * 0.3:.3f},{own[r] * 0.7:.3f},{blocked:.3f},{own[r] + blocked:.3f}")
    run = loaded(tmp_path, "\n".join(lines))
    assert run.info["timing"] is None
    assert {"forward_us", "backward_us", "blocked_us"} <= set(run.steps.columns)


def test_equal_times_of_all_workers_are_whole_steps(tmp_path):
    assert loaded(tmp_path, wide_table(synchronous())).info["timing"] == "wall"


@pytest.mark.parametrize(("spread", "cv"), [(0.0, 0.03), (0.1, 0.01), (0.02, 0.1)])
def test_times_that_differ_between_workers_are_their_own(tmp_path, spread, cv):
    assert loaded(tmp_path, wide_table(fleet(spread=spread, cv=cv))).info["timing"] == "own"


def test_equal_computing_times_are_still_the_workers_own(tmp_path):
    values = fleet(workers=4, samples=40, spread=0.0, cv=0.003)
    assert loaded(tmp_path, long_table(values, header="rank,step,compute_ms", every=1.0)).info["timing"] == "own"
    assert loaded(tmp_path, long_table(values, header="rank,step,backward_ms", every=1.0)).info["timing"] == "wall"


def test_a_packed_table_is_read(tmp_path):
    packed = gzip.compress(long_table(fleet(workers=3, samples=20)).encode())
    assert len(loaded(tmp_path, packed, "times.csv.gz").ranks) == 3


def test_coefficients_of_variation_are_no_times_of_workers(tmp_path):
    rows = ["," + ",".join(str(i) for i in range(50))]
    rows += [f"{job}," + ",".join(f"{0.1 + 0.001 * i:.3f}" for i in range(50)) for job in range(10)]
    with pytest.raises(InputError, match="variation"):
        loaded(tmp_path, "\n".join(rows), "coefficient_variation.csv")


def test_several_jobs_at_once_are_refused(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(long_table(fleet(workers=3, samples=20)))
    with pytest.raises(InputError, match="name one"):
        load([str(tmp_path)])


def test_two_different_times_of_one_worker_in_one_step_are_refused(tmp_path):
    text = long_table(fleet(workers=3, samples=20), header="worker,step,dur_ms", every=1.0)
    other = long_table(fleet(workers=3, samples=20, seed=1), header="worker,step,dur_ms", every=1.0)
    with pytest.raises(InputError, match="several times for step"):
        loaded(tmp_path, text + other.partition("\n")[2])


@pytest.mark.parametrize(
    "content",
    [
        "worker,time,dur_ms\n0,1,-5\n1,1,4\n",
        "worker,time,dur_ms\n0,1,\n1,1,abc\n",
        "worker,time,dur_ms\n0,1,0\n1,1,0\n",
        "worker,time,dur_ms\n0,1,1e300\n1,1,1e300\n",
        "worker,time,dur_ms\n0,1,1e-9\n1,1,1e9\n",
        "rank,step,dur_ms\n0,-9223372036854775808,5\n1,2,5\n",
        "rank,time,dur_ms\n0,-5,5\n1,2,5\n",
        "rank,step,dur_ms\n" + "0,1,5\n" * 3 + "0,1,9\n" * 3,
    ],
    ids=["negative", "no numbers", "zeros", "huge", "units mixed", "no steps", "negative moments", "twice"],
)
def test_times_that_can_not_be_are_one_clear_line(tmp_path, content):
    with pytest.raises(InputError) as error:
        loaded(tmp_path, content)
    assert "\n" not in str(error.value)


def test_markup_and_escapes_in_names_do_no_harm(tmp_path):
    names = ["<script>alert(1)</script>", "\x1b[31mred", "a" * 5000]
    run = loaded(tmp_path, long_table(fleet(workers=3, samples=20), names=names))
    assert len(run.ranks) == 3
    assert max(len(info.detail["label"]) for info in run.ranks) <= 200


TABLES = (long_table(fleet(workers=3, samples=12)), wide_table(fleet(workers=3, samples=12)))


def refused_in_one_line(folder, content):
    """Whether a file was refused, and how; a run that could be read is no refusal."""
    try:
        loaded(folder, content)
    except InputError as error:
        return "\n" not in str(error)
    return True


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(TABLES), st.integers(0, 400), st.binary(max_size=20))
def test_damaged_tables_are_read_or_refused_in_one_line(tmp_path, table, place, damage):
    data = table.encode()
    assert refused_in_one_line(tmp_path, data[:place] + damage + data[place + len(damage) :])


CELLS = st.sampled_from(["0", "1", "-1", "nan", "inf", "1e308", "", "x", '"'])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(CELLS, max_size=4), max_size=20))
def test_any_cells_are_read_or_refused_in_one_line(tmp_path, rows):
    assert refused_in_one_line(tmp_path, "rank,step,dur_ms\n" + "\n".join(",".join(row) for row in rows))
