"""Where the time of a round's data path goes, against native DDP: four gloo processes, 1, 10 and 50 M parameters.

    python benchmarks/data_path.py [--millions 1 10 50] [--steps 20] [--dtype float32] [--ranks 4]

The model computes next to nothing, so that what is timed is the copying and the reduction. Native: what a backward pass
with DDP's reduction takes longer than one without it. A round: collect the gradients, weigh them, reduce them in a raw
gloo group, put the sum into the gradients. All take turns; told are medians of rank 0, of wall time and of the whole
process's CPU time (gloo's threads are part of it; what four processes on two cores wait for is not).
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WIDTH = 1000
WARM = 4


class Clock:
    """Times of what is done under a name."""

    def __init__(self) -> None:
        self.wall: dict[str, list[float]] = defaultdict(list)
        self.cpu: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Add what is done in here."""
        began = time.perf_counter(), time.process_time()
        yield
        self.wall[name].append(1e3 * (time.perf_counter() - began[0]))
        self.cpu[name].append(1e3 * (time.process_time() - began[1]))


def rank(millions: float, steps: int, dtype: str) -> None:
    """One process."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from starprof.control.engine.flat import Flat, Layout
    from starprof.control.engine.gradients import gradients_of
    from starprof.control.engine.groups import Groups

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    count = max(1, round(millions * 1e6 / WIDTH**2))
    weights = [nn.Parameter(torch.zeros(WIDTH, WIDTH, dtype=getattr(torch, dtype))) for _ in range(count)]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(weights)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sum((weight * x).sum() for weight in self.weights)

    model = nn.parallel.DistributedDataParallel(Model())
    layout = Layout(weights)
    way, own, work = gradients_of(layout), Flat(layout), Flat(layout)
    world = dist.get_world_size()
    groups = Groups(dist.distributed_c10d._get_default_store(), dist.get_rank())
    one, clock = torch.ones((), dtype=getattr(torch, dtype)), Clock()

    def backward(name: str) -> None:
        for weight in weights:
            weight.grad = None
        dist.barrier()
        with clock.of(name):
            model(one).backward()

    def reduce(tensor: torch.Tensor) -> None:
        done = threading.Event()
        groups.reduce(tuple(range(world)), "round", 0, tensor, lambda complete: done.set() if complete else None)
        assert done.wait(120)

    def timed(name: str, what: Callable[[], None]) -> None:
        dist.barrier()
        with clock.of(name):
            what()

    plain = torch.zeros(layout.edges[-1], dtype=getattr(torch, dtype))
    for step in range(steps + WARM):
        if step == WARM:
            clock.wall.clear()
            clock.cpu.clear()
        backward("backward, reduced by DDP")
        with model.no_sync():
            backward("backward alone")
        timed("collect", lambda: way.collect(own))
        timed("weigh", lambda: work.take(own, 1 / world))
        timed("reduce", lambda: reduce(work.tensor))
        timed("put", lambda: way.put(work))
        timed(f"reduce {dtype} alone", lambda: reduce(plain))
    if dist.get_rank() == 0:
        for name in clock.wall:
            wall, cpu = statistics.median(clock.wall[name]), statistics.median(clock.cpu[name])
            print(f"| {millions:g} M {dtype} | {name} | {wall:.2f} | {cpu:.2f} |", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Run the processes for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 10, 50])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--ranks", type=int, default=4)
    args = parser.parse_args()
    print("| parameters | what | wall, ms | CPU, ms |\n|---|---|---|---|", flush=True)
    for millions in args.millions:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(args.ranks)}
        command = [sys.executable, __file__, "rank", str(millions), str(args.steps), args.dtype]
        ranks = [
            subprocess.Popen(command, env={**os.environ, **place, "RANK": str(number)}) for number in range(args.ranks)
        ]
        try:
            assert [process.wait(900) for process in ranks] == [0] * args.ranks
        finally:
            for process in ranks:
                process.kill()


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(float(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        main()
