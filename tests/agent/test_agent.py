"""A real agent process: what it records, and how it ends."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from agent_lab import eventually, stop


def described(lab):
    return {row["rank"]: row for row in lab.rows("rank")}


def test_ranks_are_found_drained_and_sampled(lab):
    agent = lab.agent()
    ranks = [lab.rank(0), lab.rank(1, children=2)]
    eventually(lambda: {row["rank"] for row in lab.rows("process_sample")} >= {0, 1} and len(lab.rows("step")) > 20)
    written = [rank.steps() for rank in ranks]
    assert stop(agent)[0] == 0

    assert lab.holes() == []
    for rank, at_least in zip(ranks, written, strict=True):
        number = ranks.index(rank)
        steps = [row["step"] for row in lab.rows("step") if row["rank"] == number]
        assert steps == list(range(len(steps)))
        assert len(steps) >= at_least
        assert described(lab)[number]["pid"] == rank.pid
        assert json.loads(described(lab)[number]["detail"]) == {"flavour": "test"}
    tree = {row["pid"]: (row["rank"], row["is_rank"]) for row in lab.rows("process_sample") if row["rank"] >= 0}
    assert sorted(tree.values()) == [(0, 1), (1, 0), (1, 0), (1, 1)]
    assert [row["attempt"] for row in lab.rows("attempt")] == [0]


def test_the_node_its_clock_and_what_is_unavailable_are_told_at_the_start(lab):
    agent = lab.agent()
    eventually(lambda: lab.rows("agent_sample"))
    stop(agent)

    (node,) = lab.rows("node")
    assert node["host"] == os.uname().nodename
    assert node["cpus"] == os.sysconf("SC_NPROCESSORS_ONLN")
    assert node["boot_id"]
    assert json.loads(node["detail"])["netns"] == os.stat("/proc/self/ns/net").st_ino
    assert abs(node["unix_ns"] - node["mono_ns"] - (time.time_ns() - time.monotonic_ns())) < 1_000_000_000
    (clock,) = lab.rows("clock")
    assert (clock["offset_ns"], clock["error_ns"], clock["method"]) == (0, 0, "same-boot")
    assert all(row["reason"] for row in lab.rows("unavailable"))


def test_samples_come_at_the_given_rate_and_dear_ones_once_a_second(lab):
    agent = lab.agent(rate="20")
    eventually(lambda: len(lab.rows("agent_sample")) >= 4)
    stop(agent)

    (_, _, *rows) = lab.rows("node_sample")
    gaps_ms = sorted((b["mono_ns"] - a["mono_ns"]) / 1e6 for a, b in itertools.pairwise(rows))
    assert gaps_ms[len(gaps_ms) // 2] == pytest.approx(50, abs=5)
    irq = sorted({row["mono_ns"] for row in lab.rows("irq_sample")})
    assert all(b - a > 0.8e9 for a, b in itertools.pairwise(irq))


def test_it_records_its_own_cost(lab):
    agent = lab.agent()
    eventually(lambda: len(lab.rows("agent_sample")) >= 3)
    stop(agent)

    rows = lab.rows("agent_sample")
    assert rows == sorted(rows, key=lambda row: row["mono_ns"])
    assert 0 < rows[0]["cpu_us"] < rows[-1]["cpu_us"]
    assert 5 << 20 < rows[-1]["rss_bytes"] <= 30 << 20
    assert rows[-1]["ticks"] >= 20
    assert rows[0]["fds"] > 5


def test_sigterm_drains_what_is_in_the_rings_and_seals_the_segment(lab):
    agent, rank = lab.agent(), lab.rank(0, steps_per_s=200)
    eventually(lambda: lab.rows("step"))
    written = rank.kill()
    code, _ = stop(agent)

    assert code == 0
    assert len([row for row in lab.rows("step") if row["rank"] == 0]) >= written
    assert list(lab.spool.segments.glob("*.part")) == []
    assert json.loads((lab.spool.agents / "n0.json").read_text())["clean"] is True


def test_ctrl_c_and_a_closed_terminal_do_not_end_it(lab):
    agent = lab.agent()
    eventually(lambda: lab.rows("agent_sample"))
    agent.send_signal(signal.SIGINT)
    agent.send_signal(signal.SIGHUP)
    count = len(lab.rows("agent_sample"))
    eventually(lambda: len(lab.rows("agent_sample")) > count + 1)

    assert agent.poll() is None


def test_a_killed_rank_is_drained_and_its_silent_end_is_told(lab):
    agent, rank = lab.agent(), lab.rank(1)
    eventually(lambda: lab.rows("step"))
    written = rank.kill()
    event = eventually(lambda: [row for row in lab.rows("event") if row["kind"] == "rank-exit"])[0]
    stop(agent)

    assert (event["rank"], event["attempt"], event["node"]) == (1, 0, 0)
    assert "without a word" in event["detail"]
    assert len(lab.rows("step")) >= written
    assert lab.holes() == []


def test_rings_of_other_nodes_are_left_alone(lab):
    agent = lab.agent("--node", "1")
    lab.rank(0)
    eventually(lambda: len(lab.rows("agent_sample")) >= 3)
    stop(agent)

    assert lab.rows("step") == []
    assert {row["node"] for row in lab.rows("node_sample")} == {1}


def test_a_ring_that_fills_fast_is_drained_before_it_wraps_and_does_not_fill_the_agents_memory(lab):
    agent, rank = lab.agent(), lab.rank(0, steps_per_s=4000, slots=1 << 15)
    eventually(lambda: len(lab.rows("step")) > 20_000, seconds=40)
    rank.kill()
    stop(agent)

    assert lab.holes() == []
    assert max(row["rss_bytes"] for row in lab.rows("agent_sample")) <= 30 << 20


def test_without_its_recorder_it_goes_on_while_a_rank_lives_and_then_ends(lab):
    recorder = subprocess.Popen(["sleep", "600"])
    agent, rank = lab.agent("--parent", str(recorder.pid)), lab.rank(0)
    eventually(lambda: lab.rows("step"))
    recorder.kill()
    recorder.wait()
    count = len(lab.rows("step"))
    eventually(lambda: len(lab.rows("step")) > count + 30)
    assert agent.poll() is None

    written = rank.kill()
    assert agent.wait(timeout=10) == 0
    assert len(lab.rows("step")) >= written
    assert list(lab.spool.segments.glob("*.part")) == []


def test_a_wrong_spool_is_one_clear_line(tmp_path):
    command = [sys.executable, "-m", "starprof.agent", "--spool", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 1
    assert done.stderr.startswith("starprof agent: can't write the spool")
    assert done.stderr.count("\n") == 1


def test_a_rate_out_of_range_is_refused(tmp_path):
    command = [sys.executable, "-m", "starprof.agent", "--spool", str(tmp_path), "--rate", "100000"]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 2
    assert "not between" in done.stderr
