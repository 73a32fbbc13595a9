"""`starprof ctl`, over the real socket of a real coordinator."""

import json
import socket
import threading

import pytest
from coordinator_lab import SECRET, in_rounds, state_of, wait_for

from starprof.cli import main
from starprof.control import controlsocket
from starprof.control.codec import encode
from starprof.control.speech import COORDINATOR, MESSAGE
from starprof.sync.protocol.messages import Objects
from starprof.wire.channel import dial


@pytest.fixture
def ctl(capsys):
    """Runs the verb; returns its code, what it printed, and what it complained about."""

    def run(job, *arguments):
        code = main(["ctl", str(job), *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_job_is_looked_at_and_moved(begin, ctl):
    coordinator, job = begin(4)
    folder = coordinator.folder
    wait_for(lambda: coordinator.status()["state"] == "native")
    code, out, _ = ctl(folder, "status")
    assert code == 0
    assert out.startswith("mode     native\n")
    assert out.count("connected") == 4
    code, out, _ = ctl(folder, "mode", "m-sync", "--option", "m=3", "--reason", "rank 3 is slow")
    assert (code, "m-sync (m=3)" in out) == (0, True)
    wait_for(lambda: coordinator.status()["state"] == "rounds")
    job.progress(10)
    code, out, _ = ctl(folder, "history", "--last", "5")
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 6)
    assert "native -> m-sync (m=3)" in lines[0]
    assert "asked for by user (rank 3 is slow)" in lines[0]
    assert ctl(folder, "mode", "native")[0] == 0
    wait_for(lambda: coordinator.status()["state"] == "native")
    assert "asked for by user" in ctl(folder, "status")[1]


def test_why_a_job_stays_with_native_steps_is_said_with_the_mode_that_is_asked_for(begin, ctl):
    coordinator, _ = begin(2, ranks=False, silent_s=600)
    sock, frames = dial(coordinator.address, COORDINATOR, SECRET, 5)
    sock.sendall(frames.seal(MESSAGE, encode(Objects(1, ("the model is too good",)))))
    wait_for(lambda: coordinator.status()["refusals"])
    line = "native   rank 1 stays with native steps: the model is too good\n"
    assert line in ctl(coordinator.folder, "status")[1]
    code, out, _ = ctl(coordinator.folder, "mode", "m-sync", "--option", "m=1")
    assert (code, line in out) == (0, True)
    assert line not in ctl(coordinator.folder, "mode", "native")[1]
    told = json.loads(ctl(coordinator.folder, "status", "--json")[1])["refusals"]
    assert told == [{"rank": 1, "reasons": ["the model is too good"]}]
    sock.close()


def test_json_is_the_answer_with_its_schema(begin, ctl):
    coordinator, _ = begin(2)
    answer = json.loads(ctl(coordinator.folder, "status", "--json")[1])
    assert answer["schema"] == 1
    assert {"mode", "ranks", "rounds_per_s"} <= answer.keys()
    assert "ok" not in answer
    assert set(json.loads(ctl(coordinator.folder, "history", "--json")[1])) == {"schema", "switches", "updates"}


def test_a_frozen_mode_is_refused_with_one_line(begin, ctl):
    coordinator, _ = begin(2)
    assert ctl(coordinator.folder, "freeze") == (0, "the mode stays as it is\n", "")
    code, out, err = ctl(coordinator.folder, "mode", "asgd")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "frozen by user" in err
    assert ctl(coordinator.folder, "unfreeze") == (0, "the mode may be changed\n", "")
    assert ctl(coordinator.folder, "mode", "asgd")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mode", "m-sink"], "no synchronisation mode"),
        (["mode", "m-sync"], "takes m"),
        (["mode", "m-sync", "--option", "m=0"], "at least 1"),
        (["mode", "m-sync", "--option", "m=many"], "can't be 'many'"),
        (["mode", "m-sync", "--option", "m=2", "--option", "q=1"], "takes m"),
        (["mode", "m-sync", "--option", "m"], "NAME=VALUE"),
        (["mode", "m-sync", "--option", "m=1", "--option", "m=2"], "given twice"),
        (["mode", "backup", "--option", "b=2"], "less than the 2 workers"),
        (["mode", "lb-bsp", "--option", "batch_size=2"], "can't be had in a running job"),
        (["mode", "local-sgd", "--option", "period=0"], "at least 1 step"),
        (["mode", "hierarchical", "--option", "period=2", "--option", "groups=[[0]]"], "in one group"),
        (["mode", "native", "--option", "m=2"], "takes no options"),
        (["mode"], "which mode"),
        (["status", "m-sync"], "takes no mode"),
        (["freeze", "--option", "m=2"], "takes no mode"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_one_line_and_changes_nothing(begin, ctl, arguments, says):
    coordinator, _ = begin(2, ranks=False)
    code, out, err = ctl(coordinator.folder, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert coordinator.status()["wish"] == "native"


def test_nobody_who_listens_is_one_line(tmp_path, ctl):
    for job in (tmp_path, tmp_path / "no-such.starprof"):
        code, out, err = ctl(job, "status")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "no coordinator listens" in err


def test_a_killed_coordinator_is_nobody(begin, ctl):
    coordinator, _ = begin(2, ranks=False)
    coordinator.kill()
    assert ctl(coordinator.folder, "status")[0] == 1


def test_a_job_is_named_by_its_run_file(begin, ctl, tmp_path):
    run = tmp_path / "my.starprof"
    folder = tmp_path / "my.starprof.spool" / "control"
    folder.mkdir(parents=True)
    begin(2, ranks=False, state=str(folder))
    assert ctl(run, "status")[0] == 0
    assert ctl(folder.parent, "status")[0] == 0
    assert ctl(folder, "status")[0] == 0


def test_a_path_that_is_too_long_for_a_socket_is_no_obstacle(begin, ctl, tmp_path):
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)
    begin(2, ranks=False, state=str(folder))
    assert ctl(folder, "status")[0] == 0


def test_what_a_coordinator_says_can_not_move_the_cursor(begin, ctl):
    coordinator, _ = begin(2, ranks=False)
    coordinator.ask("freeze", by="\x1b[2J\u202esomebody")
    code, out, _ = ctl(coordinator.folder, "status")
    assert code == 0
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "\\x1b[2J" in out


@pytest.mark.parametrize("said", [b"no json\n", b"[1]\n", b"{", b""], ids=repr)
def test_what_is_no_coordinator_is_one_line(tmp_path, ctl, said):
    control = controlsocket.ControlSocket(tmp_path)
    control.sock.settimeout(10)

    def answer():
        visitor, _ = control.sock.accept()
        with visitor:
            visitor.recv(1000)
            visitor.sendall(said)

    thread = threading.Thread(target=answer)
    thread.start()
    code, out, err = ctl(tmp_path, "status")
    thread.join(10)
    control.close()
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_a_coordinator_that_hangs_is_not_waited_for_without_end(tmp_path):
    control = controlsocket.ControlSocket(tmp_path)
    with pytest.raises(Exception, match="did not answer"):
        controlsocket.ask(tmp_path, {"do": "status"}, timeout_s=0.2)
    control.close()


def test_a_socket_of_a_newer_coordinator_is_left_alone(tmp_path):
    older = controlsocket.ControlSocket(tmp_path)
    newer = controlsocket.ControlSocket(tmp_path)
    older.close()
    with socket.socket(socket.AF_UNIX) as visitor, controlsocket.reachable(tmp_path) as name:
        visitor.connect(name)
    newer.close()
    assert not (tmp_path / controlsocket.NAME).exists()


def test_a_loop_that_turns_out_to_be_unfit_for_rounds_goes_back_to_native_steps_for_good(begin, ctl):
    coordinator, job = begin(2)
    in_rounds(coordinator, mode="asgd")
    for rank in job.ranks:
        rank.do(rank.member.refuse, "a barrier by a count of its own")
    wait_for(lambda: state_of(coordinator) == "native")
    assert "native   for good: a barrier by a count of its own\n" in ctl(coordinator.folder, "status")[1]
    assert "asked for by coordinator (a barrier by a count of its own)" in ctl(coordinator.folder, "history")[1]
    code, _, err = ctl(coordinator.folder, "mode", "asgd")
    assert (code, "a barrier by a count of its own" in err) == (1, True)
    assert ctl(coordinator.folder, "mode", "native")[0] == 0
    job.progress(5)
