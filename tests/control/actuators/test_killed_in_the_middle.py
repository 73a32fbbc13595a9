"""Kill -9 at every point between the first change and the last: the next start puts all of them back."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from actuators_lab import until

from starprof.control.actuators import hand, journal
from starprof.control.actuators.change import Change, RefusedError
from starprof.control.actuators.job import JobHere
from starprof.control.actuators.processes import start_of, threads
from starprof.control.actuators.repair import repair
from starprof.spool.layout import Spool

THREADS = 4
VICTIM = f"""
import threading, time
for _ in range({THREADS - 1}):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("there", flush=True)
time.sleep(600)
"""


@pytest.fixture
def victim():
    process = subprocess.Popen([sys.executable, "-c", VICTIM], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"there\n"
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def here(tmp_path):
    spool = Spool(tmp_path / "x.starprof.spool")
    spool.create()
    return JobHere(spool)


def changes_of(pid, value):
    start = start_of(pid)
    return [
        Change("nice", {"pid": pid, "start": start, "tid": tid, "tid_start": began}, 0, value)
        for tid, began in threads(pid)
    ]


def nice_of(pid):
    return [os.getpriority(os.PRIO_PROCESS, tid) for tid, _ in threads(pid)]


def killed_before(here, pid, number):
    """A process that is killed before that change, or after all of them."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        return
    count = 0

    def before_each(_change):
        nonlocal count
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    try:
        hand.make(here, "nice", changes_of(pid, 5), standing=False, before_each=before_each)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("number", range(THREADS + 1))
def test_all_old_values_are_there_again(here, victim, number):
    killed_before(here, victim, number)
    assert nice_of(victim).count(5) == number
    repair()
    assert nice_of(victim) == [0] * THREADS
    assert not journal.journals()


def test_a_refused_change_takes_those_before_it_back(here, victim):
    stranger = Change("nice", {"pid": victim, "start": 1, "tid": victim, "tid_start": 1}, 0, 5)
    with pytest.raises(RefusedError, match="another one by now"):
        hand.make(here, "nice", [*changes_of(victim, 5), stranger], standing=True)
    assert nice_of(victim) == [0] * THREADS


def test_a_process_whose_number_is_used_again_is_not_touched(here, victim):
    entry = hand.make(here, "nice", changes_of(victim, 5), standing=True)
    other = [Change(c.knob, {**c.target, "start": c.target["start"] - 1}, c.old, c.new) for c in entry.changes]
    assert [undone.left for undone in hand.take_back_changes(other)] == [""] * THREADS
    assert nice_of(victim) == [5] * THREADS
    hand.take_back(here.key)
    assert nice_of(victim) == [0] * THREADS


def test_a_torn_line_is_no_entry_and_the_next_one_counts(here, victim):
    entry = hand.make(here, "nice", changes_of(victim, 3), standing=True)
    book = journal.Journal.of_job(here.key)
    with book.path.open("ab") as file:
        file.write(b'0badc0de {"do":"undone","number":"' + entry.number.encode() + b'"}\n12345678 {"do":"beg')
    assert [each.number for each in book.entries()] == [entry.number]
    second = hand.make(here, "nice", changes_of(victim, 4), standing=True)
    assert [each.number for each in book.entries()] == [entry.number, second.number]
    hand.take_back(here.key)
    assert nice_of(victim) == [0] * THREADS


def test_nothing_is_changed_when_it_cannot_be_written_down(here, victim, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STARPROF_STATE", str(tmp_path / "file" / "inside"))
    with pytest.raises(journal.JournalError, match="nothing is changed"):
        hand.make(here, "nice", changes_of(victim, 5), standing=True)
    assert nice_of(victim) == [0] * THREADS


def test_threads_started_since_are_put_back_with_their_process(here):
    code = "import sys, threading, time\nprint('there', flush=True)\nsys.stdin.readline()\n"
    code += "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    code += "print('more', flush=True)\ntime.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"there\n"
        (change,) = changes_of(process.pid, 6)
        heirs = [list(thread) for thread in threads(process.pid)]
        hand.make(here, "nice", [Change("nice", {**change.target, "heirs": heirs}, 0, 6)], standing=True)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"more\n"
        until(lambda: nice_of(process.pid) == [6, 6], "the heir")
        hand.take_back(here.key)
        assert nice_of(process.pid) == [0, 0]
        process.kill()


def test_journals_of_another_boot_are_left_alone(here, state):
    state.mkdir(parents=True)
    other = state / f"00000000-0000-0000-0000-000000000000-abc{journal.SUFFIX}"
    other.write_text("whatever\n")
    assert repair() == []
    assert Path(other).exists()
