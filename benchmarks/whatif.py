"""Time and memory of the what-if analysis of op traces: read, replay, verdict.

    python benchmarks/whatif.py [--trace trace.parquet] [--json]

Without a trace, a simulated job of the size of the published one is taken (16 ranks, 32 micro-batches, 44 steps, 117
thousand operations, one slow rank); then the same with ten times the steps, and with ten times the pipelines. Every
size runs in a process of its own; memory is what it takes beyond the imports.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from starprof.analysis import diagnose
from starprof.analysis.synthetic.op_job import OpJob
from starprof.importers.load import load

GOALS = {"1": (1.0, 150), "steps x 10": (3.0, 400), "pipelines x 10": (5.0, 400)}
"""Seconds of CPU and MB beyond the imports; ten times the pipelines are ten slow ranks too, each replayed."""
TIMES = 10
JOB = OpJob(pipelines=4, stages=4, micro_batches=32, steps=44, slow={(0, 0): 2.3})


def simulated() -> pa.Table:
    """The simulated job as the columns of an op trace."""
    frame = JOB.frame
    place = {info.rank: (info.role["dp"], info.role["pp"]) for info in JOB.ranks}
    dp, pp = np.array([place[rank] for rank in frame["rank"]]).T
    return pa.table(
        {
            "dp_rank": pa.array(dp, pa.int16()),
            "stage": pa.array(pp, pa.int8()),
            "step": pa.array(frame["step"], pa.int64()),
            "optype": pa.array(frame["name"], pa.string()).dictionary_encode(),
            "start_ts": pa.array(frame["start_us"] / 1e6, pa.float32()),
            "duration": pa.array(frame["dur_us"] / 1e6, pa.float32()),
            "seq_id": pa.array(frame["sequence"], pa.int32()),
            "mc": pa.array(frame["chunk"].fillna(-1), pa.int8()),
            "mb_id": pa.array(frame["micro_batch"].fillna(-1), pa.int8()),
        }
    )


def enlarged(table: pa.Table, column: str) -> pa.Table:
    """The trace ten times, with the numbers of one column going on; every copy takes a little longer than the last."""
    values = table[column].to_numpy()
    shift = int(values.max()) + 1
    copies = []
    for copy in range(TIMES):
        more = table.set_column(
            table.column_names.index(column), column, pa.array(values.astype(np.int64) + copy * shift)
        )
        lasting = table["duration"].to_numpy() * np.float32(1 + 1e-4 * copy)
        copies.append(more.set_column(table.column_names.index("duration"), "duration", pa.array(lasting)))
    return pa.concat_tables(copies)


def peak_mb() -> int:
    """Largest resident memory of this process so far (that of getrusage begins with the parent's)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def measure(path: str) -> dict[str, float | int | str]:
    """Read and judge one trace; CPU seconds beside wall seconds, because a busy machine stretches only the latter."""
    import starprof.analysis.whatif
    import starprof.importers.traces.op_trace  # noqa: F401 - what is imported late would count as memory of the trace

    before = peak_mb()
    wall, cpu = time.perf_counter(), time.process_time()
    run = load([path])
    read_cpu = time.process_time() - cpu
    verdict = diagnose(run)
    operations = 0 if run.operations is None else len(run.operations)
    return {
        "operations": operations,
        "ranks": len(run.ranks),
        "wall_s": round(time.perf_counter() - wall, 3),
        "cpu_s": round(time.process_time() - cpu, 3),
        "read_cpu_s": round(read_cpu, 3),
        "mb": peak_mb() - before,
        "verdict": verdict.verdict,
        "blamed": ", ".join(str(rank) for finding in verdict.findings for rank in finding.ranks),
    }


def main() -> int:
    """Measure, print, and fail when a goal is missed."""
    parser = argparse.ArgumentParser(description="time and memory of the what-if analysis")
    parser.add_argument("--trace", help="op trace to take instead of the simulated one")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return 0
    table = pq.read_table(options.trace) if options.trace else simulated()
    if "rank" in table.column_names:  # it would have to be numbered anew for more pipelines
        table = table.drop_columns(["rank"])
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"1": table, "steps x 10": enlarged(table, "step"), "pipelines x 10": enlarged(table, "dp_rank")}
        for name, content in sizes.items():
            path = Path(folder) / "trace.parquet"
            pq.write_table(content, path)
            child = subprocess.run([sys.executable, __file__, "--one", str(path)], capture_output=True, check=True)
            results[name] = json.loads(child.stdout)
    if options.json:
        print(json.dumps({"goals": GOALS, "results": results}, indent=2))
    else:
        print("| size | operations | ranks | CPU | wall | memory | verdict | blamed |")
        print("|---|---|---|---|---|---|---|---|")
        for name, row in results.items():
            print(
                f"| {name} | {row['operations']:,} | {row['ranks']} | {row['cpu_s']:.2f} s | {row['wall_s']:.2f} s "
                f"| {row['mb']} MB | {row['verdict']} | {row['blamed']} |"
            )
    return int(any(row["cpu_s"] > GOALS[name][0] or row["mb"] > GOALS[name][1] for name, row in results.items()))


if __name__ == "__main__":
    sys.exit(main())
