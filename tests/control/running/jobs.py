"""Starts jobs of several ranks under control, without a recorder and without torchrun, and reads what they tell."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from free_ports import free_port

from starprof.control import controlsocket
from starprof.launch.environment import HOME, INJECT
from starprof.model import env

SCRIPT = Path(__file__).with_name("training.py")


def store_process(port):
    """A process that does nothing but host a store, as torchrun does."""
    host = f"import time; from torch.distributed import TCPStore; s = TCPStore('127.0.0.1', {port}, is_master=True, "
    code = host + "wait_for_workers=False); print('there', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"there\n"
    process.stdout.close()
    return process


class Job:
    """Ranks as plain processes; `folder` holds spool and control socket."""

    def __init__(self, folder, setup, *, world=4, control=True, mode=None, script=SCRIPT, own_store=False, lab=None):
        """Ranks begin; with `own_store` the job's store is a process of its own, `self.store`.

        lab: hosts (`NetLab`) that the ranks are on, one each.
        """
        self.folder = folder
        self.spool = folder / "job.starprof.spool"
        (self.spool / "segments").mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.ranks = []
        self.store = store_process(port) if own_store else None
        for rank in range(world):
            environ = {
                **os.environ,
                "PYTHONPATH": f"{INJECT}{os.pathsep}{HOME}",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1" if lab is None else lab.address(0),
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "CONTROL_FOLDER": str(self.spool),
                env.SPOOL: str(self.spool),
                env.NODE: "0",
                env.HOME: str(HOME),
            }
            if lab is not None:
                environ["GLOO_SOCKET_IFNAME"] = "eth0"
            if own_store:
                environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
            if control:
                environ[env.CONTROL] = json.dumps(mode or {"mode": "native"})
            command = [sys.executable, str(script), json.dumps(setup)]
            command = command if lab is None else lab.inside(rank, command)
            with (folder / f"rank{rank}.out").open("w") as out:
                self.ranks.append(subprocess.Popen(command, env=environ, stdout=out, stderr=out))

    def text(self, rank):
        return (self.folder / f"rank{rank}.out").read_text()

    def wait(self, ranks=None, within_s=120):
        """Wait for some ranks and return what each has told."""
        deadline_s = time.monotonic() + within_s
        told = []
        for rank in range(len(self.ranks)) if ranks is None else ranks:
            try:
                code = self.ranks[rank].wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"rank {rank} stands still:\n{self.text(rank)}") from None
            assert code == 0, f"rank {rank} left with {code}:\n{self.text(rank)}"
            lines = [line for line in self.text(rank).splitlines() if line.startswith("TOLD ")]
            told.append(json.loads(lines[0].removeprefix("TOLD ")))
        return told

    def ask(self, within_s=60, **question):
        """Ask the coordinator, once there is one."""
        deadline_s = time.monotonic() + within_s
        while True:
            try:
                return controlsocket.ask(controlsocket.folder_of(self.spool), question)
            except controlsocket.NobodyListensError:
                if time.monotonic() > deadline_s:
                    raise AssertionError("no coordinator:\n" + self.text(0)) from None
                time.sleep(0.05)

    def kill(self):
        for process in [*self.ranks, *filter(None, [self.store])]:
            if process.poll() is None:
                process.kill()
            process.wait()
