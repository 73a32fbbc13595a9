"""A job on a parameter server and a neighbour on the server's node: namespaces are hosts, a core is a node's processor.

Host 0 is the server's node: head, shards and the neighbour share core 0. Workers are on host 1 and core 1; they
"compute" by sleeping, as ones on GPUs would, and push gradients of a real model. Hosts 2 and 3 are empty nodes that
shards can move to.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from starprof.control.controlsocket import ask
from starprof.demo.netlab import NetLab

HERE = Path(__file__)
SECRET = "of this benchmark"
HOSTS = 4
SERVERS_CORE, WORKERS_CORE = 0, 1
START_S = 90.0
_STATE = struct.Struct("<qdd")
"""The neighbour's: iterations, seconds of CPU, and the delay that it is asked for."""


@dataclass(frozen=True)
class Sample:
    """What happened in a phase.

    Attributes:
        updates_per_s: of the job.
        pushes_per_s: gradients that its server took.
        server_cores: that head and shards used.
        server_bytes_per_s: through the interface of their node, both ways.
        neighbour_s: how long one of the neighbour's iterations took.
        neighbour_cores: that it used.
    """

    updates_per_s: float
    pushes_per_s: float
    server_cores: float
    server_bytes_per_s: float
    neighbour_s: float
    neighbour_cores: float


class Lab:
    """All of it, ended on leaving the block."""

    def __init__(
        self,
        compute_ms: tuple[float, ...],
        model_mb: float,
        *,
        shards: int = 1,
        neighbour_ms: float = 0.0,
        mode: str = "ssgd",
    ) -> None:
        """Prepare.

        Args:
            compute_ms: of each worker's iteration.
            model_mb: of parameters.
            shards: of the server, at first all on host 0.
            neighbour_ms: CPU time of one of the neighbour's iterations; 0: there is none.
            mode: at the start.
        """
        self.net = NetLab(HOSTS)
        self.compute_ms, self.model_mb, self.shards, self.mode = compute_ms, model_mb, shards, mode
        self.neighbour_ms = neighbour_ms
        self.workers: list[subprocess.Popen[str]] = []
        self._stack = ExitStack()
        self._environ = {**os.environ, "STARPROF_PS_TOKEN": SECRET, "OMP_NUM_THREADS": "1"}
        self._address = ""
        self._neighbour: mmap.mmap | None = None

    def __enter__(self) -> Lab:
        self._stack.enter_context(self.net)
        self.folder = Path(self._stack.enter_context(TemporaryDirectory()))
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _run(self, host: int, core: int, arguments: list[str], **environ: str) -> subprocess.Popen[str]:
        command = self.net.inside(host, ["taskset", "-c", str(core), sys.executable, *arguments])
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**self._environ, **environ}
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        return process

    def serve(self, host: int, shards: int, core: int = SERVERS_CORE, head: str = "") -> str:
        """Processes of the server on a host; the address of the head."""
        told: dict[str, Any] = {
            "shards": shards,
            "host": self.net.address(host),
            "state": str(self.folder / f"at{host}"),
        }
        if head:
            told["head"] = head
        else:
            told |= {"workers": len(self.compute_ms), "mode": self.mode, "folder": str(self.folder)}
        process = self._run(host, core, ["-P", "-m", "starprof.ps.server", json.dumps(told)])
        assert process.stdout is not None
        at = json.loads(process.stdout.readline())["listening"]
        return f"{at[0]}:{at[1]}"

    def spare(self, host: int, count: int, core: int = WORKERS_CORE) -> None:
        """Processes on another host that shards can move to."""
        self.serve(host, count, core, self._address)
        self.until(lambda: any(at.startswith(self.net.address(host)) for at in self.status()["spares"]))

    def _start(self) -> None:
        self._address = self.serve(0, self.shards)
        world = str(len(self.compute_ms))
        for rank, compute_ms in enumerate(self.compute_ms):
            self.workers.append(
                self._run(
                    1,
                    WORKERS_CORE,
                    [str(HERE), "work", str(compute_ms), str(self.model_mb)],
                    RANK=str(rank),
                    LOCAL_RANK=str(rank),
                    WORLD_SIZE=world,
                    STARPROF_PS=self._address,
                )
            )
        if self.neighbour_ms:
            path = self.folder / "neighbour"
            path.write_bytes(bytes(_STATE.size))
            with path.open("r+b") as file:
                self._neighbour = mmap.mmap(file.fileno(), _STATE.size)
            self._run(0, SERVERS_CORE, [str(HERE), "neighbour", str(self.neighbour_ms), str(path)])
        self.until(lambda: self.status()["version"] > 3)
        if self._neighbour is not None:
            self.until(lambda: self._neighbours()[0] > 3)

    # What can be done.

    def status(self) -> dict[str, Any]:
        """What the head says."""
        return dict(ask(self.folder, {"do": "status"}))

    def switch(self, mode: str, **options: Any) -> None:
        """Another mode, at once."""
        answer = ask(self.folder, {"do": "mode", "mode": mode, "options": options, "by": "benchmark"})
        if not answer["ok"]:
            raise RuntimeError(answer["error"])

    def move(self, shard: int, host: int) -> None:
        """Hand a shard over to a spare process on a host."""
        to = next(at for at in self.status()["spares"] if at.startswith(self.net.address(host)))
        answer = ask(self.folder, {"do": "move", "shard": shard, "to": to, "by": "benchmark"}, timeout_s=30.0)
        if not answer["ok"]:
            raise RuntimeError(answer["error"])
        self.until(lambda: any(one["at"] == to and one["state"] == "connected" for one in self.status()["shards"]))
        version = self.status()["version"]
        self.until(lambda: self.status()["version"] > version + 2)

    def rest(self, rests: bool) -> None:
        """Stop the job, which leaves the neighbour alone, or let it go on."""
        for worker in self.workers:
            _signal_all(worker.pid, signal.SIGSTOP if rests else signal.SIGCONT)

    def delay(self, seconds: float) -> None:
        """Ask the neighbour to wait so long in each iteration."""
        assert self._neighbour is not None
        iterations, cpu_s, _ = self._neighbours()
        self._neighbour[:] = _STATE.pack(iterations, cpu_s, seconds)

    def yields(self, niceness: int) -> None:
        """Let the server's threads have only what the neighbour leaves (19), or be like all (0)."""
        for pid in self.servers():
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(task.name), niceness)

    def servers(self) -> list[int]:
        """Processes of head and shards on host 0."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    line = (entry / "cmdline").read_bytes().decode(errors="replace")
                except OSError:
                    continue
                if str(self.folder) in line and ("starprof.ps.head" in line or "starprof.ps.shard" in line):
                    found.append(int(entry.name))
        return found

    def until(self, condition: Any) -> None:
        """Wait for something."""
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                if condition():
                    return
            except Exception:
                if time.monotonic() > deadline_s:
                    raise
            if time.monotonic() > deadline_s:
                raise RuntimeError("the benchmark's job does not get on")
            time.sleep(0.05)

    # What is measured.

    def sample(self, seconds: float) -> Sample:
        """Watch for so long."""
        before, begun = self._counters(), time.monotonic()
        time.sleep(seconds)
        after = self._counters()
        seconds = time.monotonic() - begun
        each = [(new - old) / seconds for old, new in zip(before, after, strict=True)]
        neighbour_s = 1.0 / each[4] if each[4] else float("nan")
        return Sample(each[0], each[1], each[2], each[3], neighbour_s, each[5])

    def _counters(self) -> tuple[float, ...]:
        status = self.status()
        pushes = sum(rank["contributions"] for rank in status["ranks"])
        link = subprocess.run(
            ["ip", "-n", self.net._host(0), "-j", "-s", "link", "show", "eth0"], capture_output=True, check=True
        )
        stats = json.loads(link.stdout)[0]["stats64"]
        iterations, cpu_s, _ = self._neighbours()
        bytes_ = stats["rx"]["bytes"] + stats["tx"]["bytes"]
        return status["version"], pushes, sum(map(cpu_of, self.servers())), bytes_, iterations, cpu_s

    def _neighbours(self) -> tuple[int, float, float]:
        if self._neighbour is None:
            return 0, 0.0, 0.0
        iterations, cpu_s, delay_s = _STATE.unpack(self._neighbour[:])
        return int(iterations), float(cpu_s), float(delay_s)


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _signal_all(pid: int, how: signal.Signals) -> None:
    """A process that `ip netns exec` and others have become, or are the parents of."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        _signal_all(int(child), how)
    os.kill(pid, how)


