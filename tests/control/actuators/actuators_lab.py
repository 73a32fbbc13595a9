"""Jobs of a few real ranks to act on, and conditions that are waited for."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from free_ports import free_port

from starprof.control.actuators.job import JobHere
from starprof.launch.environment import HOME, INJECT
from starprof.model import env
from starprof.spool.layout import Spool

SCRIPT = Path(__file__).with_name("actuated_job.py")
PATIENCE_S = 120.0


def until(condition, what="it"):
    """Wait for a condition; returns what it gave."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"{what} has not come about"
        time.sleep(0.02)
    return found


class Running:
    """A job of some ranks; `folder` holds its spool."""

    def __init__(self, folder, *, world=2, allow=None, control=True, prefix=(), arguments=()):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.spool = Spool(folder / "job.starprof.spool")
        self.spool.create()
        port = free_port()
        self.ranks = []
        for rank in range(world):
            environ = {
                **os.environ,
                "PYTHONPATH": f"{INJECT}{os.pathsep}{HOME}",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo",
                env.SPOOL: str(self.spool.root),
                env.NODE: "0",
                env.HOME: str(HOME),
            }
            if allow is not None:
                environ[env.ACTUATORS] = allow
            if control:
                environ[env.CONTROL] = json.dumps({"mode": "native"})
            with (folder / f"rank{rank}.out").open("w") as out:
                command = [*prefix, sys.executable, str(SCRIPT), str(folder), *arguments]
                self.ranks.append(subprocess.Popen(command, env=environ, stdout=out, stderr=out))
        self.here = JobHere(self.spool)

    def ready(self):
        """All ranks train."""
        until(lambda: all(self.alive(rank) for rank in range(len(self.ranks))), "the training")
        return self

    def alive(self, rank):
        """Whether a rank trains; it must not have ended."""
        assert self.ranks[rank].poll() is None, (self.folder / f"rank{rank}.out").read_text()
        return bool(self.told(rank))

    def told(self, rank):
        """What a rank sees of itself."""
        path = self.folder / f"told{rank}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def act(self, *arguments, check=True):
        """`starprof act` as users call it."""
        command = [sys.executable, "-m", "starprof", "act", str(self.folder / "job.starprof"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def holding(self, *arguments):
        """The same, while it goes on."""
        command = [sys.executable, "-m", "starprof", "act", str(self.folder / "job.starprof"), *arguments]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self):
        for process in self.ranks:
            if process.poll() is None:
                process.kill()
            process.wait()
