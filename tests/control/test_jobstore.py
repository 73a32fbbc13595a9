"""Our clients of the job's store: nobody waits for them who need not."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

dist = pytest.importorskip("torch.distributed")

from starprof.control.engine.jobstore import OwnClient, secret_of, value_of, wait_for  # noqa: E402 - torch may be missing
from starprof.errors import TransportError  # noqa: E402

SERVER = """
import sys, time
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""
SHORT_JOB = """
import os, signal, sys, threading
import torch.distributed as dist
from starprof.control.engine.jobstore import OwnClient
port, server = map(int, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, None, False)
os.kill(server, signal.SIGSTOP)
OwnClient(store).get(0.0)
threading.Timer(1.0, os.kill, (server, signal.SIGCONT)).start()
"""


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that serves a store, and its port."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    yield process, int(process.stdout.readline())
    process.kill()
    process.communicate()


def test_a_client_that_takes_long_to_connect_is_waited_for_no_longer_than_wanted(
    server: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = server
    users = dist.TCPStore("127.0.0.1", port, None, False)
    process.send_signal(signal.SIGSTOP)
    ours = OwnClient(users)
    assert ours.get(0.1) is None
    process.send_signal(signal.SIGCONT)
    client = ours.get(60.0)
    waiting = threading.Thread(target=client.wait, args=(["key"],))  # which keeps nobody else waiting
    waiting.start()
    users.set("key", "value")
    waiting.join(20.0)
    assert not waiting.is_alive()


def test_all_processes_of_a_job_have_one_secret(server: tuple[subprocess.Popen[str], int]) -> None:
    stores = [dist.TCPStore("127.0.0.1", server[1], None, False) for _ in range(3)]
    (secret,) = {secret_of(store) for store in stores}
    assert len(secret) == 64


def test_a_job_that_ends_before_its_client_is_there_ends_well(server: tuple[subprocess.Popen[str], int]) -> None:
    process, port = server
    job = subprocess.run(
        [sys.executable, "-c", SHORT_JOB, str(port), str(process.pid)], capture_output=True, text=True, timeout=60
    )
    assert (job.returncode, job.stderr) == (0, "")


def test_who_waits_for_a_value_keeps_nobody_else_waiting(server: tuple[subprocess.Popen[str], int]) -> None:
    store = dist.TCPStore("127.0.0.1", server[1], None, False)
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(value_of(store, "late", 20.0)))
    waiting.start()
    time.sleep(0.05)
    store.set("late", "here")  # by the same client
    waiting.join(20.0)
    assert found == ["here"]


def test_what_does_not_come_is_not_waited_for_for_ever() -> None:
    store = dist.HashStore()
    assert not wait_for(store, ["never"], 0.05)
    with pytest.raises(TransportError, match="never"):
        value_of(store, "never", 0.05)


def test_a_store_that_is_gone_is_told(server: tuple[subprocess.Popen[str], int]) -> None:
    process, port = server
    store = dist.TCPStore("127.0.0.1", port, None, False)
    process.kill()
    process.wait()
    with pytest.raises(TransportError, match="gone"):
        wait_for(store, ["key"], 20.0)
