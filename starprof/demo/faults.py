"""Start a training script with one real fault in it: `faults.py SCRIPT [ARGS...]`, in each rank.

The script stays as it is. What goes wrong comes from the environment variable `DEMO_FAULT`, a JSON object with the
fields of `Fault`, and is brought in through torch's own hooks and classes. At the end the rank at fault writes what it
really did (step and seconds of every delay) to `Fault.truth`, for whoever checks the diagnosis afterwards.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "DEMO_FAULT"


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: a name in `KINDS`.
        rank: the rank at fault; -1 for every rank.
        step: first optimizer step (from 0) with the fault.
        until: file at whose presence the fault is over; "": it lasts.
        delay_ms: how long each delay lasts.
        every: a delay in every n-th step only.
        layer: for `backward`, where the delay sits: "first" or "last" layer of the model.
        truth: file for what was really done, "" for none.
    """

    kind: str
    rank: int = 1
    step: int = 0
    delay_ms: float = 0.0
    every: int = 1
    layer: str = "first"
    truth: str = ""
    until: str = ""

    def to_env(self) -> dict[str, str]:
        """The environment that brings the fault into a rank."""
        return {VARIABLE: json.dumps(self.__dict__)}


@dataclass
class Injector:
    """A fault at work in one rank: counts the steps, delays, and keeps the truth."""

    fault: Fault
    rank: int
    step: int = 0
    delays: list[tuple[int, float]] = field(default_factory=list)

    @property
    def guilty(self) -> bool:
        """Whether this rank is the one at fault."""
        return self.fault.rank in (self.rank, -1)

    @property
    def due(self) -> bool:
        """Whether the fault shows in the current step."""
        since = self.step - self.fault.step
        over = bool(self.fault.until) and Path(self.fault.until).exists()
        return self.guilty and since >= 0 and since % self.fault.every == 0 and not over

    def count_steps(self) -> None:
        """Count optimizer steps."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def after_step(*_: Any) -> None:
            self.step += 1

        register_optimizer_step_post_hook(after_step)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Write down how long the block took."""
        began = time.perf_counter()
        yield
        self.delays.append((self.step, time.perf_counter() - began))

    def delay(self, *_: Any) -> None:
        """Sleep, if the fault is due."""
        if self.due:
            with self.timed():
                time.sleep(self.fault.delay_ms / 1e3)

    def write_truth(self) -> None:
        """Leave the truth behind."""
        if self.guilty and self.fault.truth:
            path = Path(self.fault.truth.replace("{rank}", str(self.rank)))
            path.write_text(json.dumps({"rank": self.rank, "delays": self.delays}))


def backward(inject: Injector) -> None:
    """A gradient hook in one layer sleeps: backward itself is slow on this rank."""
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__

    def init(ddp: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        original(ddp, module, *args, **kwargs)
        weights = [p for name, p in module.named_parameters() if name.endswith("weight")]
        weights[0 if inject.fault.layer == "first" else -1].register_hook(inject.delay)

    DistributedDataParallel.__init__ = init


class SlowDataset:
    """A dataset whose every n-th sample takes long to read."""

    def __init__(self, data: Any, batch_size: int, inject: Injector) -> None:
        self.data, self.batch_size, self.inject, self.read = data, batch_size, inject, 0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        if self.read % self.batch_size == 0:
            self.inject.delay()
        return self.data[index]


def loader(inject: Injector) -> None:
    """One rank's data are slow to read: one sample of every batch waits."""
    from torch.utils.data import DataLoader

    original = DataLoader.__init__

    def init(self: Any, dataset: Any, batch_size: int = 1, **kwargs: Any) -> None:
        original(self, SlowDataset(dataset, batch_size, inject), batch_size=batch_size, **kwargs)

    if inject.guilty:
        DataLoader.__init__ = init


def pin_to_core_of(rank: int, guilty_rank: int) -> int:
    """The core that `rank` gets: the last one belongs to the guilty rank alone, the others share the rest."""
    cores = sorted(os.sched_getaffinity(0))
    others = cores[:-1] or cores
    return cores[-1] if rank == guilty_rank else others[rank % len(others)]


def cpu(inject: Injector) -> None:
    """Every rank keeps to one core, the one at fault to a core of its own, where a foreign process will join it.

    The hog itself is no child of the job: see `starprof.demo.hog`.
    """
    os.sched_setaffinity(0, {pin_to_core_of(inject.rank, inject.fault.rank)})


def none(_: Injector) -> None:
    """Nothing goes wrong."""


KINDS: dict[str, Callable[[Injector], None]] = {
    "backward": backward,
    "loader": loader,
    "cpu": cpu,
    "none": none,
}


def main(kinds: dict[str, Callable[[Injector], None]]) -> None:
    """Bring the fault of the environment in, then run the script named on the command line as `__main__`."""
    fault = Fault(**json.loads(os.environ[VARIABLE]))
    inject = Injector(fault, int(os.environ["RANK"]))
    kinds[fault.kind](inject)
    inject.count_steps()
    atexit.register(inject.write_truth)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(KINDS)
