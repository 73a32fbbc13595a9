"""What control costs a job on a GPU: in native steps, in rounds, and on the way between the device and the host.

    python benchmarks/gpu_hook.py [--repeats 3] [--millions 1 10 50]

Needs one CUDA device. First the data path alone: gradients of so many parameters to the host and back. Then real jobs
that take turns: one rank over NCCL, without control and with it (native steps), and two ranks that share the GPU over
gloo, without control, in native steps and in rounds of everybody. Told is the median time between two iterations of
rank 0, and the median of the jobs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "control" / "running"))

SETTLED = 40
BATCHES = 160
JOBS = {
    "one rank, NCCL, no control": (1, "nccl", False, None),
    "one rank, NCCL, control": (1, "nccl", True, None),
    "two ranks, gloo, no control": (2, "gloo", False, None),
    "two ranks, gloo, control, native": (2, "gloo", True, None),
    "two ranks, gloo, rounds of everybody": (2, "gloo", True, {"mode": "ssgd"}),
}


def data_path(millions: float) -> str:
    """Median times of both ways, as a row."""
    import torch

    from starprof.control.engine.flat import Flat, Layout
    from starprof.control.engine.gradients import gradients_of

    count = max(1, round(millions))
    parameters = [torch.nn.Parameter(torch.zeros(1000, 1000, device="cuda")) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    layout = Layout(parameters)
    way, flat = gradients_of(layout), Flat(layout)
    out, back = [], []
    for _ in range(30):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        way.collect(flat)
        there_s = time.perf_counter()
        way.put(flat)
        torch.cuda.synchronize()
        out.append(there_s - began_s)
        back.append(time.perf_counter() - there_s)
    return f"| {count} M parameters | {1e3 * statistics.median(out):.2f} | {1e3 * statistics.median(back):.2f} |"


def step_ms(world: int, backend: str, control: bool, mode: dict | None) -> float:
    """Median time of an iteration in one job."""
    from jobs import Job

    setup = {"device": "cuda", "backend": backend, "model": "large", "epochs": 1, "batches": BATCHES}
    setup |= {"usual_s": 0.0, "slow_s": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), setup, world=world, control=control, mode=mode)
        try:
            job.wait()
            times = [float(line.split()[1]) for line in job.text(0).splitlines() if line.startswith("AT ")]
        finally:
            job.kill()
    return 1e3 * statistics.median(b - a for a, b in pairwise(times[SETTLED:]))


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 10, 50])
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device")
    os.environ["STARPROF_CONTROL_GPU"] = "1"
    print("| data path | to the host, ms | back, ms |\n|---|---|---|")
    for millions in args.millions:
        print(data_path(millions))
    found: dict[str, list[float]] = {name: [] for name in JOBS}
    for _ in range(args.repeats):
        for name, job in JOBS.items():
            found[name].append(step_ms(*job))
    print("\n| job | ms a step | least, most |\n|---|---|---|")
    for name, times in found.items():
        print(f"| {name} | {statistics.median(times):.3f} | {min(times):.3f}, {max(times):.3f} |")


if __name__ == "__main__":
    main()
