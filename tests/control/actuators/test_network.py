"""Token buckets, in network namespaces that the test makes."""

import os
import shutil
import subprocess

import pytest

pytest.importorskip("pyroute2")
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]


@pytest.fixture
def namespace():
    name = f"sp-act-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
    yield name
    subprocess.run(["ip", "netns", "del", name], check=True)


def queues(name):
    return subprocess.check_output(["tc", "-n", name, "qdisc", "show", "dev", "lo"], text=True)


def test_a_bucket_for_a_namespace_that_is_all_the_jobs_and_only_for_its_ports_in_a_shared_one(running, namespace):
    job = running(allow="tc", prefix=("ip", "netns", "exec", namespace)).ready()
    before = queues(namespace)
    done = job.act("nice", "5", check=False)
    assert done.returncode == 1
    assert "not on the job's list" in done.stderr

    job.act("tc", "lo=20M")
    assert "tbf" in queues(namespace)
    assert "160Mbit" in queues(namespace)
    job.act("undo")
    assert queues(namespace) == before

    stranger = subprocess.Popen(["ip", "netns", "exec", namespace, "sleep", "600"])
    try:
        job.act("tc", "lo=20M")
        assert "htb" in queues(namespace)
        filters = subprocess.check_output(["tc", "-n", namespace, "filter", "show", "dev", "lo"], text=True)
        assert filters.count("match ") >= 2, "the job's connections"
        job.kill()  # the queue outlives its job, until something of ours starts
        assert "htb" in queues(namespace)
        job.act("list")
        assert queues(namespace) == before
    finally:
        stranger.kill()
        stranger.wait()


def test_a_queue_of_somebody_else_is_left_alone(running, namespace):
    subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", "handle", "7:", "htb"], check=True)
    job = running(world=1, allow="tc", prefix=("ip", "netns", "exec", namespace)).ready()
    done = job.act("tc", "lo=20M", check=False)
    assert done.returncode == 1
    assert "has a queue already" in done.stderr
    assert "qdisc htb 7: root" in queues(namespace)