def work(compute_ms: float, model_mb: float) -> None:
    """A worker's process."""
    import torch

    import starprof.ps

    torch.set_num_threads(1)
    count = 8
    size = max(1, int(model_mb * 1e6 / 4 / count))
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(size)) for _ in range(count)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    starprof.ps.wrap(model, optimizer)
    for parameter in model:
        parameter.grad = torch.ones_like(parameter)
    while True:
        time.sleep(1e-3 * compute_ms)
        optimizer.step()


def neighbour(cpu_ms: float, path: str) -> None:
    """The neighbour's process: an iteration is real work of a small model, of a fixed amount."""
    import torch

    torch.set_num_threads(1)
    a = torch.randn(128, 128)

    def some(count: int) -> None:
        for _ in range(count):
            torch.mm(a, a)

    some(200)
    began = time.process_time()
    some(500)
    count = max(1, int(500 * 1e-3 * cpu_ms / (time.process_time() - began)))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), _STATE.size) as state:
        iterations = 0
        while True:
            some(count)
            iterations += 1
            delay_s = _STATE.unpack(state[:])[2]
            state[:] = _STATE.pack(iterations, time.process_time(), delay_s)
            if delay_s:
                time.sleep(delay_s)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(float(sys.argv[2]), float(sys.argv[3]))
    else:
        neighbour(float(sys.argv[2]), sys.argv[3])
