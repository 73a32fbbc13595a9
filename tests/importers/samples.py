"""One small valid input a format, or several: what the fuzzer starts from, and what every importer must recognise.

Whoever adds an importer adds a function here that yields its samples, and lists it in `MAKERS`.
"""

from __future__ import annotations

import csv
import io
import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """A valid input.

    Attributes:
        format: NAME of the importer that reads it.
        files: name and content of each file of the run.
    """

    format: str
    files: dict[str, bytes]


def mllog() -> Iterator[Sample]:
    def line(key, value=None, time_ms=0, **metadata):
        record = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value}
        return ":::MLLOG " + json.dumps(record | {"metadata": metadata})

    steps = [line("tracked_stats", {"train_step_time": 2.5 + i % 3}, 1000 * i, step=16.0 * i) for i in range(20)]
    yield Sample("mllog", {"result_0.txt": _lines(line("global_batch_size", 16), line("run_start"), *steps)})


def scalars() -> Iterator[Sample]:
    def export(every, count):
        rows = [(1588275106.74 + 2.5 * i * every + 0.01 * (i % 3), i * every + 1, 2.9 / (i + 1)) for i in range(count)]
        return _lines("Wall time,Step,Value", *(f"{wall:.3f},{step},{value:.6f}" for wall, step, value in rows))

    yield Sample(
        "tensorboard-csv", {"run_a-tag-loss.csv": export(10, 30), "run_a-tag-eval_accuracy.csv": export(50, 6)}
    )


def series_json() -> Iterator[Sample]:
    def series(first):
        return {"step": [10 * i for i in range(20)], "value": [first + 0.01 * (i % 3) for i in range(20)]}

    yield Sample("step-series", {"step_time.json": json.dumps({"baseline": series(0.5)}).encode()})


