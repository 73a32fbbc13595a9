"""What analysis and reports read of a run: plain arrays and frames, no database.

`starprof.store.query.load_run` fills it from a run file; importers of other formats will fill it from theirs.
This module imports numpy and pandas only for annotations, so that the small processes can import the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

STEPS_PER_RECORD = "steps_per_record"
"""Key in a rank's detail: how many steps a step record is the mean of, where a log has told means; 1 when absent."""

WORLD_SIZE = "world_size"
"""Key in a rank's detail: ranks of the whole job, where the source holds only some of them."""

TIMEOUT_S = "timeout_s"
"""Key in a rank's detail: seconds after which the process group gives up waiting for a collective."""

MEASURED_BY = "measured_by"
"""Key in a rank's detail: `device` when step records tell the computing device's own time, `host` when it may have
worked on meanwhile, so that a longer time of the host need not delay it."""

MOMENTUM = "momentum"
"""Key in a rank's detail: how much of its last move an optimizer repeats, 0 to below 1 (SGD's momentum, Adam's first
beta); of several the most, absent where an optimizer has neither."""

GPU_PCI = "gpu_pci"
"""Key in a rank's detail: PCI address of its GPU as torch tells it, such as 0000:18:00.0."""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """One rank of the attempt that is looked at (columns of table `rank`; None = not known)."""

    rank: int
    node: int
    host: str
    local_rank: int | None = None
    pid: int | None = None
    device: str | None = None
    gpu_uuid: str | None = None
    numa_node: int | None = None
    cpus: str | None = None
    role: Mapping[str, int] = field(default_factory=dict)
    framework: str | None = None
    backend: str | None = None
    torch_version: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Steps:
    """Step records of one attempt as rank x step matrices.

    Attributes:
        steps: step numbers, shape (S,).
        columns: per step-table column a float64 matrix, shape (R, S), microseconds or counts; NaN = no record
            or NULL. `start_mono_ns` is int64 (R, S), 0 where there is no record, in the rank's node's own clock.
    """

    steps: NDArray[np.int64]
    columns: Mapping[str, NDArray[np.float64]]
    start_mono_ns: NDArray[np.int64]

    def __getitem__(self, column: str) -> NDArray[np.float64]:
        """Matrix of one column, shape (R, S)."""
        return self.columns[column]


@dataclass(frozen=True)
class RunData:
    """One run, one attempt.

    Attributes:
        info: the row of table `run`, plus `file` and `attempts`.
        attempt: the attempt looked at (the longest, unless asked otherwise).
        ranks: in rank order; row i of every matrix belongs to ranks[i].
        samples: per sampled table (and its dictionary tables `nic`, `tcp`, `cgroup`, `process`, `gpu`, `disk`) a
            frame with the table's columns; counters are still cumulative. Missing table: empty frame.
        operations: table `operation`, rows of this attempt; None unless the run was imported from an op trace.
        collectives: table `collective`, likewise.
        link_tests: table `link_test`.
        sync_updates: table `sync_update` of this attempt, None unless control moved the job to rounds; of very many
            versions a random part, all rows of each.
        sync_switches: table `sync_switch`, likewise, complete.
        sync_steps: table `sync_step`, likewise, of very many rows a random part.
        sync_noise: table `sync_noise`, likewise, complete.
        calibrations: table `calibration`, likewise, complete; None unless the job was calibrated.
        advisor_actions: table `advisor_action`, likewise, complete; None unless an advisor had something to say.
        clock_offset_ns: per node (offset to node 0, error bound); a node without an entry is not calibrated.
    """

    info: Mapping[str, Any]
    attempt: int
    ranks: tuple[RankInfo, ...]
    steps: Steps
    samples: Mapping[str, pd.DataFrame]
    events: pd.DataFrame
    gaps: pd.DataFrame
    unavailable: pd.DataFrame
    nodes: pd.DataFrame
    operations: pd.DataFrame | None = None
    collectives: pd.DataFrame | None = None
    link_tests: pd.DataFrame | None = None
    sync_updates: pd.DataFrame | None = None
    sync_switches: pd.DataFrame | None = None
    sync_steps: pd.DataFrame | None = None
    sync_noise: pd.DataFrame | None = None
    calibrations: pd.DataFrame | None = None
    advisor_actions: pd.DataFrame | None = None
    clock_offset_ns: Mapping[int, tuple[int, int]] = field(default_factory=dict)
