"""Several recorders, one run: two network namespaces stand for two hosts, a time namespace for another clock."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch_lab import processes, wait_for

PYTHON = sys.executable
JOB = str(Path(__file__).with_name("training_job.py"))
SECRET = "0123456789abcdef"
SKEW_S = 1000


def listening(recording):
    """Wait for node 0's line about its address; the address and what else it says."""
    line = recording.process.stderr.readline()
    return re.search(r"listening on (\S+);", line)[1], line


def node_0(launch, secret=SECRET):
    """A recorder, its address and what else it says. Its job reads to the end of its input, which `end` gives it."""
    env = {"STARPROF_TOKEN": secret}
    first = launch("-o", "run", "--listen", "127.0.0.1:0", "--", "cat", stdin=subprocess.PIPE, env=env)
    return first, *listening(first)


def sh(*words):
    subprocess.run(words, check=True)


@pytest.fixture
def two_hosts():
    """Command prefixes that run a program on host A (10.211.7.1) and on host B (10.211.7.2)."""
    names = [f"sp{os.getpid()}{side}" for side in "ab"]
    for number, name in enumerate(names, 1):
        sh("ip", "netns", "add", name)
        sh("ip", "-n", name, "link", "set", "lo", "up")
        if number == 2:
            sh("ip", "-n", names[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", name)
    for number, name in enumerate(names, 1):
        sh("ip", "-n", name, "addr", "add", f"10.211.7.{number}/24", "dev", "veth0")
        sh("ip", "-n", name, "link", "set", "veth0", "up")
    yield [("ip", "netns", "exec", name) for name in names]
    for name in names:
        sh("ip", "netns", "del", name)


@pytest.mark.root
def test_one_run_of_two_hosts_with_different_clocks(launch, two_hosts, tmp_path, query):
    """2 x 2 ranks of a real job; the link between the hosts is down for a while in the middle."""
    host_a, host_b = two_hosts
    stop = tmp_path / "stop"
    env = {"STARPROF_TOKEN": SECRET, "GLOO_SOCKET_IFNAME": "veth0", "TP_SOCKET_IFNAME": "veth0"}
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    torchrun += ["--master-addr", "10.211.7.1", "--master-port", "29471"]
    first = launch(
        *("-o", "run", "--listen", "10.211.7.1:0", "--", *torchrun, "--node-rank", 0, JOB, stop, "0.01"),
        prefix=host_a,
        env=env,
    )
    address, _ = listening(first)
    other_clock = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", str(SKEW_S), "--")
    second = launch(
        *("--join", address, "--", *torchrun, "--node-rank", 1, JOB, stop, "0.01"),
        prefix=(*host_b, *other_clock),
        env=env,
    )
    assert first.process.stdout.readline() == "ready\n"
    link = ["ip", "-n", host_b[-1], "link", "set", "veth0"]
    time.sleep(1)
    sh(*link, "down")
    time.sleep(2)
    sh(*link, "up")
    time.sleep(3)
    stop.touch()
    (code_b, _, err_b), (code_a, out_a, err_a) = second.end(120), first.end(120)
    assert (code_a, code_b) == (0, 0), err_a + err_b
    steps = int(re.search(r"steps (\d+)", out_a)[1])
    run = tmp_path / "run.starprof"
    assert [p.name for p in tmp_path.glob("*.starprof*")] == ["run.starprof"]
    assert query(run, "SELECT rank, node FROM rank ORDER BY rank") == [(0, 0), (1, 0), (2, 1), (3, 1)]
    counts = query(run, "SELECT rank, count(*), count(DISTINCT step), max(step) FROM step GROUP BY rank ORDER BY rank")
    assert counts == [(rank, steps, steps, steps - 1) for rank in range(4)]
    assert query(run, "SELECT DISTINCT node FROM cpu_sample ORDER BY node") == [(0,), (1,)]
    assert query(run, "SELECT node FROM node ORDER BY node") == [(0,), (1,)]
    clocks = query(run, "SELECT offset_ns, error_ns FROM clock WHERE node = 1 AND method = 'ping'")
    assert clocks
    for offset_ns, error_ns in clocks:
        assert abs(offset_ns + SKEW_S * 10**9) <= error_ns
    assert min(error for _, error in clocks) < 20_000_000
    assert "of node 1 to node 0" in err_b
    assert "4 ranks" in err_a


def test_nodes_on_one_machine_have_one_clock(launch, tmp_path, query):
    first, address, _ = node_0(launch)
    assert launch("--join", address, "--", "true", env={"STARPROF_TOKEN": SECRET}).end()[0] == 0
    assert first.end()[0] == 0
    ((offset_ns, error_ns),) = query(tmp_path / "run.starprof", "SELECT offset_ns, error_ns FROM clock WHERE node = 1")
    assert abs(offset_ns) <= error_ns


def test_secret_is_made_and_shown_when_none_is_given(launch, tmp_path):
    first, address, line = node_0(launch, secret="")
    secret = re.search(r"STARPROF_TOKEN=(\w{32}) ", line)[1]
    (tmp_path / "secret").write_text(secret + "\n")
    (tmp_path / "secret").chmod(0o600)
    assert launch("--join", address, "--token-file", "secret", "--", "sh", "-c", "exit 4").end()[0] == 4
    first.end()


def test_wrong_secret_starts_no_job(launch):
    first, address, line = node_0(launch)
    assert SECRET not in line
    code, out, err = launch("--join", address, "--", "echo", "ran", env={"STARPROF_TOKEN": "wrong" * 4}).end()
    assert (code, out) == (1, "")
    assert "does not accept the secret" in err
    assert first.end()[0] == 0


def test_node_id_that_is_taken_starts_no_job(launch):
    env = {"STARPROF_TOKEN": SECRET}
    first, address, _ = node_0(launch)
    second = launch(
        "--join", address, "--node-rank", 3, "--", "sh", "-c", "echo ready; cat", stdin=subprocess.PIPE, env=env
    )
    second.process.stdout.readline()
    code, out, err = launch("--join", address, "--node-rank", 3, "--", "echo", "ran", env=env).end()
    assert (code, out) == (1, "")
    assert "node 3 is recorded by" in err
    assert second.end()[0] == first.end()[0] == 0


def test_address_in_use_starts_no_job(launch):
    env = {"STARPROF_TOKEN": SECRET}
    first, address, _ = node_0(launch)
    code, out, err = launch("-o", "other", "--listen", address, "--", "echo", "ran", env=env).end()
    assert (code, out) == (1, "")
    assert f"can't listen on {address}" in err
    first.end()


def rank_environment(rank):
    """What a launcher sets for one of two ranks."""
    world = {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    return {**world, "MASTER_PORT": "29473", "STARPROF_TOKEN": SECRET}


def steps_of_ranks(folder, query, *recordings):
    """Merge recordings; (rank, node, steps, different steps) of each rank."""
    runs = [str(folder / name) for name in recordings]
    sh(PYTHON, "-m", "starprof", "merge", *runs, "-o", str(folder / "both.starprof"))
    select = (
        "SELECT rank, node, count(*), count(DISTINCT step) FROM step JOIN rank USING (attempt, rank) "
        "GROUP BY rank, node ORDER BY rank"
    )
    return query(folder / "both.starprof", select)


def test_node_0_killed(launch, tmp_path, query):
    """The jobs go on, the other node's records stay with it, and it says how to put them together."""
    stop = tmp_path / "stop"
    first = launch(*("-o", "run", "--listen", "127.0.0.1:0", "--", PYTHON, JOB, stop, "0.005"), env=rank_environment(0))
    address, _ = listening(first)
    second = launch("-o", "second", "--join", address, "--", PYTHON, JOB, stop, "0.005", env=rank_environment(1))
    assert second.process.stdout.readline() == "ready\n"
    time.sleep(1)
    os.kill(first.pid, signal.SIGKILL)
    time.sleep(1)
    stop.touch()
    code, out, err = second.end()
    assert code == 0
    assert "the records of node 1 stay on this machine" in err
    assert "starprof merge RUN-OF-NODE-0 second.starprof.spool -o" in err
    steps = int(out.split()[-1])
    wait_for(lambda: not processes(str(tmp_path)), what="the end of node 0's rank and agent")
    found = steps_of_ranks(tmp_path, query, "run.starprof.spool", "second.starprof.spool")
    assert found == [(0, 0, steps, steps), (1, 1, steps, steps)]


def test_nodes_recorded_without_a_connection(launch, tmp_path, query):
    stop = tmp_path / "stop"
    both = [
        launch("-o", "run{rank}", "--node-rank", n, "--", PYTHON, JOB, stop, "0.005", env=rank_environment(n))
        for n in (0, 1)
    ]
    assert both[0].process.stdout.readline() == "ready\n"
    stop.touch()
    ends = [recording.end() for recording in both]
    assert [code for code, _, _ in ends] == [0, 0]
    steps = int(ends[0][1].split()[-1])
    found = steps_of_ranks(tmp_path, query, "run0.starprof", "run1.starprof")
    assert found == [(0, 0, steps, steps), (1, 1, steps, steps)]


def test_hanging_node_0_can_be_interrupted_before_the_job_starts(launch):
    recording = launch("--join", "127.0.0.1:1", "--", "echo", "ran", env={"STARPROF_TOKEN": SECRET})
    wait_for(lambda: b"supervisor" in Path(f"/proc/{recording.pid}/cmdline").read_bytes())
    time.sleep(0.5)
    os.kill(recording.pid, signal.SIGINT)
    code, out, err = recording.end()
    assert (code, out, err) == (130, "", "")
    assert list(recording.folder.iterdir()) == []
