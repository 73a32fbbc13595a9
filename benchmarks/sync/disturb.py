"""What slows a rank down from outside, for real: a CPU quota, hogs on its core, a shaped interface, stops.

Each is a context manager with the variables and arguments that the job is to get (`environ`, `arguments`), `begin`,
called when the training has begun or later, and `lift`, which ends what `begin` has begun.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from starprof.demo.hog import Hog
from starprof.demo.netlab import NetLab
from starprof.errors import StarprofError

GROUP, QUOTA = "BENCH_CGROUP", "BENCH_QUOTA_US"
STRAGGLER = "straggler.pid"
"""File with the process id of the last rank."""
CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_US, QUOTA_US = 20_000, 1_000
"""A twentieth of a core: what a rank computes itself, some 4 ms of a step, takes it 80 ms."""
HOGS = 3
RATE_MBIT = 100.0
"""A step's gradients take the rank about four times its compute."""
STOPS_S = ((1.5, 1.5), (5.0, 1.5))
"""(When, how long) the rank stands still; shorter than a lease."""


def core_of(rank: int, world: int) -> int:
    """The last core for the last rank alone, the others share the rest."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[-1] if rank == world - 1 else (cores[:-1] or cores)[rank % max(len(cores) - 1, 1)]


class Disturbance:
    """Nothing from outside; the others are made from it.

    Attributes:
        environ: variables of the job.
        arguments: more arguments of the training script.
        lab: hosts that the ranks are on, one each; None: all on this one.
    """

    lab: NetLab | None = None

    def __init__(self, world: int, out: Path) -> None:
        self.world = world
        self.out = out
        self.environ: dict[str, str] = {}
        self.arguments: list[str] = []

    def begin(self) -> None:
        """The rank becomes slow."""

    def lift(self) -> None:
        """It is as quick as before."""

    @contextlib.contextmanager
    def ready(self) -> Iterator[Disturbance]:
        """Made before the job starts, gone after it.

        Raises:
            StarprofError: this machine can't.
        """
        yield self


class Quota(Disturbance):
    """The rank may use a part of a core only (cgroup v1)."""

    @contextlib.contextmanager
    def ready(self) -> Iterator[Disturbance]:
        group = CPU_GROUPS / f"starprof-benchmark-{os.getpid()}"
        try:
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        except OSError as error:
            raise StarprofError(f"no CPU quota: {error}") from error
        self.environ = {GROUP: str(group), QUOTA: str(QUOTA_US)}
        try:
            yield self
        finally:
            remove_when_empty(group)


def remove_when_empty(group: Path, within_s: float = 10.0) -> None:
    """Remove a control group; its last processes may still be ending."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


class Hogs(Disturbance):
    """Other processes compute on the rank's core; the rank computes there too."""

    @contextlib.contextmanager
    def ready(self) -> Iterator[Disturbance]:
        if len(os.sched_getaffinity(0)) < 2:
            raise StarprofError("hogs need two cores")
        self.arguments = ["--pin", "--on-cpu", str(self.world - 1)]
        with contextlib.ExitStack() as self.stack:
            core = core_of(self.world - 1, self.world)
            self.hogs = [self.stack.enter_context(Hog(core)) for _ in range(HOGS)]
            yield self

    def begin(self) -> None:
        for hog in self.hogs:
            hog.release()

    def lift(self) -> None:
        self.stack.close()


class Shaped(Disturbance):
    """Every rank is on a host of its own (a network namespace), and the last one's interface is slow."""

    @contextlib.contextmanager
    def ready(self) -> Iterator[Disturbance]:
        if os.geteuid():
            raise StarprofError("network namespaces need root")
        with NetLab(self.world) as lab:
            self.lab = lab
            yield self

    def begin(self) -> None:
        assert self.lab is not None
        self.lab.shape(self.world - 1, RATE_MBIT)

    def lift(self) -> None:
        assert self.lab is not None
        self.lab.unshape(self.world - 1)


class Stops(Disturbance):
    """The rank is stopped for a while, and again."""

    @contextlib.contextmanager
    def ready(self) -> Iterator[Disturbance]:
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.stop_and_go)
        try:
            yield self
        finally:
            self.over.set()
            if self.thread.ident is not None:
                self.thread.join()

    def begin(self) -> None:
        self.thread.start()

    def stop_and_go(self) -> None:
        """Until it is over."""
        began_s = time.monotonic()
        rank = int((self.out / STRAGGLER).read_text())
        for at_s, seconds in STOPS_S:
            if self.over.wait(max(0.0, began_s + at_s - time.monotonic())):
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGSTOP)
                try:
                    self.over.wait(seconds)
                finally:
                    os.kill(rank, signal.SIGCONT)


REAL: dict[str, type[Disturbance]] = {"quota": Quota, "hogs": Hogs, "shaped": Shaped, "stops": Stops}
