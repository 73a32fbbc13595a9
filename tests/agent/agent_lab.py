"""A real agent process over a real spool, and processes that look like ranks."""

import contextlib
import os
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from starprof.spool.frame import PACKED
from starprof.spool.layout import Spool
from starprof.spool.segment import list_segments, readable_frames

RANK = """
import os, subprocess, sys, time
from pathlib import Path
from starprof.model.schema import BY_NAME, INT_NULL, row
from starprof.spool.ringwriter import RingWriter

rings, rank, steps_per_s, children = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
for _ in range(children):
    subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
ring = RingWriter(rings / f"n0-{os.getpid()}-{time.monotonic_ns()}.ring", slots=int(sys.argv[5]))
ring.describe({"rank": rank, "attempt": 0, "node": 0, "world_size": 2, "pid": os.getpid(), "flavour": "test"})
for step in range(1 << 40):
    cells = row(BY_NAME["step"], attempt=0, rank=rank, step=step, start_mono_ns=time.monotonic_ns(), dur_us=1)
    ring.step(time.monotonic_ns(), [INT_NULL if c is None else c for c in cells])
    print(step, flush=True)
    time.sleep(1 / steps_per_s)
"""


def eventually(condition, seconds=15.0):
    """Wait until `condition()` is true, and return what it returned."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


class Rank:
    """A process with a ring, and perhaps children."""

    def __init__(self, spool, number, *, steps_per_s=20.0, children=0, slots=4096):
        words = [str(spool.rings), str(number), str(steps_per_s), str(children), str(slots)]
        self.output = (spool.root / f"rank{number}.{time.monotonic_ns()}.txt").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, *words], stdout=self.output, start_new_session=True
        )
        self.pid = self.process.pid

    def steps(self):
        """Number of steps written so far."""
        lines = Path(self.output.name).read_text().split()
        return len(lines)

    def kill(self):
        """Kill it with its children; returns how many steps it had written at least."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()
        return self.steps()


class Lab:
    """One spool, its ranks and its agents."""

    def __init__(self, folder):
        self.spool = Spool(folder)
        self.spool.create()
        self._started = []

    def agent(self, *options, rate="10"):
        command = [sys.executable, "-m", "starprof.agent", "--spool", str(self.spool.root), "--rate", rate, *options]
        agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._started.append(agent)
        return agent

    def rank(self, number, **options):
        rank = Rank(self.spool, number, **options)
        self._started.append(rank)
        return rank

    def close(self):
        for started in self._started:
            if isinstance(started, Rank):
                started.kill()
                continue
            started.kill()
            started.wait()
            started.stderr.close()

    def frames(self):
        while True:
            try:
                data = [segment.path.read_bytes() for segment in list_segments(self.spool.segments)]
            except FileNotFoundError:  # sealed, and so renamed, while we looked
                continue
            return [frame for content in data for frame, _, _ in readable_frames(content)]

    def rows(self, table):
        """Rows of a table as dictionaries, whatever was sent twice only once."""
        unique = {}
        for frame in self.frames():
            if frame.table.name != table:
                continue
            for i, cells in enumerate(_cells(frame)):
                unique[frame.stream, frame.seq + i] = dict(zip(frame.table.names, cells, strict=True))
        return list(unique.values())

    def holes(self):
        """Streams whose numbers are not consecutive from 0, as (stream, number)."""
        numbers = {}
        for frame in self.frames():
            numbers.setdefault(frame.stream, set()).update(range(frame.seq, frame.seq + frame.rows))
        return [(stream, n) for stream, seen in numbers.items() for n in range(max(seen) + 1) if n not in seen]

    def counts(self):
        counts = Counter()
        for frame in self.frames():
            counts[frame.table.name] += frame.rows
        return counts


def _cells(frame):
    if frame.encoding != PACKED:
        return frame.json_rows()
    null = -(2**63)
    rows = struct.Struct(frame.table.struct_format).iter_unpack(frame.payload)
    return [[None if cell == null else cell for cell in row] for row in rows]


def stop(agent):
    """SIGTERM; returns exit code and seconds it took."""
    began = time.monotonic()
    agent.send_signal(signal.SIGTERM)
    code = agent.wait(timeout=10)
    return code, time.monotonic() - began
