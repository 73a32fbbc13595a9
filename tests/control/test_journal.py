"""What control did reaches the run file, whatever becomes of the process that did it; and never hurts that process."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from starprof.control import journal as control_journal
from starprof.control.journal import NATIVE, ControlJournal
from starprof.model.valuelists import contributors_of, from_listed_values
from starprof.spool.layout import Spool
from starprof.spool.segment import list_segments
from starprof.store.ingest import fold
from starprof.store.runfile import RunFile
from starprof.sync.policies import Gradient, Update
from starprof.sync.protocol.messages import Close

ROUND = Close(
    epoch=2,
    round=7,
    attempt=1,
    gradients=(Gradient(3, 4, 5, 32), Gradient(0, 9, 7, 32), Gradient(3, 5, 7, 16)),
    weights=(0.25, 0.5, 0.25),
    release=(0, 3, 1),
)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    spool = Spool.beside(tmp_path / "job.starprof")
    spool.create()
    return spool


def folded(spool: Spool, select: str, *, final: bool = True) -> list[tuple[object, ...]]:
    """Answer of a query after everything in the spool is folded in."""
    run_file = spool.root.with_suffix("")
    fold(spool, run_file, final=final)
    with RunFile.open_read_only(run_file) as run:
        return run.query(select)


def test_a_mean_of_states_stands_for_the_steps_behind_them(spool: Spool) -> None:
    journal = ControlJournal(spool.segments, 4)
    states = (Gradient(0, 2, 7, steps=8), Gradient(1, 3, 7, steps=6))
    journal.update(Close(1, 7, 0, states, (0.5, 0.5), (0, 1)), mode="local-sgd", options={"period": 8})
    journal.close()
    assert folded(spool, "SELECT weights, weight_sum, gradients FROM sync_update") == [("4.0,3.0", 7.0, 2)]


def test_an_update_is_told_with_every_gradient_that_went_in(spool: Spool) -> None:
    journal = ControlJournal(spool.segments, 4, attempt=1)
    journal.update(ROUND, mode="m-sync-fold", options={"m": 3}, mono_ns=99)
    journal.close()
    ((*facts, options),) = folded(
        spool,
        "SELECT node, mono_ns, attempt, version, epoch, retries, mode, gradients, weight_sum, staleness_max, "
        "released, native, options FROM sync_update",
    )
    assert facts == [4, 99, 1, 7, 2, 1, "m-sync-fold", 3, 1.0, 2, "0-1,3", 0]
    assert json.loads(str(options)) == {"m": 3}
    ((contributors, per, *lists),) = folded(
        spool, "SELECT contributors, per_contributor, numbers, weights, staleness, samples FROM sync_update"
    )
    assert contributors_of(contributors, per) == (0, 3, 3)
    assert [from_listed_values(text) for text in lists] == [(9, 4, 5), (0.5, 0.25, 0.25), (0, 2, 0), (32, 32, 16)]


def test_a_decision_of_a_policy_can_be_told_without_a_message(spool: Spool) -> None:
    journal = ControlJournal(spool.segments, 0)
    journal.update(Update(5, (Gradient(1, 0, 5), Gradient(2, 0, 5)), (0.5, 0.5)), mode="asgd", epoch=3)
    journal.close()
    rows = folded(spool, "SELECT version, epoch, retries, contributors, per_contributor, options FROM sync_update")
    assert rows == [(5, 3, 0, "1-2", None, None)]


def test_a_round_that_lost_everybody_is_told_too(spool: Spool) -> None:
    journal = ControlJournal(spool.segments, 0)
    journal.update(Close(1, 8, 2, (), (), release=(1,)), mode="m-sync")
    journal.close()
    rows = folded(spool, "SELECT contributors, gradients, weight_sum, staleness_max, released FROM sync_update")
    assert rows == [(None, 0, 0.0, None, "1")]


def test_a_switch_is_in_the_spool_at_once_and_nobody_needs_to_end_for_it_to_be_read(spool: Spool) -> None:
    journal = ControlJournal(spool.segments, 0)
    journal.switch(
        from_mode=NATIVE,
        to_mode="m-sync",
        to_options={"m": 3},
        asked_by="user",
        reason="rank 3 is slow",
        version=12,
        took_us=1500,
        epoch=1,
    )
    rows = folded(
        spool, "SELECT version, from_mode, to_mode, to_options, asked_by, reason, took_us FROM sync_switch", final=False
    )
    assert rows == [(12, "native", "m-sync", '{"m": 3}', "user", "rank 3 is slow", 1500)]
    assert journal.errors == 0


def test_a_ranks_part_in_rounds_is_told_step_by_step(spool: Spool) -> None:
    journal = ControlJournal(spool.segments, 0, attempt=2)
    journal.rank_step(rank=3, step=10, number=4, version=14, waited_us=250, updates=3, skipped=2, not_finite=1)
    journal.rank_step(rank=3, step=11, number=None, version=14, waited_us=None, updates=0)
    journal.close()
    rows = folded(spool, "SELECT * FROM sync_step ORDER BY step")
    assert rows == [(2, 3, 10, 4, 14, 250, 3, 2, 1), (2, 3, 11, None, 14, None, 0, 0, None)]


def test_rows_that_come_together_are_written_together_and_a_tick_writes_the_last(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_journal, "HOLD_S", 3600.0)
    journal = ControlJournal(spool.segments, 0)
    for step in range(20):
        journal.rank_step(rank=0, step=step, number=step, version=step, waited_us=0, updates=1)
    journal.tick()
    assert folded(spool, "SELECT count(*) FROM sync_step", final=False) == [(1,)]  # the first waits for nobody
    monkeypatch.setattr(control_journal, "HOLD_S", 0.0)
    journal.tick()
    assert folded(spool, "SELECT count(*), max(step) FROM sync_step", final=False) == [(20, 19)]


def test_a_flood_of_rows_is_written_as_it_comes(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_journal, "HOLD_S", 3600.0)
    journal = ControlJournal(spool.segments, 0)
    for step in range(25_000):
        journal.rank_step(rank=0, step=step, number=step, version=step, waited_us=0, updates=1)
    journal.close()
    assert folded(spool, "SELECT count(DISTINCT step) FROM sync_step") == [(25_000,)]
    assert folded(spool, "SELECT * FROM gap") == []


def test_a_journal_without_a_row_leaves_no_file(spool: Spool) -> None:
    journal = ControlJournal(spool.segments, 0)
    journal.tick()
    journal.flush()
    journal.close()
    assert list(spool.segments.iterdir()) == []


def test_a_segment_is_handed_over_when_it_is_old_or_large(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_journal, "SEAL_S", 0.0)
    journal = ControlJournal(spool.segments, 0)
    for version in range(2):
        journal.switch(from_mode=NATIVE, to_mode="asgd", asked_by="advisor", version=version)
    assert [segment.sealed for segment in list_segments(spool.segments)] == [True, True]


def test_what_can_not_be_written_waits_and_is_told_once(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control_journal, "HOLD_S", 0.0)
    away = spool.segments.rename(spool.root / "away")
    journal = ControlJournal(spool.segments, 0)
    for version in range(3):
        journal.update(ROUND, mode="m-sync", mono_ns=version)
    assert journal.errors == 3
    assert capfd.readouterr().err.count("not recorded completely") == 1
    away.rename(spool.segments)
    journal.tick()
    journal.close()
    assert folded(spool, "SELECT mono_ns FROM sync_update ORDER BY mono_ns") == [(0,), (1,), (2,)]


def test_a_folder_that_goes_away_under_it_costs_rows_but_neither_room_nor_an_error(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_journal, "HOLD_S", 0.0)
    monkeypatch.setattr(control_journal, "SEAL_S", 0.0)
    monkeypatch.setattr(control_journal, "ROWS_AT_MOST", 10)
    away = spool.segments.rename(spool.root / "away")
    journal = ControlJournal(spool.segments, 0)
    for step in range(25):
        journal.rank_step(rank=0, step=step, number=step, version=step, waited_us=0, updates=1)
    away.rename(spool.segments)
    journal.close()
    assert folded(spool, "SELECT min(step), max(step), count(*) FROM sync_step") == [(15, 24, 10)]
    assert folded(spool, "SELECT sum(lost_rows) FROM gap") == [(15,)]


@pytest.mark.parametrize("bad", [{"rank": "zero"}, {"step": None}, {"version": 2**70}, {"waited_us": float("nan")}])
def test_a_wrong_value_costs_its_own_row_only(spool: Spool, bad: dict[str, object]) -> None:
    journal = ControlJournal(spool.segments, 0)
    good = {"rank": 0, "step": 1, "number": 1, "version": 1, "waited_us": 1, "updates": 1, "skipped": 0}
    journal.rank_step(**{**good, **bad})
    journal.rank_step(**good)
    journal.close()
    assert journal.errors == (0 if bad == {"step": None} else 1)
    assert folded(spool, "SELECT count(*) FROM sync_step WHERE step = 1") == [(1,)]


def test_texts_that_nobody_could_read_are_made_readable(spool: Spool) -> None:
    journal = ControlJournal(spool.segments, 0)
    journal.switch(from_mode=NATIVE, to_mode="\udcff", asked_by="user", version=None, reason="x" * 10_000)
    journal.close()
    ((mode, length),) = folded(spool, "SELECT to_mode, length(reason) FROM sync_switch")
    assert (mode, length) == ("?", 1000)


def test_threads_that_write_at_once_lose_and_double_nothing(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_journal, "ROWS_AT_ONCE", 7)
    journal = ControlJournal(spool.segments, 0)

    def steps(rank: int) -> None:
        for step in range(500):
            journal.rank_step(rank=rank, step=step, number=step, version=step, waited_us=0, updates=1)
            journal.tick()

    threads = [threading.Thread(target=steps, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    journal.close()
    rows = folded(spool, "SELECT rank, count(*), count(DISTINCT step), max(step) FROM sync_step GROUP BY 1 ORDER BY 1")
    assert rows == [(rank, 500, 500, 499) for rank in range(4)]
    assert folded(spool, "SELECT * FROM gap") == []


WRITER = """
import itertools, sys, time
from pathlib import Path
from starprof.control.journal import ControlJournal
from starprof.sync.policies import Gradient, Update
journal = ControlJournal(Path(sys.argv[1]), 0)
for number in itertools.count():
    journal.update(Update(number, (Gradient(1, number, number),), (1.0,)), mode="asgd", epoch=1)
    journal.tick()
    print(number, time.monotonic(), flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes to be cleaned up, however the test ends."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_kill_loses_at_most_the_rows_of_the_last_second_and_doubles_none(
    spool: Spool, started: list[subprocess.Popen[str]]
) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(spool.segments)], stdout=subprocess.PIPE, text=True)
    started.append(process)
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(150)]
    half_way = folded(spool, "SELECT count(*) FROM sync_update", final=False)
    process.send_signal(signal.SIGKILL)
    told += process.stdout.readlines()
    assert process.wait() == -signal.SIGKILL
    at_s = {int(number): float(second) for number, second in (line.split() for line in told if line.endswith("\n"))}
    versions = [version for (version,) in folded(spool, "SELECT version FROM sync_update ORDER BY version")]
    assert versions == list(range(len(versions)))
    assert len(versions) >= half_way[0][0] > 0
    assert all(version in versions for version, second in at_s.items() if second < max(at_s.values()) - 1.0)
    assert folded(spool, "SELECT * FROM gap") == []
    assert list(spool.segments.iterdir()) == []