def kineto() -> Iterator[Sample]:
    def rank(number):
        events = []
        for step in range(3):
            start = 1_000_000 + step * 10_000
            events += [
                {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1,
                 "ts": start, "dur": 9900},
                {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": start + 10, "dur": 100},
                {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": start + 100, "dur": 4000,
                 "args": {"stream": 7, "correlation": step}},
                {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "pid": 0, "tid": 20,
                 "ts": start + 5000 + 100 * number, "dur": 900 - 100 * number,
                 "args": {"stream": 20, "Collective name": "allreduce", "In msg nelems": 1024, "dtype": "Float",
                          "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}},
            ]  # fmt: skip
        return {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": number, "world_size": 2},
                "traceEvents": events}  # fmt: skip

    yield Sample("kineto", {f"rank-{n}.json": json.dumps(rank(n)).encode() for n in (0, 1)})


def flight_recorder() -> Iterator[Sample]:
    def dump(rank):
        entries = [
            {"record_id": i, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": i + 1,
             "p2p_seq_id": 0, "op_id": i + 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 10**18 + i,
             "input_sizes": [(4, 4)], "input_dtypes": ["Float"], "output_sizes": [(4, 4)], "output_dtypes": ["Float"],
             "state": "scheduled" if i == 3 else "completed", "time_discovered_started_ns": None,
             "time_discovered_completed_ns": None, "retired": i < 3, "timeout_ms": 600000,
             "is_p2p": False, "frames": []}
            for i in range(4 - rank)
        ]  # fmt: skip
        return {"version": "2.9", "nccl_version": "2.27.3", "host_name": "n1",
                "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
                "pg_status": {"0": {"last_enqueued_collective": 4, "last_started_collective": 3,
                                    "last_completed_collective": 3}},
                "entries": entries}  # fmt: skip

    yield Sample("nccl-flight-recorder", {f"trace_rank_{n}": pickle.dumps(dump(n), protocol=2) for n in (0, 1)})
    yield Sample("nccl-flight-recorder", {f"trace_rank_{n}.json": json.dumps(dump(n)).encode() for n in (0, 1)})


def training_log() -> Iterator[Sample]:
    steps = [
        f" [2026-01-31 10:30:{i:02d}] iteration {i:8d}/ 100 | consumed samples: {16 * i} | elapsed time per iteration "
        f"(ms): {1000.0 + 10 * (i % 3):.1f} | learning rate: 1.0E-04 | global batch size: 16 |"
        for i in range(1, 30)
    ]
    yield Sample("training-log", {"train.log": _lines(*steps)})
    blocks = [
        line
        for i in range(1, 30)
        for line in (f"[batch={i}/4800]:", f"\t Train throughput/batches_per_sec: {0.125 + i / 1000:.4f}")
    ]
    stamped = [
        f"2026-01-31 10:30:{2 * i:02d},0{p} - INFO - step: {i} step_time: 2.1" for i in range(30) for p in (1, 2)
    ]
    yield Sample("training-log", {"blocks.log": _lines(*blocks)})
    yield Sample("training-log", {"processes.log": _lines(*stamped)})


def op_trace() -> Iterator[Sample]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"step": step, "optype": kind, "start_ts": start + 0.01 * dp, "duration": lasts * (1.0 + dp),
         "dp_rank": dp, "stage": pp, "rank": 2 * dp + pp, "seq_id": mb, "mc": 0, "mb_id": mb}
        for step in range(4) for dp in (0, 1) for pp in (0, 1) for mb in (0, 1)
        for kind, start, lasts in (("forward-compute", 0.1 * mb, 0.08), ("backward-compute", 0.3 + 0.2 * mb, 0.16))
    ]  # fmt: skip
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    yield Sample("op-trace", {"trace-X.parquet": out.getvalue(), "meta-X.yaml": b"dp: 2\npp: 2\ntp: 1\n"})


def tracelens() -> Iterator[Sample]:
    header = (
        "rank,Process Group Name,Process Group Ranks,Collective name,Group size,dtype,In msg nelems,stream,"
        "dur_sum,dur_mean,dur_std,dur_min,dur_max,operation_count"
    )
    rows = [
        f'{r},0,"[0, 1, 2, 3]",_reduce_scatter_base,4,Float,1024,6,{160 * d},{d},1.5,{d - 5},{d + 5},160'
        for r, d in enumerate((900.0, 100.0, 880.0, 910.0))
    ]
    yield Sample("tracelens", {"nccl_summary_long.csv": _lines(header, *rows)})


def msprof() -> Iterator[Sample]:
    header = (
        "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
        "Communication(Not Overlapped and Exclude Receive)"
    )
    rows = [
        f",rank,{r},80000.5,{400000 - 300000 * (r == 1)},5000,405000,{900000 + 300000 * (r == 1)},1400000,0,0"
        for r in range(4)
    ]
    times = {"Start Timestamp(us)": 1.7e15, "Elapse Time(ms)": 120.5, "Transit Time(ms)": 0.5, "Wait Time(ms)": 110.0}
    call = {str(r): {"Communication Time Info": times} for r in (0, 1)}
    operations = {"(0, 1)": {"step": {"hcom_broadcast__501_0@1": call, "hcom_allReduce__501_1@1": call}}}
    yield Sample("msprof", {"cluster_step_trace_time.csv": _lines(header, *rows)})
    yield Sample(
        "msprof",
        {
            "cluster_step_trace_time.csv": _lines(header, *rows),
            "cluster_communication.json": json.dumps(operations).encode(),
        },
    )


def traceml() -> Iterator[Sample]:
    def row(rank):
        wait = 0.25 + 60.5 * (rank == 2)
        metrics = {"input_wait_ms": wait, "step_time_ms": 200.0 + 0.5 * rank, "traced_step_time_ms": 199.75 - wait,
                   "h2d_ms": None, "forward_ms": 40.5, "backward_ms": 150.0 - wait, "optimizer_ms": 5.0,
                   "residual_ms": 3.5}  # fmt: skip
        identity = {"global_rank": rank, "local_rank": rank % 2, "node_rank": rank // 2, "hostname": f"n{rank // 2}",
                    "local_world_size": 2, "world_size": 4}  # fmt: skip
        return {"identity": identity, "metrics": metrics}

    window = {"kind": "step_window", "steps_analyzed": 200, "start_step": 50, "end_step": 249,
              "diagnosis_clock": "gpu"}  # fmt: skip
    section = {"metadata": {"mode": "multi_node", "global_ranks_seen": 4, "section_metric_names": ["step_time_ms"]},
               "diagnosis": {"kind": "INPUT_STRAGGLER", "ranks": [2]}, "issues": [],
               "global": {"index_by": "global_rank", "window": window},
               "groups": {"by": "global_rank", "rows": {str(r): row(r) for r in range(4)}}}  # fmt: skip
    summary = {"schema_version": 1.7, "meta": {"world_size": 4}, "primary_diagnosis": {"kind": "INPUT_STRAGGLER"},
               "system": {"metadata": {"gpus_observed": 4}}, "step_time": section}  # fmt: skip
    yield Sample("traceml", {"final_summary.json": json.dumps(summary, indent=2).encode()})
    yield Sample("traceml", {"step_time.json": json.dumps(section).encode()})


def horovod() -> Iterator[Sample]:
    events: list[dict[str, object]] = [{"ph": "i", "name": "CYCLE_START", "ts": 1000, "s": "g"}]
    for tensor in (1, 2):
        events.append({"name": "process_name", "ph": "M", "pid": tensor, "args": {"name": f"allreduce.layer{tensor}"}})
    for call in range(12):
        start, tensor = 2000 + 1000 * call, 1 + call % 2
        events.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": start, "pid": tensor})
        for rank in range(3):
            events.append({"ph": "X", "name": str(rank), "ts": start + 5 + 200 * (rank == 2), "pid": tensor, "dur": 0})
        events += [
            {"ph": "E", "ts": start + 300, "pid": tensor},
            {"ph": "B", "name": "ALLREDUCE", "ts": start + 301, "pid": tensor},
            {"ph": "E", "ts": start + 400, "pid": tensor},
        ]
    yield Sample("horovod-timeline", {"timeline.json": _lines("[", *(json.dumps(e) + "," for e in events))})


def readiness() -> Iterator[Sample]:
    series = {str(r): [0.3 if r == 2 else 0.98 - 0.01 * (i % 3) for i in range(40)] for r in range(4)}
    times = {"event_time": [str(1_754_963_040 + 60 * i) for i in range(40)]}
    yield Sample("data-readiness", {"data_readiness.json": json.dumps(times | series).encode()})


def worker_csv() -> Iterator[Sample]:
    long = [f"{w},{s},{300.5 + 200 * (w == 3) + s % 5}" for s in range(30) for w in range(5)]
    yield Sample("worker-times", {"times.csv": _lines("worker,step,step_time_ms", *long)})
    wide = [",".join([str(s), *(str(300.5 + 200 * (w == 3) + s % 5) for w in range(5))]) for s in range(30)]
    yield Sample("worker-times", {"wide.csv": _lines("step," + ",".join(f"worker_{w}" for w in range(5)), *wide)})


def worker_log() -> Iterator[Sample]:
    lines = [f"rank: {w}, total_time={6.9 - 5.5 * (w % 3 == 0)}, node n{w % 2}" for _ in range(3) for w in range(6)]
    yield Sample("worker-log", {"workers.log": _lines(*lines)})


def nccl_inspector() -> Iterator[Sample]:
    def record(rank, number):
        call = {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 1 << 20,
                "coll_exec_time_us": 500.0 + 3000 * (rank != 1), "coll_algobw_gbs": 277.2}  # fmt: skip
        return {"header": {"id": "0x7f8c", "rank": rank, "n_ranks": 3, "nnodes": 1},
                "metadata": {"dump_timestamp_us": 1_748_030_377_748_202, "hostname": "n1", "pid": 100 + rank},
                "coll_perf": call}  # fmt: skip

    files = {f"n1-pid{100 + r}.log": _lines(*(json.dumps(record(r, n)) for n in range(20))) for r in range(3)}
    yield Sample("nccl-inspector", files)


def link_tests() -> Iterator[Sample]:
    hosts = ("n1", "n2", "n3", "n4")
    rows = [f"{a},{b},{90.5 if 'n3' in (a, b) else 180.25}" for a in hosts for b in hosts if a < b]
    yield Sample("link-tests", {"pairs.csv": _lines("host_a,host_b,busbw_GB/s", *rows)})
    sizes = ((1 << 20, 11.5), (1 << 30, 180.25))
    table = [f" {size} {size // 4} float sum -1 91.1 {bw} {bw} 0 90.8 {bw} {bw} N/A" for size, bw in sizes]
    ranks = [f"#  Rank  {r} Group  0 Pid 7 on n{r} device  0 [0x1b] NVIDIA H100" for r in (0, 1)]
    names = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
    yield Sample("link-tests", {"n0-n1.log": _lines("# nThread 1 nGpus 1", *ranks, names, *table)})
    results = [{"size": size, "out_of_place": {"bus_bw": bw}, "in_place": {"bus_bw": bw}} for size, bw in sizes]
    devices = [{"rank": r, "hostname": f"n{r}", "device": 0} for r in (0, 1)]
    told = {"version": 3, "start_time": "2026-07-09 16:03:21", "args": ["all_reduce_perf"],
            "config": {"devices": devices}, "results": results}  # fmt: skip
    yield Sample("link-tests", {"n0-n1.json": json.dumps(told).encode()})


def sagemaker() -> Iterator[Sample]:
    def row(kind, name, dimension, value, second):
        about = {"Type": kind, "Name": name, "Dimension": dimension, "Value": value}
        return json.dumps(about | {"NodeId": "algo-1", "Timestamp": 1_591_748_109.25 + second})

    rows = [
        line
        for second in range(8)
        for line in (
            *(row("cpu", f"cpu{c}", "CPUUtilization", 1.5 + 50 * c, second) for c in (0, 1)),
            *(row("gpu", f"gpu{g}", "GPUUtilization", 97.0, second) for g in (0, 1, 2)),
            row("network", "algo-1", "ReceiveBytesPerSecond", 1e6, second),
        )
    ]
    yield Sample("sagemaker-system", {"1591748100.algo-1.json": _lines(*rows)})


def nvidia_smi() -> Iterator[Sample]:
    header = (
        "timestamp, name, index, uuid, utilization.gpu [%], power.draw [W], power.limit [W], clocks.current.sm [MHz], "
        "clocks_event_reasons.active, temperature.gpu, memory.used [MiB], ecc.errors.uncorrected.volatile.total"
    )
    rows = [
        f"2026/01/31 10:30:{t:02d}.12{g}, Tesla V100-SXM2-32GB, {g}, GPU-{g}0000000-1111, 99 %, "
        f"{150 if g == 2 else 300}.00 W, 300.00 W, {1005 if g == 2 else 1410} MHz, "
        f"0x{4 if g == 2 else 0:016x}, 65, 30000 MiB, [N/A]"
        for t in range(8)
        for g in range(4)
    ]
    yield Sample("nvidia-smi", {"gpus.csv": _lines(header, *rows)})
    yield Sample(
        "nvidia-smi",
        {"bare.csv": _lines("GPU-00000000-1, 99 %, 300.00 W, 1410 MHz", "GPU-00000001-1, 9 %, 60.00 W, 210 MHz")},
    )


def dmon() -> Iterator[Sample]:
    rows = [
        f" 20260131   10:30:{t:02d}  {g}  {300 - 9 * g}  65  -  99  30  {40 * g}  0" for t in range(8) for g in range(3)
    ]
    yield Sample(
        "dmon",
        {
            "dmon.txt": _lines(
                "#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem  pviol  tviol",
                "#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %   bool",
                *rows,
            )
        },
    )
    dcgm = [f"GPU {g}     98      12      300.{t}      {100 * t}" for t in range(6) for g in range(3)]
    yield Sample("dmon", {"dcgm.txt": _lines("#Entity   GPUTL   MCUTL   POWER   PVIOL", "ID", *dcgm)})


def prometheus() -> Iterator[Sample]:
    def scrape(n):
        labels = [f'gpu="{g}",UUID="GPU-{g}",device="nvidia{g}",modelName="NVIDIA A100",Hostname="n1"' for g in (0, 1)]
        return [
            "# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).",
            "# TYPE DCGM_FI_DEV_GPU_UTIL gauge",
            *(f"DCGM_FI_DEV_GPU_UTIL{{{label}}} 9{n}" for label in labels),
            *(f"DCGM_FI_DEV_XID_ERRORS{{{label}}} {79 if n else 0}" for label in labels),
            f'node_cpu_seconds_total{{cpu="0",mode="user"}} {1000 + 15 * n}',
            f'node_cpu_seconds_total{{cpu="0",mode="idle"}} {500 + n}',
            f"node_pressure_cpu_waiting_seconds_total {10 + n}",
            f'node_network_receive_bytes_total{{device="eth0"}} {10**9 * (n + 1)}',
            f'node_disk_read_bytes_total{{device="nvme0n1"}} {10**6 * n}',
            'node_uname_info{nodename="n1",sysname="Linux"} 1',
            f"node_time_seconds {1.77e9 + 15 * n}",
        ]

    yield Sample("prometheus", {"scrapes.prom": _lines(*scrape(0), *scrape(1), *scrape(2))})
    series = [
        {
            "metric": {"__name__": name, "gpu": str(g), "instance": "n1:9400"},
            "values": [[1770000000 + 15 * t, str(v)] for t in range(6)],
        }
        for g in (0, 1)
        for name, v in (("DCGM_FI_DEV_POWER_USAGE", 300.5), ("DCGM_FI_DEV_GPU_UTIL", 98))
    ]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    yield Sample("prometheus", {"range.json": json.dumps(answer).encode()})
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["Time", *(f'DCGM_FI_DEV_POWER_USAGE{{gpu="{g}", Hostname="n1"}}' for g in (0, 1))])
    writer.writerows([f"2026-01-31 10:00:{t:02d}", 300 + t, 150] for t in range(6))
    yield Sample("prometheus", {"grafana.csv": table.getvalue().encode()})


def kernel_log() -> Iterator[Sample]:
    xid = "NVRM: Xid (PCI:0000:18:00): 79, pid=4242, name=python, GPU has fallen off the bus."
    yield Sample("kernel-log", {"dmesg.txt": _lines("[    0.000001] Linux version 6", f"[  812.512345] {xid}")})
    told = [f"2026-01-31T10:00:0{t}+00:00 n1 kernel: {xid}" for t in range(3)]
    yield Sample("kernel-log", {"kern.log": _lines(*told)})


MAKERS: tuple[Callable[[], Iterator[Sample]], ...] = (
    mllog,
    scalars,
    series_json,
    kineto,
    flight_recorder,
    training_log,
    op_trace,
    tracelens,
    msprof,
    traceml,
    horovod,
    readiness,
    worker_csv,
    worker_log,
    nccl_inspector,
    link_tests,
    nvidia_smi,
    dmon,
    prometheus,
    sagemaker,
    kernel_log,
)


def samples() -> list[Sample]:
    """All samples."""
    return [sample for maker in MAKERS for sample in maker()]


def _lines(*lines: str) -> bytes:
    return ("\n".join(lines) + "\n").encode()
