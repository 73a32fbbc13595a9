"""The coordinator as a process, ranks over real sockets: modes change, one history, whatever is killed, cut or sent."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from coordinator_lab import PATIENCE_S, SECRET, in_rounds, said_hello, state_of, wait_for

from starprof.control import controlsocket
from starprof.control.codec import encode
from starprof.control.coordinator.rest import MANY_SHORT
from starprof.control.speech import COORDINATOR, MESSAGE, PING
from starprof.spool.frame import frames
from starprof.sync.policies import Gradient
from starprof.sync.protocol.messages import Arrive, Objects, Wished
from starprof.wire.channel import dial, hang_up


class TestModes:
    def test_a_job_is_moved_to_rounds_and_to_another_mode_and_back(self, begin):
        coordinator, job = begin(4)
        wait_for(lambda: state_of(coordinator) == "native")
        in_rounds(coordinator)
        job.progress(20)
        assert coordinator.ask("mode", mode="static-x", options={"x": 2}, by="advisor", reason="it pays")["ok"]
        wait_for(lambda: coordinator.status()["mode"] == "static-x")
        job.progress(20)
        assert coordinator.ask("mode", mode="native")["ok"]
        wait_for(lambda: state_of(coordinator) == "native")
        job.progress(5)
        job.assert_one_history()
        switches = coordinator.ask("history")["switches"]
        assert [(s["from"], s["to"]) for s in switches] == [
            ("native", "m-sync"),
            ("m-sync", "static-x"),
            ("static-x", "native"),
        ]
        assert (switches[1]["asked_by"], switches[1]["reason"]) == ("advisor", "it pays")
        assert switches[0]["version"] < switches[1]["version"] < switches[2]["version"]

    def test_a_mode_can_be_wished_for_from_the_start(self, begin):
        coordinator, job = begin(2, mode="asgd")
        wait_for(lambda: state_of(coordinator) == "rounds")
        job.progress(10)
        job.assert_one_history()

    def test_many_ranks_whose_gradients_are_heard_together_have_one_history(self, begin):
        coordinator, job = begin(2 * MANY_SHORT + 4)
        in_rounds(coordinator, mode="m-sync", options={"m": 2 * MANY_SHORT})
        job.progress(10)
        job.assert_one_history()

    def test_status_tells_who_does_not_contribute(self, begin):
        coordinator, job = begin(4)
        job.ranks[3].compute_s = 0.3
        in_rounds(coordinator)
        wait_for(lambda: coordinator.status()["updates"] > 100)
        status = coordinator.status()
        shares = {rank["rank"]: rank["share"] for rank in status["ranks"]}
        assert shares[3] < min(shares[0], shares[1], shares[2])
        assert {rank["state"] for rank in status["ranks"]} == {"connected"}
        assert status["rounds_per_s"] > 0
        wait_for(lambda: all(rank["last_arrival_s"] is not None for rank in coordinator.status()["ranks"]))

    def test_a_frozen_mode_stays_until_it_is_not(self, begin):
        coordinator, job = begin(2)
        assert coordinator.ask("freeze", by="user")["frozen_by"] == "user"
        refused = coordinator.ask("mode", mode="asgd", by="advisor")
        assert (refused["ok"], refused["usage"]) == (False, False)
        assert "frozen by user" in refused["error"]
        coordinator.ask("unfreeze")
        in_rounds(coordinator, mode="asgd")
        job.progress(5)

    def test_history_tells_of_each_update_what_it_is_made_of(self, begin):
        coordinator, job = begin(3)
        in_rounds(coordinator, mode="m-sync", options={"m": 2})
        job.progress(30)
        updates = coordinator.ask("history", last=10)["updates"]
        assert [u["version"] for u in updates] == list(range(updates[0]["version"], updates[0]["version"] + 10))
        for update in updates:
            assert len(update["contributors"]) == len(update["staleness"]) == len(update["weights"]) == 2
            assert update["mode"] == "m-sync"
            assert sum(update["weights"]) == pytest.approx(1.0)

    @pytest.mark.parametrize(
        "question",
        [
            {"do": "mode", "mode": "no such mode"},
            {"do": "mode", "mode": "m-sync"},
            {"do": "mode", "mode": "m-sync", "options": {"m": 2.5}},
            {"do": "mode", "mode": "m-sync", "options": {"m": 2, "q": 1}},
            {"do": "mode", "mode": "m-sync", "options": [2]},
            {"do": "mode", "mode": "lb-bsp", "options": {"batch_size": 2}},
            {"do": "mode", "mode": "native", "options": {"m": 2}},
            {"do": "history", "last": -1},
            {"do": "gone", "rank": 9},
            {"do": "something else"},
            {},
        ],
        ids=lambda q: json.dumps(q),
    )
    def test_what_makes_no_sense_is_refused_with_a_reason(self, begin, question):
        coordinator, _ = begin(2, ranks=False)
        answer = controlsocket.ask(coordinator.folder, question)
        assert (answer["ok"], answer["usage"]) == (False, True)
        assert answer["error"]
        assert "\n" not in answer["error"]


class TestMeetings:
    def test_ranks_that_pause_go_on_together_with_one_version(self, begin):
        coordinator, job = begin(4)
        job.ranks[2].compute_s = 0.05
        in_rounds(coordinator)
        for _ in range(3):
            job.progress(3)
            assert len(set(job.meet())) == 1
        job.progress(3)
        job.assert_one_history()

    def test_rounds_end_at_a_meeting_where_no_round_has_everybody(self, begin):
        coordinator, job = begin(3)
        job.ranks[2].compute_s = 0.05
        in_rounds(coordinator, mode="m-sync", options={"m": 1})
        job.progress(3)
        assert coordinator.ask("mode", mode="native")["ok"]
        job.meet()
        wait_for(lambda: state_of(coordinator) == "native")
        assert coordinator.ask("history")["switches"][-1]["to"] == "native"
        before = job.version()
        wait_for(lambda: job.version() > before + 5)
        job.assert_one_history()


class TestTrouble:
    def test_a_killed_coordinator_is_followed_by_another_that_goes_on(self, begin):
        coordinator, job = begin(4)
        in_rounds(coordinator)
        job.progress(10)
        for _ in range(3):
            coordinator.kill()
            coordinator.start()  # with the settings of the first: what was wished for since the ranks know
            job.progress(10)
        job.assert_one_history()
        status = coordinator.status()
        assert (status["epoch"], status["mode"], status["state"]) == (4, "m-sync", "rounds")
        assert coordinator.ask("history")["switches"] == []  # nothing changed in this reign
        assert all(rank.lost_connections >= 3 for rank in job.ranks)

    def test_a_frozen_mode_is_frozen_for_the_next_coordinator_too(self, begin):
        coordinator, _ = begin(2, mode="asgd")
        wait_for(lambda: state_of(coordinator) == "rounds")
        coordinator.ask("freeze", by="somebody")
        coordinator.kill()
        coordinator.start()
        wait_for(lambda: coordinator.status()["frozen_by"])
        assert not coordinator.ask("mode", mode="native")["ok"]
        status = coordinator.status()
        assert (status["wish"], status["frozen_by"]) == ("asgd", "somebody")

    def test_the_next_coordinator_wants_the_same_wherever_it_starts(self, tmp_path, begin):
        """Nothing of it is in the folder, which another node does not have."""
        coordinator, job = begin(2)
        wait_for(lambda: state_of(coordinator) == "native")
        coordinator.ask("mode", mode="asgd", by="somebody")
        wait_for(lambda: all(rank.member.hello().wished for rank in job.ranks))
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        coordinator.kill()
        coordinator.folder = elsewhere
        coordinator.start(state=str(elsewhere))
        wait_for(lambda: state_of(coordinator) == "rounds")
        assert coordinator.status()["wish"] == "asgd"
        coordinator.ask("mode", mode="native")
        wait_for(lambda: all('"native"' in rank.member.hello().wished.text for rank in job.ranks))

    @pytest.mark.parametrize("text", ["", "{", '{"mode": "m-sync", "options": {}}', "[1]", '{"mode": 1}', "[" * 3000])
    def test_a_wish_that_makes_no_sense_is_none(self, begin, text):
        coordinator, _ = begin(2, ranks=False, mode="asgd", epoch=1)
        sock, _ = said_hello(coordinator, 0, wished=Wished(1, 1, text))
        assert coordinator.status()["wish"] == "asgd"
        sock.close()

    def test_why_ranks_stay_with_native_steps_is_known_while_they_do(self, begin):
        coordinator, _ = begin(2, ranks=False)
        sock, sealing = dial(coordinator.address, COORDINATOR, SECRET, 5)
        for reasons in (("one", "two"), ("three",)):
            sock.sendall(sealing.seal(MESSAGE, encode(Objects(1, reasons))))
            told = [{"rank": 1, "reasons": list(reasons)}]
            wait_for(lambda told=told: coordinator.status()["refusals"] == told)
        assert coordinator.ask("mode", mode="asgd")["refusals"] == told
        hang_up(sock)
        wait_for(lambda: coordinator.status()["refusals"] == [])

    def test_what_is_wanted_and_refused_is_in_the_spool_once_with_the_reasons(self, begin, tmp_path):
        segments = tmp_path / "segments"
        segments.mkdir()
        coordinator, _ = begin(2, ranks=False, segments=str(segments), silent_s=60, mode="m-sync", options={"m": 1})
        ends = []
        for rank in (0, 1):
            ends.append(dial(coordinator.address, COORDINATOR, SECRET, 5))
            ends[-1][0].sendall(ends[-1][1].seal(MESSAGE, encode(Objects(rank, ("its model is in shards",)))))
            wait_for(lambda rank=rank: len(coordinator.status()["refusals"]) == rank + 1)
        coordinator.ask("mode", mode="asgd")
        coordinator.process.send_signal(signal.SIGTERM)
        coordinator.process.wait(PATIENCE_S)
        for sock, _ in ends:
            hang_up(sock)
        told = []
        for path in sorted(segments.iterdir()):
            for frame, _ in frames(path.read_bytes()):
                told += [dict(zip(frame.table.names, cells, strict=True)) for cells in frame.json_rows()]
        switches = [(row["to_mode"], row["version"], row["reason"]) for row in told]
        assert switches == [(mode, None, "its model is in shards") for mode in ("m-sync", "asgd")]

    def test_who_refuses_to_take_part_can_say_nothing_else(self, begin):
        coordinator, _ = begin(2, ranks=False)
        sock, sealing = dial(coordinator.address, COORDINATOR, SECRET, 5)
        sock.sendall(sealing.seal(MESSAGE, encode(Objects(1, ("one",)))))
        sock.sendall(sealing.seal(MESSAGE, encode(Arrive(1, Gradient(1, 0, 0), 0))))
        sock.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
        sock.close()

    def test_a_new_job_does_not_want_what_one_before_did(self, begin):
        coordinator, _ = begin(2, ranks=False)
        coordinator.ask("mode", mode="asgd")
        coordinator.kill()
        coordinator.settings["epoch"] = 0
        coordinator.start()
        assert coordinator.status()["wish"] == "native"

    def test_cut_connections_lose_nothing(self, begin):
        coordinator, job = begin(4)
        in_rounds(coordinator)
        for turn in range(12):
            job.progress(3)
            hang_up(job.ranks[turn % 4].link._socket)
        job.progress(10)
        job.assert_one_history()
        assert {rank["state"] for rank in coordinator.status()["ranks"]} == {"connected"}

    def test_a_rank_that_stays_away_is_lost_and_gets_the_state_when_it_comes_back(self, begin):
        coordinator, job = begin(4, lease_s=0.5)
        in_rounds(coordinator)
        job.progress(5)
        away = job.ranks[3]
        address_of, away.link._address_of = away.link._address_of, lambda: ("127.0.0.1", 1)
        hang_up(away.link._socket)
        wait_for(lambda: coordinator.status()["ranks"][3]["state"] == "lost")
        before = job.ranks[0].member.version
        wait_for(lambda: job.ranks[0].member.version > before + 20)
        away.link._address_of = address_of
        wait_for(lambda: coordinator.status()["ranks"][3]["state"] == "connected")
        wait_for(lambda: away.member.version > before + 20)
        job.assert_one_history()

    def test_a_rank_whose_process_has_ended_is_not_waited_for(self, begin):
        coordinator, job = begin(3, lease_s=60)
        in_rounds(coordinator, mode="ssgd")
        job.progress(5)
        job.ranks[2].end()
        assert coordinator.ask("gone", rank=2)["ok"]
        before = job.ranks[0].member.version
        wait_for(lambda: job.ranks[0].member.version > before + 10)
        assert coordinator.status()["ranks"][2]["state"] == "lost"

    def test_a_silent_connection_is_cut(self, begin):
        coordinator, _ = begin(2, ranks=False, silent_s=0.5)
        sock, _ = said_hello(coordinator, 0)
        wait_for(lambda: coordinator.status()["ranks"][0]["state"] == "disconnected")
        sock.close()

    def test_pings_are_answered_and_keep_a_connection(self, begin):
        coordinator, _ = begin(2, ranks=False, silent_s=0.5)
        sock, seal = said_hello(coordinator, 0)
        for _ in range(10):
            sock.sendall(seal(PING))
            assert sock.recv(100)
            time.sleep(0.1)
        assert coordinator.status()["ranks"][0]["state"] == "connected"
        sock.close()


class TestLife:
    def test_it_ends_when_all_ranks_have_left(self, begin):
        coordinator, job = begin(2, linger_s=0.2)
        in_rounds(coordinator, mode="asgd")
        for rank in job.ranks:
            rank._stop.set()
        for rank in job.ranks:
            rank.do(rank.member.done)
        assert coordinator.process.wait(PATIENCE_S) == 0
        assert "all ranks have left" in coordinator.log()
        assert not (coordinator.folder / controlsocket.NAME).exists()

    def test_it_ends_when_nobody_comes(self, begin):
        coordinator, _ = begin(2, ranks=False, idle_s=0.3)
        assert coordinator.process.wait(PATIENCE_S) == 0
        assert "no rank is connected" in coordinator.log()

    def test_it_ends_when_it_is_told_to_and_not_by_ctrl_c(self, begin):
        coordinator, job = begin(2)
        coordinator.process.send_signal(signal.SIGINT)
        job.progress(5)
        coordinator.process.send_signal(signal.SIGTERM)
        assert coordinator.process.wait(PATIENCE_S) == 0

    def test_the_secret_may_come_over_a_descriptor(self, tmp_path):
        settings = {"ranks": 1, "state": str(tmp_path), "token_fd": 0, "idle_s": 0.2}
        done = run_once(settings, SECRET)
        assert (done.returncode, b"listening" in done.stdout) == (0, True)

    @pytest.mark.parametrize(
        "settings",
        [
            {"ranks": 0, "state": "."},
            {"ranks": [0, -1], "state": "."},
            {"ranks": 2},
            {"ranks": 2, "state": ".", "lease_s": -1},
            {"ranks": 2, "state": ".", "port": 70_000},
            {"ranks": 2, "state": ".", "mode": "nothing"},
            {"ranks": 2, "state": ".", "secret": "on the command line"},
            {"ranks": 2, "state": "."},
            [],
        ],
        ids=str,
    )
    def test_wrong_settings_are_one_line(self, settings):
        done = run_once(settings, b"")
        assert done.returncode == 2
        assert done.stderr.count(b"\n") == 1
        assert done.stdout == b""

    def test_a_taken_port_is_one_line(self, tmp_path, begin):
        coordinator, _ = begin(2, ranks=False)
        port = coordinator.address[1]
        done = run_once({"ranks": 1, "state": str(tmp_path), "port": port, "token_fd": 0}, SECRET)
        assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
        assert b"can't listen" in done.stderr
        assert coordinator.status()["ok"]  # its socket is still its own

    def test_what_it_did_is_in_the_spool(self, begin, tmp_path):
        segments = tmp_path / "segments"
        segments.mkdir()
        coordinator, job = begin(2, segments=str(segments))
        in_rounds(coordinator, mode="m-sync", options={"m": 1})
        job.progress(50)
        coordinator.process.send_signal(signal.SIGTERM)
        coordinator.process.wait(PATIENCE_S)
        rows = {}
        for path in sorted(segments.iterdir()):
            for frame, _ in frames(path.read_bytes()):
                rows[frame.table.name] = rows.get(frame.table.name, 0) + frame.rows
        assert rows["sync_switch"] == 1
        assert rows["sync_update"] >= 50


def run_once(settings, token):
    """A coordinator that ends by itself."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "starprof.control.coordinator", json.dumps(settings)],
        input=token,
        capture_output=True,
        env={key: value for key, value in os.environ.items() if key != "STARPROF_CONTROL_TOKEN"},
        timeout=PATIENCE_S,
        check=False,
    )


def test_nothing_of_a_link_is_left_in_a_forked_child(begin):
    coordinator, job = begin(2)
    wait_for(lambda: all(rank.link.connected for rank in job.ranks))
    link = job.ranks[0].link
    child = os.fork()
    if child == 0:
        deaf = link._socket is None and not link.connected and threading.active_count() == 1
        link.send(Arrive(0, Gradient(0, 0, 0), 0))
        os._exit(0 if deaf else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert link.connected
    job.progress(3)
    in_rounds(coordinator, mode="asgd")
    job.progress(3)
