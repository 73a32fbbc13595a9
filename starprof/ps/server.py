"""A parameter server on one machine: its processes, started, watched, and started again where they die or stand still.

`python -P -m starprof.ps.server SETTINGS` is what a job's first worker runs; `starprof ps` does the same.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starprof.control.controlsocket import NobodyListensError, ask
from starprof.errors import StarprofError, TransportError, UsageError
from starprof.model import serverprocesses
from starprof.ps.children import call_oneself, environ_of, listening
from starprof.ps.speech import secret_of

LOOK_EVERY_S = 0.5
HANGS_S = 10.0
"""A process that says nothing for so long is killed, which a stopped one can't prevent, and started again."""
SHORT_S = 2.0
TOO_OFTEN = 5
"""So often in a row within SHORT_S of its start, a process may die."""
END_S = 10.0


@dataclass
class Child:
    """One process.

    Attributes:
        name: for messages.
        argv: that it is started with.
        address: where it listens.
        done: it has ended as it should.
    """

    name: str
    argv: Callable[[], list[str]]
    process: subprocess.Popen[bytes] | None = None
    address: tuple[str, int] = ("", 0)
    began_s: float = 0.0
    short: int = 0
    done: bool = False
    silent_since_s: float | None = None

    def start(self, secret: str) -> None:
        """Start it; `listens` waits for it."""
        self.began_s = time.monotonic()
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        self.process = subprocess.Popen(
            self.argv(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environ_of(secret)
        )

    def listens(self) -> None:
        """Wait until it does.

        Raises:
            TransportError: it has ended, or takes too long.
        """
        assert self.process is not None
        self.address = listening(self.process)

    def ended(self) -> int | None:
        """Its exit code; None: it runs."""
        return None if self.process is None else self.process.poll()

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()

    def terminate(self) -> None:
        """Ask it to end, and see that it does."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Server:
    """The processes of this machine.

    Attributes:
        head: the head's process; None: it is on another machine.
        shards: processes that are shards, or could be.
    """

    def __init__(self, told: dict[str, Any], secret: str) -> None:
        """Prepare.

        Args:
            told: settings of the head, and `to_disk`; for spare shards only, `head` says where it is.
            secret: of the job.
        """
        self._secret = secret
        self._told = dict(told)
        to_disk = bool(self._told.pop("to_disk", False))
        at = self._told.pop("head", None)
        self._state = Path(str(self._told["state"]))
        self._port = int(self._told.pop("port", 0))
        self.head = None if at else Child("head", self._head_argv)
        self._at = str(at) if at else ""
        self._host = str(self._told.get("host", "127.0.0.1"))
        self._over = threading.Event()
        self.shards = [
            Child(f"shard process {number}", self._shard_argv(number, to_disk))
            for number in range(int(self._told["shards"]))
        ]

    def _head_argv(self) -> list[str]:
        told = {
            **self._told,
            "port": self.head.address[1] if self.head is not None and self.head.address[1] else self._port,
        }
        return [sys.executable, "-P", "-m", "starprof.ps.head", json.dumps(told)]

    def _shard_argv(self, number: int, to_disk: bool) -> Callable[[], list[str]]:
        def argv() -> list[str]:
            folder = self._state / f"shard-{number}"
            told = {"head": self._at, "folder": str(folder), "host": self._host, "to_disk": to_disk}
            return [sys.executable, "-P", "-m", "starprof.ps.shard", json.dumps(told)]

        return argv

    @property
    def children(self) -> list[Child]:
        """All of them."""
        return [*([self.head] if self.head is not None else []), *self.shards]

    def start(self) -> tuple[str, int]:
        """Start all; returns the head's address."""
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.head is not None:
            self.head.start(self._secret)
            self.head.listens()
            self._at = "{}:{}".format(*self.head.address)
        for shard in self.shards:
            shard.start(self._secret)
        for shard in self.shards:
            shard.listens()
        host, _, port = self._at.rpartition(":")
        return host, int(port)

    def stop(self) -> None:
        """Let `run` end."""
        self._over.set()

    def run(self) -> None:
        """Watch them until the job is over."""
        try:
            while not self._over.wait(LOOK_EVERY_S):
                for child in self.children:
                    self._look_at(child)
                if all(child.done for child in self.children) or (self.head is not None and self.head.done):
                    break
                self._look_for_hanging()
            self._await_end()
        finally:
            for child in reversed(self.children):
                child.terminate()

    def _look_at(self, child: Child) -> None:
        code = child.ended()
        if code is None or child.done:
            return
        if code == 0:
            child.done = True
            return
        child.short = child.short + 1 if time.monotonic() - child.began_s < SHORT_S else 0
        if child.short >= TOO_OFTEN:
            raise StarprofError(f"the {child.name} ends again and again, with {code}")
        say(f"the {child.name} has ended with {code}: it is started again")
        child.start(self._secret)  # where it listens the head hears from itself, and the head's place stays

    def _look_for_hanging(self) -> None:
        if self.head is None:
            return
        try:
            answer = ask(Path(str(self._told["folder"])), {"do": "status"}, timeout_s=2.0)
        except NobodyListensError:
            return  # it is being started
        except TransportError:
            self._silent(self.head, True)
            return
        self._silent(self.head, False)
        for told in answer.get("shards", ()):
            for child in self.shards:
                mine = child.process is not None and str(told["process"]).startswith(f"{child.process.pid}-")
                if mine and told["state"] != "disconnected":
                    self._silent(child, told["heard_s"] > HANGS_S / 2)
                elif mine:
                    self._silent(child, True)

    def _silent(self, child: Child, silent: bool) -> None:
        now_s = time.monotonic()
        if not silent:
            child.silent_since_s = None
        elif child.silent_since_s is None:
            child.silent_since_s = now_s
        elif now_s - child.silent_since_s > HANGS_S / 2 and now_s - child.began_s > HANGS_S:
            say(f"the {child.name} stands still: it is killed")
            child.silent_since_s = None
            child.kill()

    def _await_end(self) -> None:
        """Shards end by themselves when the head has told them."""
        deadline_s = time.monotonic() + END_S / 2
        while time.monotonic() < deadline_s and any(shard.ended() is None for shard in self.shards):
            time.sleep(0.1)


def main(arguments: list[str]) -> int:
    """Run until the job is over; returns the exit code."""
    call_oneself(serverprocesses.SERVER)
    try:
        if len(arguments) != 1:
            raise UsageError("one argument: the settings as a JSON object")
        server = Server(json.loads(arguments[0]), secret_of().decode())
        signal.signal(signal.SIGTERM, lambda *_: server.stop())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        address = server.start()
        sys.stdout.write(json.dumps({"listening": list(address)}) + "\n")
        sys.stdout.flush()
        server.run()
    except StarprofError as error:
        say(str(error))
        return error.exit_code
    return 0


def say(text: str) -> None:
    """One line for whoever looks into the log."""
    sys.stderr.write(f"starprof ps: {text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
