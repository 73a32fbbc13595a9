"""Profiler traces of a simulated job: whoever comes last at a collective lets the others wait, as in a real one."""

import json
import random
from dataclasses import dataclass, field

KERNELS = {
    "nccl": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "nccl-new": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "rccl": "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
}


@dataclass
class Job:
    """What is simulated.

    Attributes:
        late: microseconds by which (rank, step, call) is late on top of the noise.
        clock: microseconds by which each rank's clock is ahead.
        told: whether kernels carry their collective's name and group, as newer versions of torch write them.
        groups: process groups as lists of ranks; None is one of all ranks.
    """

    world: int = 8
    steps: int = 10
    calls: int = 8
    backend: str = "nccl-new"
    late: object = lambda rank, step, call: 0.0
    clock: object = lambda rank: 0.0
    told: bool = True
    annotated: bool = True
    groups: list | None = None
    compute_us: float = 1000.0
    noise_us: float = 30.0
    transfer_us: float = 200.0
    seed: int = 1
    events: dict = field(default_factory=dict)

    def traces(self):
        """Trace per rank."""
        rng = random.Random(self.seed)
        events = {rank: [] for rank in range(self.world)}
        now = dict.fromkeys(range(self.world), 1_700_000_000_000_000.0)
        number = 0
        for step in range(self.steps):
            begun = dict(now)
            for call in range(self.calls):
                for place, members in enumerate(self.groups or [list(range(self.world))]):
                    number += 1
                    ready = {}
                    for rank in members:
                        work = self.compute_us + rng.gauss(0, self.noise_us) + self.late(rank, step, call)
                        ready[rank] = now[rank] + max(work, 1.0)
                        events[rank] += self._work(rank, now[rank], ready[rank] - now[rank], number)
                    end = max(ready.values()) + self.transfer_us
                    for rank in members:
                        done = end + rng.uniform(0, 3)
                        events[rank] += self._call(rank, ready[rank], done - ready[rank], number, place, members)
                        now[rank] = done
            for rank in range(self.world):
                now[rank] += 50
                if self.annotated:
                    events[rank].append(
                        self._event(rank, "user_annotation", f"ProfilerStep#{step + 5}", begun[rank],
                                    now[rank] - begun[rank])
                    )  # fmt: skip
        return {rank: self._document(rank, events[rank]) for rank in range(self.world)}

    def _event(self, rank, category, name, start, duration, **args):
        event = {"ph": "X", "cat": category, "name": name, "pid": rank, "tid": 7, "ts": start + self.clock(rank),
                 "dur": duration}  # fmt: skip
        return event | ({"args": args} if args else {})

    def _work(self, rank, start, duration, number):
        if self.backend == "gloo":
            return [self._event(rank, "cpu_op", "aten::addmm", start, duration)]
        return [
            self._event(rank, "cuda_runtime", "cudaLaunchKernel", start - 1, 1, correlation=2 * number),
            self._event(rank, "kernel", "sm80_gemm", start, duration, stream=7, correlation=2 * number),
        ]

    def _call(self, rank, start, duration, number, place, members):
        if self.backend == "gloo":
            return [self._event(rank, "user_annotation", "gloo:all_reduce", start, duration)]
        told = {}
        if self.told:
            told = {"Collective name": "allreduce", "Process Group Name": str(place), "dtype": "BFloat16",
                    "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20,
                    "Process Group Ranks": json.dumps(members)}  # fmt: skip
        return [
            self._event(rank, "user_annotation", "nccl:all_reduce", start - 2, 3),
            self._event(rank, "cuda_runtime", "cudaLaunchKernelExC", start - 1, 1, correlation=2 * number + 1),
            self._event(rank, "kernel", KERNELS[self.backend], start, duration, stream=20, correlation=2 * number + 1,
                        **told),
        ]  # fmt: skip

    def _document(self, rank, events):
        backend = "gloo" if self.backend == "gloo" else "nccl"
        return {
            "schemaVersion": 1,
            "distributedInfo": {"backend": backend, "rank": rank, "world_size": self.world},
            "traceEvents": events,
        }


def write(folder, traces, name="rank{}.json", dumps=json.dumps):
    """One file per rank; returns the folder as text."""
    folder.mkdir(exist_ok=True)
    for rank, trace in traces.items():
        (folder / name.format(rank)).write_text(dumps(trace))
    return str(folder)
