"""Step records piece by piece: what a run too long for memory is read with, and how little of the disk they take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from store_parts import rows_frame, send, step_frame

from starprof.model.rundata import RankInfo, RunData, Steps
from starprof.spool.layout import Spool
from starprof.store.ingest import fold
from starprof.store.query import load_run, open_steps
from starprof.store.runfile import RunFile
from starprof.store.save import save_run, save_steps
from starprof.store.starts import reckoned_starts
from starprof.store.steps import BLOCK_STEPS, block_edges


def run_of(columns: dict[str, np.ndarray], starts: np.ndarray | None = None, ranks: range | None = None) -> RunData:
    """A run with these columns, shape (R, S), and frames without rows."""
    count, steps = columns["dur_us"].shape
    infos = tuple(RankInfo(rank=r, node=0, host="") for r in ranks or range(count))
    told = reckoned_starts(columns["dur_us"]) if starts is None else starts
    return RunData({"name": "job"}, 0, infos, Steps(np.arange(steps), columns, told), {}, *[pd.DataFrame()] * 4)


def numbered(ranks: int, steps: int) -> np.ndarray:
    """A different duration everywhere."""
    return np.arange(1.0, ranks * steps + 1).reshape(ranks, steps)


def saved(path: Path, run: RunData) -> Path:
    save_run(run, path)
    return path


@pytest.mark.parametrize("steps", [5, BLOCK_STEPS + 300])
def test_blocks_hold_every_step_once_in_order_with_its_ranks_side_by_side(run_file: Path, steps: int) -> None:
    durations = numbered(3, steps)
    with open_steps(saved(run_file, run_of({"dur_us": durations}))) as source:
        blocks = list(source.blocks(2, steps, 256, ("dur_us",)))
    assert max(len(b.steps) for b in blocks) <= 256
    assert np.concatenate([b.steps for b in blocks]).tolist() == list(range(2, steps))
    np.testing.assert_array_equal(np.concatenate([b.columns["dur_us"] for b in blocks]), durations.T[2:])


def test_rows_may_lie_in_the_file_in_any_order(spool: Spool, run_file: Path) -> None:
    cells = [{"attempt": 0, "rank": r, "step": s, "dur_us": 10 * s + r} for s, r in ((2, 7), (0, 7), (1, 4), (0, 4))]
    send(spool, rows_frame("step", 0, *cells, stream="n0-1-1/slots"))
    fold(spool, run_file)
    with open_steps(run_file) as source:
        (block,) = source.blocks(0, 3, 8, ("dur_us",))
    np.testing.assert_array_equal(block.columns["dur_us"], [[4, 7], [14, np.nan], [np.nan, 27]])


def test_steps_far_apart_are_counted_by_their_places(spool: Spool, run_file: Path) -> None:
    numbers = (3, 10**9, 2 * 10**12)
    cells = [{"attempt": 0, "rank": 0, "step": s, "start_mono_ns": s + 1, "dur_us": s % 7} for s in numbers]
    send(spool, rows_frame("step", 0, *cells, stream="n0-1-1/slots"))
    fold(spool, run_file)
    with open_steps(run_file) as source:
        assert source.numbers.tolist() == [3, 10**9, 2 * 10**12]
        found = [step for block in source.blocks(1, 3, 8, ("dur_us",)) for step in block.columns["dur_us"].tolist()]
        assert source.starts(np.array([0, 2])).tolist() == [[4, 2 * 10**12 + 1]]
    assert found == [[10**9 % 7], [2 * 10**12 % 7]]


def test_columns_without_values_are_left_out_and_zeros_stay_zeros(run_file: Path) -> None:
    unknown, zeros = np.full((2, 4), np.nan), np.zeros((2, 4))
    run = run_of({"dur_us": numbered(2, 4), "gc_us": zeros, "tokens": unknown})
    with open_steps(saved(run_file, run)) as source:
        assert source.columns == ("dur_us", "gc_us")
        (block,) = source.blocks(0, 4, 8, source.columns)
        assert source.raw(1, 3).steps["gc_us"].tolist() == [[0, 0], [0, 0]]
    assert block.columns["gc_us"].tolist() == [[0, 0]] * 4


def test_only_the_attempt_that_was_asked_for_is_read(spool: Spool, run_file: Path) -> None:
    for attempt in (0, 1):
        cells = [{"attempt": attempt, "rank": 0, "step": s, "dur_us": 100 * attempt + s} for s in range(3)]
        send(spool, rows_frame("step", 0, *cells, stream=f"n0-{attempt}-1/slots"))
    fold(spool, run_file)
    with open_steps(run_file, attempt=0) as source:
        (block,) = source.blocks(0, 3, 8, ("dur_us",))
    assert block.columns["dur_us"].ravel().tolist() == [0, 1, 2]


def test_a_run_without_steps_has_none(run_file: Path) -> None:
    RunFile.open(run_file).close()
    with open_steps(run_file) as source:
        assert (source.rows, len(source.numbers), source.columns) == (0, 0, ())
        assert source.whole().steps["dur_us"].shape == (0, 0)


def test_starts_that_follow_from_the_durations_take_no_space_and_come_back(run_file: Path) -> None:
    durations = numbered(2, 4)
    durations[1, 2] = np.nan
    run = run_of({"dur_us": durations})
    with open_steps(saved(run_file, run)) as source:
        assert source.starts(np.array([0])) is None
    assert load_run(run_file).steps.start_mono_ns.tolist() == run.steps.start_mono_ns.tolist()


def test_starts_that_were_measured_are_kept(spool: Spool, run_file: Path) -> None:
    send(spool, step_frame(0, 3))
    fold(spool, run_file)
    with open_steps(run_file) as source:
        assert source.starts(np.array([1, 2])).tolist() == [[2_000_000, 3_000_000]]


def test_a_run_that_is_read_piece_by_piece_is_written_so_too(tmp_path: Path) -> None:
    durations = numbered(2, BLOCK_STEPS + 9)
    durations[0, 5] = np.nan
    first = saved(tmp_path / "first.starprof", run_of({"dur_us": durations}))
    with open_steps(first) as source:
        save_steps(source, tmp_path / "second.starprof")
    one, other = load_run(first), load_run(tmp_path / "second.starprof")
    assert one.steps.start_mono_ns.tolist() == other.steps.start_mono_ns.tolist()
    np.testing.assert_array_equal(one.steps["dur_us"], other.steps["dur_us"])
    assert one.ranks == other.ranks


def test_blocks_of_the_file_begin_at_the_same_steps_for_writers_and_readers() -> None:
    numbers = np.arange(1, 2 * BLOCK_STEPS + 5)
    size, count = BLOCK_STEPS, len(numbers)
    assert block_edges(numbers) == [(0, size - 1), (size - 1, 2 * size - 1), (2 * size - 1, count)]
    assert block_edges(numbers * 1_000) == [(0, size), (size, 2 * size), (2 * size, count)]
    assert block_edges(numbers[:0]) == []


def test_duration_and_waiting_of_a_rank_and_step_take_less_than_five_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    own = np.rint(62_000 * (1 + 0.03 * rng.standard_normal((64, 2 * BLOCK_STEPS))))
    blocked = own.max(axis=0) - own + 4_000
    run = run_of({"dur_us": own + blocked, "blocked_us": blocked})
    empty = saved(tmp_path / "empty.starprof", run_of({"dur_us": np.zeros((0, 0))}))
    full = saved(tmp_path / "full.starprof", run)
    assert (full.stat().st_size - empty.stat().st_size) / own.size < 5.0
