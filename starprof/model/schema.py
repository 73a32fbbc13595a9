"""The record schema: every table and column of a run file, with kind and meaning.

`starprof.model.tables` is the one place where a column is declared. The packed spool rows, the DuckDB tables, the Arrow
batches, the roll-up of long runs and docs/schema.md are all derived from it.

Units stand in the names: `_us` integer microseconds, `_ns` integer nanoseconds, `_bytes`, `_hz`, `_c`
(degrees Celsius), `_w` (watts), `_share` (0..1), `_pct` (0..100); a bare name is a count or an id.
`*_mono_ns` and `mono_ns` are CLOCK_MONOTONIC of the node that took the record (on Linux all processes of a
boot share it); `*_unix_ns` is wall-clock time, which may jump and is never used to join anything.

NULL means "not measured", never zero. A packed row stores it as `INT_NULL` or NaN.
"""

from starprof.model.columns import INT_NULL, Column, Kind, Table, Type, packed_cells, row
from starprof.model.tables.calibration import CALIBRATION
from starprof.model.tables.gpu import GPU, GPU_SAMPLE
from starprof.model.tables.host import (
    AGENT_SAMPLE,
    CGROUP,
    CGROUP_SAMPLE,
    CPU_SAMPLE,
    DISK,
    DISK_SAMPLE,
    IRQ_SAMPLE,
    NODE_SAMPLE,
    NUMA_SAMPLE,
    PROCESS,
    PROCESS_SAMPLE,
)
from starprof.model.tables.job import ATTEMPT, CLOCK, EVENT, GAP, NODE, RANK, RUN, STEP, UNAVAILABLE
from starprof.model.tables.loader import LOADER_SAMPLE
from starprof.model.tables.network import NIC, NIC_SAMPLE, TCP, TCP_SAMPLE
from starprof.model.tables.sync import ADVISOR_ACTION, SYNC_NOISE, SYNC_STEP, SYNC_SWITCH, SYNC_UPDATE
from starprof.model.tables.trace import COLLECTIVE, LINK_TEST, OPERATION

SCHEMA_VERSION = 8

TABLES: tuple[Table, ...] = (
    RUN,
    ATTEMPT,
    NODE,
    CLOCK,
    RANK,
    STEP,
    EVENT,
    GAP,
    UNAVAILABLE,
    AGENT_SAMPLE,
    CPU_SAMPLE,
    NODE_SAMPLE,
    PROCESS_SAMPLE,
    PROCESS,
    CGROUP_SAMPLE,
    CGROUP,
    NIC_SAMPLE,
    NIC,
    TCP_SAMPLE,
    TCP,
    DISK_SAMPLE,
    DISK,
    IRQ_SAMPLE,
    NUMA_SAMPLE,
    GPU_SAMPLE,
    GPU,
    OPERATION,
    COLLECTIVE,
    LINK_TEST,
    LOADER_SAMPLE,
    SYNC_UPDATE,
    SYNC_SWITCH,
    SYNC_STEP,
    SYNC_NOISE,
    CALIBRATION,
    ADVISOR_ACTION,
)

BY_NAME = {t.name: t for t in TABLES}
BY_CODE = {t.code: t for t in TABLES}

STEP_SPANS: tuple[str, ...] = (
    "data_wait_us",
    "h2d_us",
    "forward_us",
    "backward_us",
    "blocked_us",
    "optimizer_us",
    "gc_us",
    "checkpoint_us",
    "eval_us",
    "compile_us",
    "user_us",
    "unaccounted_us",
)
"""The exclusive spans of a step; their sum is `dur_us`."""

__all__ = [
    "BY_CODE",
    "BY_NAME",
    "INT_NULL",
    "SCHEMA_VERSION",
    "STEP_SPANS",
    "TABLES",
    "Column",
    "Kind",
    "Table",
    "Type",
    "packed_cells",
    "row",
]
