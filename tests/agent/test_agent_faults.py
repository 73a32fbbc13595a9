"""A real agent that is killed, stopped, and that meets a full disk."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from agent_lab import Lab, eventually, stop


def restart(lab, agent, **options):
    agent.kill()
    agent.wait()
    return lab.agent(**options)


def test_after_kill_9_a_new_agent_goes_on_and_records_the_gap(lab):
    agent, rank = lab.agent(), lab.rank(0)
    eventually(lambda: len(lab.rows("step")) > 10)
    for _ in range(3):
        agent = restart(lab, agent)
        count = len(lab.rows("step"))
        eventually(lambda count=count: len(lab.rows("step")) > count + 10)
    written = rank.kill()
    assert stop(agent)[0] == 0

    steps = [row["step"] for row in lab.rows("step")]
    assert steps == list(range(len(steps)))
    assert len(steps) >= written
    assert lab.holes() == []
    gaps = lab.rows("gap")
    assert len(gaps) == 3
    assert all(gap["source"] == "agent" and gap["to_mono_ns"] > gap["from_mono_ns"] for gap in gaps)


def test_at_most_the_last_second_of_samples_is_missing_after_kill_9(lab):
    agent = lab.agent()
    eventually(lambda: len(lab.rows("node_sample")) > 20)
    killed_ns = time.monotonic_ns()
    agent.kill()
    agent.wait()

    assert killed_ns - max(row["mono_ns"] for row in lab.rows("node_sample")) < 1_500_000_000


def test_a_clean_end_and_a_new_start_is_no_gap(lab):
    agent = lab.agent()
    eventually(lambda: lab.rows("agent_sample"))
    stop(agent)
    agent = lab.agent()
    eventually(lambda: len(lab.rows("node")) == 2)
    stop(agent)

    assert lab.rows("gap") == []


def test_a_damaged_state_file_only_costs_sending_the_rings_again(lab):
    agent, _rank = lab.agent(), lab.rank(0)
    eventually(lambda: len(lab.rows("step")) > 10)
    agent.kill()
    agent.wait()
    (lab.spool.agents / "n0.json").write_text('{"pid": 1, "boot')
    agent = lab.agent()
    eventually(lambda: len(lab.rows("step")) > 60)
    stop(agent)

    assert lab.holes() == []


def test_a_stopped_agent_records_the_gap_when_it_goes_on(lab):
    agent = lab.agent()
    eventually(lambda: len(lab.rows("agent_sample")) >= 2)
    agent.send_signal(signal.SIGSTOP)
    time.sleep(2.0)
    agent.send_signal(signal.SIGCONT)
    (gap,) = eventually(lambda: lab.rows("gap"))
    stop(agent)

    assert gap["source"] == "agent"
    assert gap["to_mono_ns"] - gap["from_mono_ns"] == pytest.approx(2e9, rel=0.25)
    assert lab.rows("agent_sample")[-1]["late_ticks"] >= 1


def test_descriptors_and_memory_stay_flat_while_processes_come_and_go(lab):
    parent = (
        "import subprocess, sys, time\n"
        "exec(sys.argv.pop(1).split('for step')[0])\n"
        "while True: subprocess.run(['sleep', '0.05'])"
    )
    from agent_lab import RANK

    agent = lab.agent(rate="50")
    words = [str(lab.spool.rings), "0", "1", "0", "64"]
    job = subprocess.Popen([sys.executable, "-c", parent, RANK, *words], start_new_session=True)
    try:
        eventually(lambda: [row for row in lab.rows("process_sample") if row["rank"] == 0])

        def descriptors():
            return len(os.listdir(f"/proc/{agent.pid}/fd"))

        time.sleep(1.5)
        early = [descriptors() for _ in range(10) if time.sleep(0.1) is None]
        time.sleep(5)
        late = [descriptors() for _ in range(10) if time.sleep(0.1) is None]
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    stop(agent)

    assert len({row["pid"] for row in lab.rows("process_sample") if row["is_rank"] == 0}) >= 3
    assert max(late) <= max(early) + 4
    assert lab.rows("agent_sample")[-1]["rss_bytes"] <= 30 << 20


def test_twenty_processes_are_all_sampled_within_the_memory_bound(lab):
    agent = lab.agent()
    for number in range(4):
        lab.rank(number, children=4)
    pids = eventually(
        lambda: (p := {r["pid"] for r in lab.rows("process_sample") if r["rank"] >= 0}) and len(p) == 20 and p
    )
    eventually(lambda: len(lab.rows("agent_sample")) >= 5)
    stop(agent)

    last_ns = max(row["mono_ns"] for row in lab.rows("process_sample"))
    assert {row["pid"] for row in lab.rows("process_sample") if row["mono_ns"] == last_ns and row["rank"] >= 0} == pids
    assert lab.rows("agent_sample")[-1]["rss_bytes"] <= 30 << 20


@contextlib.contextmanager
def small_disk(folder, kib):
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.root
def test_a_full_disk_drops_samples_but_no_step_and_tells_both_when_there_is_room_again(tmp_path):
    with small_disk(tmp_path / "disk", 3072) as disk:
        lab = Lab(disk / "run.starprof.spool")
        try:
            agent, rank = lab.agent(), lab.rank(0)
            eventually(lambda: len(lab.rows("step")) > 5)
            ballast = disk / "ballast"
            with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
            time.sleep(5)
            assert agent.poll() is None
            ballast.unlink()
            (event,) = eventually(lambda: [r for r in lab.rows("event") if r["kind"] == "disk-full"])
            count = len(lab.rows("node_sample"))
            eventually(lambda: len(lab.rows("node_sample")) > count)
            steps_before = rank.steps()
            eventually(lambda: len(lab.rows("step")) >= steps_before)
            assert stop(agent)[0] == 0

            assert lab.holes() == []
            (gap,) = (row for row in lab.rows("gap") if row["lost_rows"])
            assert gap["lost_rows"] == event["value"] > 0
            assert gap["to_mono_ns"] - gap["from_mono_ns"] > 2_000_000_000
        finally:
            lab.close()


def test_the_state_names_the_agent_and_where_it_stands(lab):
    agent, rank = lab.agent(), lab.rank(0)
    eventually(lambda: len(lab.rows("step")) > 5)
    state = json.loads((lab.spool.agents / "n0.json").read_text())

    assert state["pid"] == agent.pid
    (stem,) = state["next_slots"]
    assert stem.startswith(f"n0-{rank.pid}-")
    assert state["next_slots"][stem] >= 5
