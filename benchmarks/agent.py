"""What the agent costs: CPU share of one core and memory at its real rate, beside a psutil loop of the same content.

    python benchmarks/agent.py [--rate 10] [--seconds 20] [--rounds 3] [--json]

Four ranks with four children each (20 processes) idle beside it and write 10 steps a second into their rings, which
the agent drains too. All are measured as whole processes by the kernel's CPU clock, at the real rate: in a hot loop
the caches stay warm and the cost looks 3-4 times smaller. They alternate, and the medians are compared. The psutil
loop reads cores, memory, pressure, interfaces and the processes; so does `same sources`, the agent without its other
collectors, and the goal is about these.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from starprof.spool.layout import Spool

RANKS = 4
CHILDREN = 4
GOAL_SHARE = 0.005
GOAL_RSS_BYTES = 30 << 20
SETTLE_S = 4.0

RANK = """
import os, subprocess, sys, time
from pathlib import Path
from starprof.model.schema import BY_NAME, INT_NULL, row
from starprof.spool.ringwriter import RingWriter

rings, rank = Path(sys.argv[1]), int(sys.argv[2])
children = [subprocess.Popen(["sleep", "3600"]) for _ in range(int(sys.argv[3]))]
ring = RingWriter(rings / f"n0-{os.getpid()}-{time.monotonic_ns()}.ring")
ring.describe({"rank": rank, "attempt": 0, "node": 0, "world_size": 4, "pid": os.getpid()})
for step in range(1 << 40):
    cells = row(BY_NAME["step"], attempt=0, rank=rank, step=step, start_mono_ns=time.monotonic_ns(), dur_us=1)
    ring.step(time.monotonic_ns(), [INT_NULL if c is None else c for c in cells])
    time.sleep(0.1)
"""

PSUTIL = """
import sys, time
import psutil

period, roots = 1 / float(sys.argv[1]), [psutil.Process(int(pid)) for pid in sys.argv[2:]]
due = time.monotonic()
while True:
    psutil.cpu_times(percpu=True), psutil.cpu_times(), psutil.virtual_memory(), psutil.net_io_counters(pernic=True)
    for name in ("cpu", "memory", "io"):
        try:
            with open(f"/proc/pressure/{name}") as file:
                file.read()
        except OSError:
            pass
    for root in roots:
        for process in [root, *root.children(recursive=True)]:
            try:
                with process.oneshot():
                    process.cpu_times(), process.memory_info(), process.num_ctx_switches(), process.num_threads()
            except psutil.Error:
                pass
    due += period
    time.sleep(max(0.0, due - time.monotonic()))
"""


SAME_SOURCES = """
import sys
from pathlib import Path
from starprof.agent import agent

agent.COLLECTORS = tuple(e for e in agent.COLLECTORS if e.name in ("process", "cpu", "node", "nic"))
agent.Agent(agent.Settings(Path(sys.argv[1]), rate_hz=float(sys.argv[2]))).run()
"""


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process group that is gone afterwards."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def cost(command: list[str], seconds: float) -> tuple[float, int]:
    """CPU share of one core over `seconds`, after the start has settled, and the highest resident memory."""
    with started(command) as process:
        time.sleep(SETTLE_S)
        clock = (~process.pid << 3) | 2  # clock_getcpuclockid(3): CPU time of all its threads
        cpu_ns, began_ns = time.clock_gettime_ns(clock), time.monotonic_ns()
        time.sleep(seconds)
        share = (time.clock_gettime_ns(clock) - cpu_ns) / (time.monotonic_ns() - began_ns)
        status = Path(f"/proc/{process.pid}/status").read_text()
    peak_kib = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    return share, peak_kib * 1024


def measure(seconds: float, rounds: int, rate: float) -> dict[str, dict[str, float]]:
    """Medians of each, over alternating rounds."""
    taken: dict[str, list[tuple[float, int]]] = {"starprof agent": [], "same sources": [], "psutil loop": []}
    with contextlib.ExitStack() as stack:
        spool = Spool(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run.starprof.spool")
        spool.create()
        ranks = [
            stack.enter_context(started([sys.executable, "-c", RANK, str(spool.rings), str(n), str(CHILDREN)])).pid
            for n in range(RANKS)
        ]
        time.sleep(1.0)
        commands = {
            "starprof agent": [sys.executable, "-m", "starprof.agent", "--spool", str(spool.root), "--rate", str(rate)],
            "same sources": [sys.executable, "-c", SAME_SOURCES, str(spool.root), str(rate)],
            "psutil loop": [sys.executable, "-c", PSUTIL, str(rate), *map(str, ranks)],
        }
        for _ in range(rounds):
            for name, command in commands.items():
                taken[name].append(cost(command, seconds))
    return {
        name: {
            "cpu_share": statistics.median(share for share, _ in values),
            "cpu_share_min": min(share for share, _ in values),
            "cpu_share_max": max(share for share, _ in values),
            "rss_bytes": max(rss for _, rss in values),
        }
        for name, values in taken.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=10.0, help="Hz")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args()
    found = measure(given.seconds, given.rounds, given.rate)
    if given.json:
        goal = {"cpu_share": GOAL_SHARE, "rss_bytes": GOAL_RSS_BYTES}
        print(json.dumps({"rate_hz": given.rate, "processes": RANKS * (CHILDREN + 1), "goal": goal, "measured": found}))
        return
    print(f"{RANKS * (CHILDREN + 1)} processes at {given.rate:g} Hz, median of {given.rounds} x {given.seconds:g} s")
    print(f"{'':16s} {'CPU of a core':>14s} {'min .. max':>18s} {'peak memory':>12s}")
    for name, row in found.items():
        span = f"{row['cpu_share_min']:.2%} .. {row['cpu_share_max']:.2%}"
        print(f"{name:16s} {row['cpu_share']:14.2%} {span:>18s} {row['rss_bytes'] / 1e6:9.1f} MB")
    print(f"{'goal':16s} {GOAL_SHARE:14.2%} {'':18s} {GOAL_RSS_BYTES / 1e6:9.1f} MB")


if __name__ == "__main__":
    main()
