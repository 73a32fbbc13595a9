"""Public traces whose answer is known: `STARPROF_PUBLIC_DATA`, else `shared/data` beside the project."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from truth import Case, Truth, answer

from starprof.importers.load import load
from starprof.model.rundata import RunData

DATA = Path(os.environ.get("STARPROF_PUBLIC_DATA") or Path(__file__).parents[3] / "shared" / "data")

COMPUTE = ("forward-compute", "backward-compute", "gpu-compute")
STALLED_H100_2432 = ("182", "189", "225", "266")
STALLED_H100_2560 = ("169", "222", "243", "254")

ANSWERS: tuple[tuple[str, Truth], ...] = (
    ("bytedance_whatif/trace-AR.parquet", answer("straggler", ranks=(0,), causes=COMPUTE)),
    ("bytedance_whatif/trace-ST.parquet", answer("structural", causes=("pipeline-stage",))),
    ("bytedance_whatif/trace-SE.parquet", answer("workload-skew", causes=("sequence-length",))),
    ("alibaba_pai_minibatch/job_1_norm.csv", answer("straggler", ranks=(6,), says=("1811",))),
    ("alibaba_pai_minibatch/job_2_norm.csv", answer("straggler", "none", tolerated=frozenset({5}))),
    ("alibaba_pai_minibatch/job_3_norm.csv", answer("straggler", ranks=(0, 1, 6, 7, 8, 9))),
    ("alibaba_pai_minibatch/job_4_norm.csv", answer("straggler", ranks=(0, 5, 6, 7, 8))),
    ("kineto_dlrm_8rank/dlrm_kineto.tar.gz", answer("inconclusive", says=("rank 7", "5"))),
    ("kineto_hta/sampled_rank-*.json.gz", answer("inconclusive")),
    ("kineto_hta/control.json.gz", answer("inconclusive")),
    ("kineto_hta/test.json.gz", answer("inconclusive")),
    ("kineto_hta/rank-34.cpu_only.pt.trace.json.gz", answer("inconclusive")),
    ("tracelens_llama70b", answer("straggler", ranks=(4,))),
    ("ascend_cluster", answer("straggler", ranks=(1,))),
    ("spdl_dataloading/straggler_data_readiness.json", answer("straggler", ranks=(0, 4), causes=("data-loading",))),
    # Its authors show it as an ordinary day, yet one rank's loader is behind for an hour and a half: either is right.
    (
        "spdl_dataloading/across_ranks_data_readiness.json",
        answer("none", "straggler", tolerated=frozenset({0, 19})),
    ),
    ("darma_slow_node/darma_slownode.log", answer("straggler", ranks=(1, 2, 4, 6, 7, 9, 10, 11))),
    (
        "mlperf_step_times/v5.0_NVIDIA_2432xH100_llama405b_r1.mllog",
        answer("inconclusive", causes=("unknown",), says=STALLED_H100_2432),
    ),
    (
        "mlperf_step_times/v5.0_NVIDIA_2560xH100_llama405b_r0.mllog",
        answer("inconclusive", causes=("unknown",), says=STALLED_H100_2560),
    ),
    ("mlperf_step_times/v5.0_NVIDIA_2560xH100_llama405b_r1_clean.mllog", answer("none")),
)

HANGS: tuple[tuple[str, Truth], ...] = (
    ("gpu_error_1st", answer("hang", ranks=(12, 14), causes=("missing-collective",))),
    ("gpu_error_2nd", answer("hang", ranks=(9, 14), causes=("missing-collective",))),
    ("lock_gil_1st", answer("hang", ranks=(9, 14), causes=("missing-collective",))),
    ("lock_gil_2nd", answer("hang", ranks=(10, 15), causes=("missing-collective",))),
)


def cases() -> Iterator[Case]:
    """All sets."""
    for pattern, truth in ANSWERS:
        yield Case(pattern, truth, partial(_load, pattern))
    for folder, truth in HANGS:
        yield Case(f"nccl_flight_recorder {folder}", truth, _hang(folder))


def _load(pattern: str) -> RunData:
    path = DATA / pattern
    if not any(path.parent.glob(path.name)):
        raise FileNotFoundError(path)
    return load([str(path)])


def _hang(folder: str) -> Callable[[], RunData]:
    """The dumps of one of the four hangs that lie in one archive."""

    def read() -> RunData:
        with (
            tarfile.open(DATA / "nccl_flight_recorder" / "fr_traces.tar.gz") as archive,
            tempfile.TemporaryDirectory() as to,
        ):
            archive.extractall(to, filter="data")
            found = sorted(path for path in Path(to).rglob(folder) if path.is_dir())
            if not found:
                raise FileNotFoundError(folder)
            return load([str(found[0])])

    return read