def test_a_torn_tail_costs_only_what_was_torn(spool: Spool) -> None:
    journal = ControlJournal(spool.segments, 0)
    for version in range(3):
        journal.switch(from_mode=NATIVE, to_mode="asgd", asked_by="user", version=version)
    (part,) = spool.segments.iterdir()
    torn = part.read_bytes()[:-5]
    journal.close()
    (sealed,) = spool.segments.iterdir()
    sealed.write_bytes(torn)
    assert folded(spool, "SELECT version FROM sync_switch ORDER BY version") == [(0,), (1,)]
    ((reason,),) = folded(spool, "SELECT reason FROM gap")
    assert "unreadable bytes" in str(reason)


def test_a_forked_child_writes_nothing_and_does_not_hold_the_segment(spool: Spool) -> None:
    journal = ControlJournal(spool.segments, 0)
    journal.switch(from_mode=NATIVE, to_mode="asgd", asked_by="user", version=1)
    (part,) = spool.segments.iterdir()
    go, wait = os.pipe()
    child = os.fork()
    if not child:
        try:
            journal.switch(from_mode="asgd", to_mode=NATIVE, asked_by="user", version=2)
            os.close(wait)
            os.read(go, 1)
        finally:
            os._exit(journal.errors)
    os.close(go)
    try:
        journal.close()
        with part.with_suffix(".seg").open("rb") as sealed:
            give_up = time.monotonic() + 30  # the child closes it when it runs
            while True:
                try:
                    fcntl.flock(sealed, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    assert time.monotonic() < give_up
                    time.sleep(0.01)
    finally:
        os.close(wait)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert folded(spool, "SELECT version FROM sync_switch") == [(1,)]
