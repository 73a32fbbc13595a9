"""Time and memory of reading profiler traces, beside what `json.loads` alone takes for the same bytes.

    python benchmarks/kineto.py [--scale 1.0] [--json]

Two jobs: 8 ranks on GPUs with 132 MB of traces in all, and 4 CPU ranks over gloo with 40 MB each. The traces are made
here, event by event in the mix and the layout that torch.profiler writes (operators with shapes and call stacks,
launches, flow arrows, kernels). In both, one rank is late by 10 % of each step, and the verdict must name it. Each job
is read in a process of its own: `wall_s` is from files to verdict, `process_s` with the start of Python and imports,
`peak_mib` the most memory that the process ever had.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

GOAL_S, GOAL_MIB = 2.0, 250.0  # 8 ranks, 132 MB
SLOW = 3
STEP_US, LATE_US = 50_000.0, 5_000.0

READ = """
import json, resource, sys, time
began = time.perf_counter()
from starprof.analysis import diagnose
from starprof.importers.load import load
imported = time.perf_counter()
run = load([sys.argv[1]])
loaded = time.perf_counter()
verdict = diagnose(run)
print(json.dumps({
    "import_s": imported - began, "load_s": loaded - imported, "wall_s": time.perf_counter() - imported,
    "cpu_s": time.process_time(), "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "verdict": verdict.verdict, "ranks": sorted({r for f in verdict.findings for r in f.ranks}),
    "calls": len(run.collectives), "steps": len(run.steps.steps),
}))
"""
PLAIN = """
import json, pathlib, resource, sys, time
began = time.perf_counter()
for file in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    json.loads(file.read_bytes())
print(json.dumps({"wall_s": time.perf_counter() - began,
                  "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""

OPERATOR = """  {{
    "ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 3113936, "tid": {tid},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      "External id": {id}, "Record function id": 0, "Sequence number": {id}, "Fwd thread id": 0,
      "Input Dims": [[1024, 1024], [1024, 4096], []], "Input type": ["float", "float", "Scalar"], "Ev Idx": {id}
    }}
  }}"""
LAUNCH = """  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 3113936, "tid": 3113936,
    "ts": {ts:.3f}, "dur": 5.000,
    "args": {{
      "External id": {id}, "cbid": 211, "correlation": {id}
    }}
  }},
  {{
    "ph": "s", "id": {id}, "pid": 3113936, "tid": 3113936, "ts": {ts:.3f},
    "cat": "ac2g", "name": "ac2g"
  }}"""
KERNEL = """  {{
    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": {stream},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      "External id": {id}, "queued": 0, "device": 0, "context": 1, "stream": {stream}, "correlation": {id},
      "registers per thread": 96, "shared memory": 87568, "blocks per SM": 0.074074, "warps per SM": 1.259259,
      "grid": [8, 1, 1], "block": [544, 1, 1], "est. achieved occupancy %": 0{more}
    }}
  }},
  {{
    "ph": "f", "id": {id}, "pid": 0, "tid": {stream}, "ts": {ts:.3f},
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }}"""
MARK = """  {{
    "ph": "X", "cat": "user_annotation", "name": "{name}", "pid": 3113936, "tid": {tid},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      "External id": 1, "Record function id": 0, "Ev Idx": 0
    }}
  }}"""
OPERATORS = ("aten::addmm", "aten::t", "aten::transpose", "aten::as_strided", "aten::relu", "aten::clamp_min")
GEMM = "ampere_sgemm_128x64_tn"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage&lt;4096ul&gt;)"
CALL = (
    ', "Collective name": "allreduce", "In msg nelems": 6637568, "Out msg nelems": 6637568, "Group size": 8, '
    '"dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"'
)


def gpu_step(step: int, rank: int, rng: random.Random, operators: int) -> Iterator[str]:
    """One step of a rank that computes, is late or not, and reduces ten buckets."""
    begin = step * STEP_US
    yield MARK.format(name=f"ProfilerStep#{step}", tid=3113936, ts=begin, dur=STEP_US)
    late = LATE_US * (rank == SLOW) + rng.uniform(0, 300)
    ready = 35_000.0 + late
    each = ready / operators
    for n in range(operators):
        number = step * 10 * operators + n
        at = begin + n * each
        yield OPERATOR.format(name=OPERATORS[n % 6], tid=3113936, ts=at, dur=each * 0.8, id=number)
        if n % 2 == 0:
            yield LAUNCH.format(ts=at + 2, id=number)
            yield KERNEL.format(name=GEMM, stream=7, ts=at + 8, dur=1.8 * each, id=number, more="")
    end = begin + 35_000.0 + LATE_US + 800.0
    for bucket in range(10):
        number = step * 10 * operators + operators + bucket
        start = begin + ready if bucket == 0 else end + (bucket - 1) * 500.0
        duration = end - start if bucket == 0 else 490.0 + rng.uniform(0, 10)
        yield LAUNCH.format(ts=begin + ready - 20 + bucket, id=number)
        yield KERNEL.format(name=NCCL, stream=20, ts=start, dur=duration, id=number, more=CALL)


def gloo_step(step: int, rank: int, rng: random.Random, operators: int) -> Iterator[str]:
    """One step of a CPU rank: forward, backward with its delay, two all-reduces, optimizer."""
    begin = step * STEP_US
    yield MARK.format(name=f"ProfilerStep#{step}", tid=1, ts=begin, dur=STEP_US)
    yield MARK.format(name="DistributedDataParallel.forward", tid=1, ts=begin, dur=10_000.0)
    work = 25_000.0 + LATE_US * (rank == SLOW) + rng.uniform(0, 300)
    half = operators // 2
    for n in range(half):
        yield OPERATOR.format(name=OPERATORS[n % 6], tid=1, ts=begin + n * 1e4 / half, dur=8e3 / half, id=n)
        at = begin + 1e4 + n * work / half
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        yield OPERATOR.format(name=node, tid=1, ts=at, dur=work / half * 0.98, id=n)
        yield OPERATOR.format(name="AddmmBackward0", tid=1, ts=at + 0.5, dur=work / half * 0.95, id=n)
    first, end = begin + 1e4 + work, begin + 1e4 + 25_000.0 + LATE_US + 2_000.0
    yield MARK.format(name="gloo:all_reduce", tid=9, ts=first, dur=end - first)
    yield MARK.format(name="gloo:all_reduce", tid=9, ts=end, dur=900.0 + rng.uniform(0, 50))
    yield MARK.format(name="Optimizer.step#SGD.step", tid=1, ts=end + 1_000.0, dur=2_000.0)


def write(file: TextIO, rank: int, world: int, backend: str, size: float) -> None:
    """A trace of about `size` bytes."""
    rng = random.Random(rank)
    make, operators, steps = (gpu_step, 1_000, 12) if backend == "nccl" else (gloo_step, 600, 60)
    head = {"backend": backend, "rank": rank, "world_size": world, "pg_count": 1}
    file.write(f'{{\n  "schemaVersion": 1,\n  "distributedInfo": {json.dumps(head)},\n  "traceEvents": [\n')
    sample = sum(len(text) + 2 for text in make(0, rank, rng, operators))
    operators = max(10, int(operators * size / (sample * steps)))
    rng.seed(rank)
    for step in range(steps):
        for n, text in enumerate(make(step, rank, rng, operators)):
            file.write(text if step == n == 0 else ",\n" + text)
    file.write('\n  ],\n  "traceName": "trace.json",\n  "displayTimeUnit": "ms"\n}\n')


def measured(program: str, folder: Path) -> dict[str, Any]:
    """What a process of its own prints, and how long it took in all."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program, str(folder)], check=True, capture_output=True, text=True)
    return {**json.loads(done.stdout), "process_s": time.perf_counter() - began}


def one_job(backend: str, world: int, bytes_each: float) -> dict[str, Any]:
    """Figures of one job."""
    with tempfile.TemporaryDirectory() as place:
        for rank in range(world):
            with (Path(place) / f"rank{rank}.pt.trace.json").open("w") as file:
                write(file, rank, world, backend, bytes_each)
        total = sum(f.stat().st_size for f in Path(place).iterdir())
        ours = min((measured(READ, Path(place)) for _ in range(3)), key=lambda m: m["wall_s"])
        plain = measured(PLAIN, Path(place))
    return {
        "job": f"{world} ranks, {backend}",
        "mb": total / 1e6,
        **ours,
        "mb_per_s": total / 1e6 / ours["wall_s"],
        "json_loads_s": plain["wall_s"],
        "json_loads_peak_mib": plain["peak_mib"],
        "times_json_loads": plain["wall_s"] / ours["wall_s"],
    }


def main() -> int:
    """Measure both jobs; 1 when a verdict is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the traces against the stated ones")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = [one_job("nccl", 8, 16.5e6 * given.scale), one_job("gloo", 4, 40e6 * given.scale)]
    if given.json:
        print(json.dumps(results, indent=2))
    else:
        for r in results:
            print(
                f"{r['job']}: {r['mb']:.0f} MB in {r['wall_s']:.2f} s ({r['mb_per_s']:.0f} MB/s; json.loads alone "
                f"{r['json_loads_s']:.2f} s), whole process {r['process_s']:.2f} s, peak {r['peak_mib']:.0f} MiB "
                f"(json.loads {r['json_loads_peak_mib']:.0f}); {r['verdict']}, ranks {r['ranks']}, {r['calls']} calls"
            )
        print(f"goals for the first: {GOAL_S} s and {GOAL_MIB:.0f} MiB")
    return 0 if all(r["ranks"] == [SLOW] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
