"""Reported cases that come as files of other tools: tables of links and arrivals, recorders of hangs, traces."""

from __future__ import annotations

import json

import numpy as np
from inputs import Report, files
from truth import answer

from starprof.model.rundata import RunData

PAIRS = (
    ("n644", "n699", 49.36, ""),
    ("n632", "n641", 88.36, ""),
    ("n284", "n678", 49.28, "x-rack"),
    ("n641", "n644", 49.30, ""),
    ("n404", "n699", 86.81, "x-rack"),
)
COLLECTIVES = (
    "rank,Process Group Name,Collective name,Group size,dur_sum,dur_mean,dur_std,dur_min,dur_max,operation_count"
)


def half_bandwidth_between_some_hosts() -> RunData:
    """Five pairs were tested; two are quick, and one of them crosses racks."""
    rows = "".join(f"{a},{b},{rate},{label}\n" for a, b, rate, label in PAIRS)
    return files(pairs__csv=f"host_a,host_b,busbw_GBps,test\n{rows}")


def _dumps(size: int, missing: dict[int, int], calls: int) -> RunData:
    """Flight recorders: `missing` scheduled their last call so much earlier than the others, who wait."""
    dumps = {}
    for rank in range(size):
        entries = [
            {
                "record_id": n,
                "pg_id": 0,
                "process_group": ["0", "default_pg"],
                "collective_seq_id": n,
                "p2p_seq_id": 0,
                "op_id": n,
                "profiling_name": "nccl:all_reduce",
                "input_sizes": [[1024]],
                "input_dtypes": ["Float"],
                "state": "completed" if n < calls - missing_most(missing) + 1 else "scheduled",
                "is_p2p": False,
            }
            for n in range(1, calls + 1 - missing.get(rank, 0))
        ]
        group = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(size)))}}
        dumps[f"dump_{rank}__json"] = json.dumps({"version": "2.9", "pg_config": group, "entries": entries})
    return files(**dumps)


def missing_most(missing: dict[int, int]) -> int:
    """Calls that the one who stopped first never made."""
    return max(missing.values())


def a_rank_that_never_joined_a_collective() -> RunData:
    """Four ranks' flight recorders: three wait in call 8, which rank 2 never scheduled."""
    return _dumps(4, {2: 1}, 8)


def two_of_64_that_never_joined() -> RunData:
    """62 ranks wait in call 120, two never came."""
    return _dumps(64, {17: 1, 42: 1}, 120)


def a_table_of_arrivals() -> RunData:
    """Collective statistics of eight ranks: rank 4 waits least, by far."""
    rng = np.random.default_rng(7)
    lines = [COLLECTIVES]
    for rank in range(8):
        mean = 11_700.0 if rank == 4 else float(rng.uniform(26_000, 72_000))
        lines.append(f"{rank},0,_reduce_scatter_base,8,{160 * mean},{mean},{mean / 12},{mean * 0.8},{mean * 1.2},160")
    return files(nccl_summary_long__csv="\n".join(lines) + "\n")


def every_call_of_eight_ranks() -> RunData:
    """Call by call: rank 4 comes last in 86 % of 160 reduce-scatters, by up to 60 ms, and waits least."""
    rng = np.random.default_rng(8)
    lines = ["rank,Process Group Name,Collective name,Group size,index_in_group,ts,dur,dtype,In msg nelems"]
    clock = 0.0
    for call in range(160):
        late = rng.uniform(0.0, 3_000.0, 8)
        late[4] = rng.uniform(15_000.0, 60_000.0) if rng.random() < 0.861 else 0.0
        end = clock + late.max() + 11_660.0
        for rank in range(8):
            start = clock + late[rank]
            lines.append(f"{rank},0,_reduce_scatter_base,8,{call},{start:.1f},{end - start:.1f},BFloat16,1000000")
        clock = end + 100_000.0
    return files(nccl_long__csv="\n".join(lines) + "\n")


def _trace(rank: int | None) -> str:
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{n}",
            "pid": 1,
            "tid": 1,
            "ts": n * 1e5,
            "dur": 9e4,
        }
        for n in range(3)
    ]
    events += [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": n * 1e5 + 10, "dur": 8e4}
        for n in range(3)
    ]
    told = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
    return json.dumps({"schemaVersion": 1, **told, "traceEvents": events})


def traces_that_do_not_tell_their_ranks() -> RunData:
    """Two traces without `distributedInfo`, and names that tell nothing."""
    return files(first__json=_trace(None), second__json=_trace(None))


def two_traces_of_one_rank() -> RunData:
    """Two traces that say both that they are rank 1."""
    return files(a__json=_trace(1), b__json=_trace(1))


def a_trace_with_an_invalid_escape() -> RunData:
    """A name with a raw control character and an escape that JSON does not know; the rest is cut off."""
    whole = _trace(0)
    return files(trace__json=whole[: len(whole) // 2].replace("ProfilerStep#1", "Profiler\\qStep\x01#1"))


REPORTS: tuple[Report, ...] = (
    (
        half_bandwidth_between_some_hosts,
        answer(
            "straggler",
            nodes=("n644", "n284", "n678"),
            says=("n284 or n678", "cleared: n", "makes pairs slow is rejected", "test n284 with", "86.81"),
            never=("n632 is slow", "n641 is slow", "n699 is slow", "n404 is slow"),
        ),
    ),
    (
        a_rank_that_never_joined_a_collective,
        answer("hang", ranks=(2,), causes=("missing-collective",), says=("rank 2", "8"), never=("ok",)),
    ),
    (two_of_64_that_never_joined, answer("hang", ranks=(17, 42), causes=("missing-collective",), says=("120",))),
    (a_table_of_arrivals, answer("straggler", ranks=(4,), says=("waits least|waited|wait",))),
    (
        every_call_of_eight_ranks,
        answer("straggler", ranks=(4,), says=("rank 4: 139", "waited least", "they wait for it")),
    ),
    (traces_that_do_not_tell_their_ranks, answer(refused=("distributedInfo",))),
    (two_traces_of_one_rank, answer(refused=("rank 1|traces of 2 jobs",))),
    (a_trace_with_an_invalid_escape, answer("inconclusive", never=("nan",))),
)
