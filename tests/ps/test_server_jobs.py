"""Workers that are processes of their own: killed, stopped, joining, and strangers."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from ps_lab import SECRET, until

from starprof.ps.speech import TOKEN

TRAIN = Path(__file__).with_name("train_ps.py")


def test_a_worker_is_killed_another_joins_and_strangers_get_nothing(lab, tmp_path):
    server = lab(2, shards=1)
    stop = tmp_path / "stop"
    address = "{}:{}".format(*server.address)

    def worker(rank, secret=SECRET):
        environ = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "STARPROF_PS": address, TOKEN: secret}
        return subprocess.Popen([sys.executable, str(TRAIN), str(stop)], env=environ)

    workers = [worker(0), worker(1)]

    def rank(number):
        return next(one for one in server.status()["ranks"] if one["rank"] == number)

    def goes_on():
        since = server.status()["version"]
        until(lambda: server.status()["version"] >= since + 5, "the training goes on")

    try:
        until(lambda: server.status()["version"] >= 3, "both train")
        workers[1].send_signal(signal.SIGKILL)
        until(lambda: rank(1)["state"] == "lost", "the worker is missed")
        goes_on()
        workers.append(worker(5))
        until(lambda: rank(5)["contributions"] >= 3, "the newcomer contributes")
        workers.append(worker(1))
        until(lambda: rank(1)["state"] == "connected" and rank(1)["contributions"] >= 3, "it comes back")
        stranger = worker(7, secret="another one")
        assert stranger.wait(60) != 0
        workers[0].send_signal(signal.SIGSTOP)
        until(lambda: rank(0)["state"] == "lost", "the one that stands still is missed")
        goes_on()
        workers[0].send_signal(signal.SIGCONT)
        until(lambda: rank(0)["state"] == "connected", "it goes on")
        stop.touch()
        assert [one.wait(60) for one in workers] == [0, -signal.SIGKILL, 0, 0]
    finally:
        for one in workers:
            one.kill()
            one.wait()
