"""`--max-size`: long runs get smaller, their means stay right, and no rate is ever negative."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from starprof.model.schema import BY_NAME
from starprof.spool.layout import Spool
from starprof.store.compact import compact
from starprof.store.ingest import fold
from starprof.store.protect import Window, slow_windows
from starprof.store.query import load_run
from starprof.store.rollup import keep_below, roll_up
from starprof.store.runfile import RunFile, arrow_rows

SECOND_NS = 1_000_000_000
START_NS = 5_000 * 60 * SECOND_NS
CPU = BY_NAME["cpu_sample"]


def fill_cpu(run: RunFile, seconds: int, *, hz: int = 10, cpus: int = 2, node: int = 0, seed: int = 1) -> None:
    """Counters that grow at random, with a reset of CPU 0 in the middle."""
    rng = np.random.default_rng(seed)
    ticks = seconds * hz
    times = START_NS + np.arange(ticks) * (SECOND_NS // hz) + rng.integers(0, 2_000_000, ticks)
    columns = []
    for cpu in range(cpus):
        user = np.cumsum(rng.integers(0, 90_000, ticks)) + 10**9
        if cpu == 0:
            user[ticks // 2 :] -= user[ticks // 2] - 7
        idle = np.cumsum(rng.integers(10_000, 100_000, ticks))
        frequency = rng.integers(1_000_000, 3_000_000, ticks)
        columns.append((np.full(ticks, cpu), times, user, idle, frequency))
    cpu, mono, user, idle, frequency = (np.stack(c, axis=1).ravel() for c in zip(*columns, strict=True))
    rows = {"node": np.full(len(cpu), node), "cpu": cpu, "mono_ns": mono, "user_us": user, "idle_us": idle}
    run.append("cpu_sample", pa.table({**rows, "freq_khz": frequency}))


@pytest.fixture
def run(run_file: Path) -> RunFile:
    with RunFile.open(run_file) as opened:
        yield opened


def raw_rates(run: RunFile, width_s: int) -> dict[int, tuple[float, float, float]]:
    """Per CPU: mean rate and its extremes over all valid differences that end in a full bucket."""
    found = run.query(
        """
        SELECT cpu, sum(d) * 1e9 / sum(t), min(d * 1e9 / t), max(d * 1e9 / t)
        FROM (SELECT cpu, mono_ns, user_us - lag(user_us) OVER w AS d, mono_ns - lag(mono_ns) OVER w AS t,
                max(mono_ns) OVER () // ? * ? AS border
              FROM cpu_sample WINDOW w AS (PARTITION BY cpu ORDER BY mono_ns))
        WHERE d >= 0 AND mono_ns < border GROUP BY cpu""",
        [width_s * SECOND_NS] * 2,
    )
    return {cpu: tuple(values) for cpu, *values in found}


def rolled_rates(run: RunFile, width_s: int) -> dict[int, tuple[float, float, float]]:
    found = run.query(
        """SELECT cpu, sum(user_us_mean * covered_us) / sum(covered_us), min(user_us_min), max(user_us_max)
        FROM cpu_sample_rollup WHERE width_s = ? GROUP BY cpu""",
        [width_s],
    )
    return {cpu: tuple(values) for cpu, *values in found}


@pytest.mark.parametrize(("fine_s", "width_s"), [(10**9, 1), (0, 60)])
def test_means_and_extremes_of_rates_are_those_of_the_raw_samples(run: RunFile, fine_s: int, width_s: int) -> None:
    fill_cpu(run, 240)
    raw = raw_rates(run, width_s)
    roll_up(run, CPU, raw_s=0, fine_s=fine_s)
    rolled = rolled_rates(run, width_s)
    assert rolled[1] == pytest.approx(raw[1], rel=1e-6)
    # CPU 0 was reset once: the time of that one difference counts as covered
    assert rolled[0] == pytest.approx(raw[0], rel=2 / 2400)


def test_each_bucket_is_right(run: RunFile) -> None:
    times = START_NS + np.array([0, 400, 800, 1200, 2500]) * 1_000_000
    rows = {"node": np.zeros(5, int), "cpu": np.zeros(5, int), "mono_ns": times}
    run.append("cpu_sample", pa.table({**rows, "user_us": [100, 140, 220, 260, 20], "freq_khz": [1, 2, 6, None, 5]}))
    run.append("cpu_sample", pa.table({"node": [0], "cpu": [0], "mono_ns": [START_NS + 9 * SECOND_NS]}))
    roll_up(run, CPU, raw_s=0, fine_s=10**9)
    columns = "mono_ns - ?, samples, covered_us, user_us_min, user_us_mean, user_us_max, freq_khz_min, freq_khz_mean"
    found = run.query(f"SELECT {columns} FROM cpu_sample_rollup ORDER BY 1", [START_NS])
    assert found == [
        (0, 3, 800_000, 100.0, pytest.approx(150.0), 200.0, 1.0, 3.0),
        (SECOND_NS, 1, 400_000, pytest.approx(100.0), pytest.approx(100.0), pytest.approx(100.0), None, None),
        (2 * SECOND_NS, 1, 1_300_000, None, None, None, 5.0, 5.0),  # the counter was reset: a gap
    ]


def test_rolling_up_bit_by_bit_loses_no_difference(run: RunFile, tmp_path: Path) -> None:
    fill_cpu(run, 120)
    with RunFile.open(tmp_path / "once.starprof") as once:
        fill_cpu(once, 120)
        roll_up(once, CPU, raw_s=0, fine_s=10**9)
        expected = once.query("SELECT * FROM cpu_sample_rollup ORDER BY ALL")
    for raw_s in (90, 61, 60, 13, 0, 0):
        roll_up(run, CPU, raw_s=raw_s, fine_s=10**9)
    found = run.query("SELECT * FROM cpu_sample_rollup ORDER BY ALL")
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, nan_ok=True)


def test_no_rate_is_negative_and_no_row_is_in_two_widths(run: RunFile) -> None:
    fill_cpu(run, 400)
    roll_up(run, CPU, raw_s=20, fine_s=100)
    assert run.query("SELECT count(*) FROM cpu_sample_rollup WHERE user_us_min < 0 OR user_us_mean < 0") == [(0,)]
    ((coarse_end, fine_begin),) = run.query("""
        SELECT max(mono_ns + 60000000000) FILTER (width_s = 60), min(mono_ns) FILTER (width_s = 1)
        FROM cpu_sample_rollup""")
    assert coarse_end <= fine_begin


def test_each_node_is_rolled_up_by_its_own_clock(run: RunFile) -> None:
    fill_cpu(run, 60, node=0)
    fill_cpu(run, 30, node=1)
    roll_up(run, CPU, raw_s=20, fine_s=10**9)
    buckets = run.query("SELECT node, count(DISTINCT mono_ns) FROM cpu_sample_rollup GROUP BY node ORDER BY node")
    assert buckets == [(0, 39), (1, 9)]


def test_protected_windows_stay_raw(run: RunFile) -> None:
    fill_cpu(run, 120)
    keep = Window(0, START_NS + 30 * SECOND_NS, START_NS + 40 * SECOND_NS - 1)
    roll_up(run, CPU, raw_s=0, fine_s=0, protect=[keep, Window(7, 0, 2**62)])
    inside = f"mono_ns BETWEEN {keep.from_ns} AND {keep.to_ns}"
    assert run.query(f"SELECT count(*) FROM cpu_sample WHERE {inside}") == [(10 * 10 * 2,)]
    ((others,),) = run.query(f"SELECT count(*) FROM cpu_sample WHERE NOT {inside}")
    assert others < 2 * 12  # the last second, and one row of each CPU before it


def test_slow_steps_and_rare_events_protect_their_windows(run: RunFile) -> None:
    run.append("rank", pa.table({"attempt": [0], "rank": [0], "node": [2]}))
    steps = np.arange(2000)
    slow = (steps >= 1000) & (steps < 1020)
    starts = START_NS + steps * SECOND_NS // 2
    columns = {"attempt": np.zeros(2000, int), "rank": np.zeros(2000, int), "step": steps, "start_mono_ns": starts}
    run.append("step", pa.table({**columns, "dur_us": np.where(slow, 900_000, 500_000)}))
    run.append("event", arrow_rows("event", [[1, None, None, START_NS, None, "xid", 79, None]]))
    run.append("event", arrow_rows("event", [[1, None, None, START_NS + 10**12, None, "gc", 79, None]]))
    ten_ns = 10 * SECOND_NS
    first_slow_ns = START_NS + 500 * SECOND_NS
    assert slow_windows(run) == [
        Window(1, START_NS - ten_ns, START_NS + 2 * ten_ns - 1),
        Window(2, first_slow_ns - ten_ns, first_slow_ns + 2 * ten_ns - 1),
    ]


def test_a_run_that_is_slow_most_of_the_time_is_not_kept_whole(run: RunFile) -> None:
    run.append("rank", pa.table({"attempt": [0], "rank": [0], "node": [0]}))
    steps = np.arange(4000)
    columns = {"attempt": np.zeros(4000, int), "rank": np.zeros(4000, int), "step": steps}
    durations = np.where(steps % 200 < 90, 900_000, 500_000)
    run.append("step", pa.table({**columns, "start_mono_ns": START_NS + steps * SECOND_NS // 2, "dur_us": durations}))
    kept_ns = sum(w.to_ns - w.from_ns for w in slow_windows(run))
    assert 0 < kept_ns <= 0.1 * 2000 * SECOND_NS


def test_the_size_promise_is_kept_and_steps_and_events_stay(run_file: Path) -> None:
    with RunFile.open(run_file) as run:
        for minute in range(3):
            fill_cpu(run, 1800, cpus=8, node=minute)
        step = {"attempt": [0] * 500, "rank": [0] * 500, "step": list(range(500)), "start_mono_ns": [START_NS] * 500}
        run.append("step", pa.table(step))
        run.append("event", arrow_rows("event", [[0, 0, 0, START_NS, 1, "gc", 7, None]]))
    before = run_file.stat().st_size
    limit = before // 3
    assert keep_below(run_file, limit)
    assert run_file.stat().st_size <= limit
    loaded = load_run(run_file)
    assert len(loaded.steps.steps) == 500
    assert loaded.events["kind"].tolist() == ["gc"]
    assert set(loaded.samples["cpu_sample_rollup"]["width_s"]) <= {1, 60}
    newest = loaded.samples["cpu_sample"].groupby(["node", "cpu"]).size()
    assert len(newest) == 24  # every key still has raw samples
    assert (newest >= 10 * 9).all()


def test_a_file_within_the_limit_is_not_touched(run_file: Path) -> None:
    RunFile.open(run_file).close()
    before = run_file.read_bytes()
    assert keep_below(run_file, len(before))
    assert run_file.read_bytes() == before


def test_a_limit_that_steps_alone_exceed_is_reported(run_file: Path) -> None:
    with RunFile.open(run_file) as run:
        noise = np.random.default_rng(1).integers(0, 2**60, 100_000)
        run.append("step", pa.table({"step": np.arange(100_000), "start_mono_ns": noise}))
    assert not keep_below(run_file, 300_000)
    with RunFile.open_read_only(run_file) as run:
        assert run.query("SELECT count(*) FROM step") == [(100_000,)]


def test_compacting_keeps_every_row_in_order(run_file: Path) -> None:
    with RunFile.open(run_file) as run:
        fill_cpu(run, 600, cpus=8)
        run.bulk("DELETE FROM cpu_sample WHERE cpu < 6")
        expected = run.query("SELECT * FROM cpu_sample ORDER BY rowid")
    before = run_file.stat().st_size
    compact(run_file)
    assert run_file.stat().st_size < before
    with RunFile.open_read_only(run_file) as run:
        assert run.query("SELECT * FROM cpu_sample ORDER BY rowid") == expected
        assert run.meta()["format"] == "starprof"
    assert [p.name for p in run_file.parent.iterdir()] == [run_file.name]


def test_the_ingester_keeps_the_limit(spool: Spool, run_file: Path) -> None:
    with RunFile.open(run_file) as run:
        fill_cpu(run, 1800, cpus=32)
    limit = run_file.stat().st_size // 2
    fold(spool, run_file, max_size_bytes=limit)
    assert run_file.stat().st_size <= limit
