"""A real server with real nodes: records of many jobs arrive once, whatever happens, and only who may can look."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import duckdb
import pytest
from serve_parts import describe_ranks, own_times, step_frame

from starprof.errors import StarprofError, UsageError
from starprof.launch.journal import Journal
from starprof.launch.outbox import Outbox
from starprof.launch.plan import Plan
from starprof.launch.sender import Sender
from starprof.model.schema import BY_NAME
from starprof.serve import server
from starprof.serve.ask import ask_local, ask_remote
from starprof.spool import audit
from starprof.spool.frame import frames, packed_frame
from starprof.spool.segment import SegmentWriter
from starprof.wire.frames import RejectedError

SECRET = "a secret of all jobs"


def wait_for(condition, timeout_s=60.0):
    deadline_s = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(StarprofError):
            if value := condition():
                return value
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.05)


class Node:
    """A node as `record --join` makes it, whose job is played by the test."""

    def __init__(self, folder, address, job, secret):
        self.plan = Plan(
            run_file=str(folder / f"{job}-node.starprof"), run_id="?", command=("train",), lock_fd=-1, node=None,
            join="server", job=job,
        )  # fmt: skip
        self.plan.spool.create()
        self.sender = Sender.join(self.plan, address, secret)
        self.sender.start(Journal(self.plan.spool.segments, self.sender.node))
        self.writer = SegmentWriter(self.plan.spool.segments, f"n{self.sender.node}", seal_seconds=0.5)
        self.steps = 0

    def work(self, steps=100):
        """Two ranks make steps; the second one is slow from step 200 on."""
        if not self.steps:
            self.writer.write([self._own(frame) for frame in describe_ranks(2)])
        for first in range(self.steps, self.steps + steps, 20):
            own = [own_times(first + 20, seed=rank, slow_from=200 if rank else None)[first:] for rank in range(2)]
            self.writer.write([self._own(step_frame(rank, first, own[rank])) for rank in range(2)])
        self.steps += steps

    def _own(self, frame):
        """In a stream of this node."""
        name = frame.stream.partition("-")[2]
        return type(frame)(
            frame.table, f"n{self.sender.node}-{name}", frame.seq, frame.rows, frame.encoding, frame.payload
        )

    def end(self):
        self.writer.close()
        self.sender.begin_end(drained=True)
        wait_for(self.sender.complete)
        self.sender.close()


@pytest.fixture
def serve(tmp_path):
    """Start a real server in `runs`; its process and address."""
    started = []

    def start(*options, listen="127.0.0.1:0"):
        process = subprocess.Popen(
            [sys.executable, "-m", "starprof", "serve", str(tmp_path / "runs"), "--listen", listen, *options],
            env={**os.environ, "STARPROF_TOKEN": SECRET},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        line = process.stderr.readline()
        host, port = line.split(" on ")[1].split(",")[0].split(":")
        return process, (host, int(port))

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


def rows_of(run_file):
    with duckdb.connect(str(run_file), read_only=True) as connection:
        counts = connection.execute("SELECT count(*), count(DISTINCT (rank, step)), max(step) FROM step").fetchone()
        gaps = connection.execute("SELECT count(*) FROM gap").fetchone()[0]
    return (*counts, gaps)


def finished(tmp_path, name):
    wait_for(lambda: not (tmp_path / "runs" / f"{name}.starprof.spool").exists(), 120)
    return rows_of(tmp_path / "runs" / f"{name}.starprof")


def test_each_job_has_its_run_its_secret_and_nobody_elses(serve, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    for job in ("one", "two"):
        (tokens / job).write_text(f"secret of job {job}\n")
        (tokens / job).chmod(0o600)
    _, address = serve("--token-dir", str(tokens))
    where = f"{address[0]}:{address[1]}"
    nodes = {job: Node(tmp_path, address, job, f"secret of job {job}".encode()) for job in ("one", "two")}
    for node in nodes.values():
        node.work(400)
    own = str(tokens / "one")

    def late():
        answer = ask_remote(where, own, {"do": "live"})
        return answer if answer["ok"] and answer["step"] == 399 else None

    seen = wait_for(late)
    assert (seen["job"], seen["world_size"], seen["ranks"][0]["rank"], seen["ranks"][0]["state"]) == (
        "one", 2, 1, "confirmed",
    )  # fmt: skip
    for question in ({"do": "live", "job": "two"}, {"do": "jobs"}, {"do": "metrics"}):
        answer = ask_remote(where, own, question)
        assert not answer["ok"]
        assert "two" not in answer["error"]
    with pytest.raises(RejectedError, match="does not accept"):
        Sender.join(nodes["one"].plan, address, b"no secret of anybody")
    with pytest.raises(RejectedError, match="another job"):
        Sender.join(nodes["two"].plan, address, b"secret of job one")
    for node in nodes.values():
        node.end()
    assert finished(tmp_path, "one") == finished(tmp_path, "two") == (800, 800, 399, 0)
    actions = {entry["action"] for entry in audit.read(tmp_path / "runs" / "serve.audit")}
    assert {"node-joined", "node-left", "stranger", "refused", "job-ended"} <= actions


def test_server_that_is_killed_and_started_again_loses_nothing_and_repeats_nothing(serve, tmp_path):
    process, address = serve()
    node = Node(tmp_path, address, "job", SECRET.encode())
    node.work(100)
    wait_for(lambda: ask_local(tmp_path / "runs", {"do": "live", "job": "job"}).get("step") == 99)
    process.send_signal(signal.SIGKILL)
    process.wait()
    node.work(100)  # nobody is there: it waits on the node's disk
    serve(listen=f"{address[0]}:{address[1]}")
    node.work(100)
    node.end()
    assert finished(tmp_path, "job") == (600, 600, 299, 0)
    assert not list(node.plan.spool.segments.iterdir())


def test_job_has_to_say_its_name_where_all_share_a_secret(serve, tmp_path):
    _, address = serve()
    with pytest.raises(RejectedError, match="say which one"):
        Node(tmp_path, address, None, SECRET.encode())
    with pytest.raises(RejectedError, match="made of letters"):
        Node(tmp_path, address, "../job", SECRET.encode())


@pytest.mark.parametrize(
    ("wish", "why"),
    [({"secret": None}, "share a secret"), ({"secret": None, "token_dir": "missing"}, "is no folder"),
     ({"metrics": ("0.0.0.0", 1), "secret": None, "token_dir": "."}, "reader's token")],
)  # fmt: skip
def test_server_that_would_be_open_to_everybody_is_refused(tmp_path, wish, why):
    if wish.get("token_dir"):
        wish["token_dir"] = tmp_path / wish["token_dir"]
    with pytest.raises(UsageError, match=why):
        server.Server(server.Wish(tmp_path / "runs", ("127.0.0.1", 0), **wish))


def test_secret_that_others_may_read_is_refused(tmp_path):
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o644)
    answer = subprocess.run(
        [sys.executable, "-m", "starprof", "serve", str(tmp_path), "--token-file", str(tmp_path / "secret")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == 1
    assert "others may read the secret" in answer.stderr


class TestBuffer:
    """What waits on a node's disk is bounded, and what has to go is counted."""

    def box(self, tmp_path, segments=6):
        sample = BY_NAME["agent_sample"]
        for number in range(segments):
            writer = SegmentWriter(tmp_path, f"n1-{number}")
            rows = [[1, i, 0, 0, 0, 0, 0] for i in range(500)]
            writer.write([packed_frame(sample, f"n1-{number}/agent_sample", 0, rows)])
            writer.write([step_frame(2, number * 10, own_times(10))])
            writer.close()
        made = Outbox(tmp_path, 1)
        made.look()
        return made

    def tables(self, tmp_path):
        found = [f.table.name for path in tmp_path.glob("*.seg") for f, _ in frames(path.read_bytes())]
        return found.count("agent_sample"), found.count("step")

    def size(self, tmp_path):
        return sum(path.stat().st_size for path in tmp_path.iterdir())

    def test_oldest_counters_go_before_any_step(self, tmp_path):
        box = self.box(tmp_path)
        whole = self.size(tmp_path)
        assert box.shrink(whole) == 0
        dropped = box.shrink(whole // 2)
        samples, steps = self.tables(tmp_path)
        assert (dropped, steps) == ((6 - samples) * 500, 6)
        assert 0 < samples < 6
        assert self.size(tmp_path) <= whole // 2

    def test_steps_go_when_nothing_else_is_left(self, tmp_path):
        box = self.box(tmp_path)
        left = self.size(tmp_path) // 100
        assert box.shrink(left) > 6 * 500
        assert self.size(tmp_path) <= left
        box.look()
        box.shrink(0)
        assert list(tmp_path.iterdir()) == []

    def test_what_is_partly_sent_stays_as_it_is(self, tmp_path):
        box = self.box(tmp_path, segments=1)
        assert b"".join(box.pieces())
        assert box.shrink(0) == 0


def test_audit_log_is_for_its_owner_and_strangers_can_not_fill_it(tmp_path):
    log = audit.Audit(tmp_path / "x.audit")
    for _ in range(100):
        log.note("stranger", by="node 0", where="\x1b[2J" * 10_000)
    assert log.note("mode", by="user", mode="native", outcome="accepted")
    entries = audit.read(log.path)
    assert len(entries) == audit.MAX_STRANGERS_PER_MINUTE + 1
    assert entries[-1]["mode"] == "native"
    assert log.path.stat().st_mode & 0o077 == 0
    assert "\x1b" not in log.path.read_text()
    assert json.loads(log.path.read_text().splitlines()[0])["action"] == "stranger"
