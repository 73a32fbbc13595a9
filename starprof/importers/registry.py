"""The formats that can be read, most telling first: adding one is a module and one line here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import cast

from starprof.importers.base import Importer

MODULES: tuple[str, ...] = (
    "logs.mllog",
    "traces.op_trace",
    "traces.kineto",
    "traces.tracelens",
    "traces.msprof",
    "traces.traceml",
    "nccl.flight_recorder",
    "nccl.nccl_inspector",
    "traces.horovod_timeline",
    "workers.readiness",
    "nccl.pair_table",
    "logs.scalars",
    "logs.series_json",
    "workers.worker_csv",
    "logs.training_log",
    "workers.worker_text",
)
"""Modules of this package. The order decides where a folder holds several formats, and where a file fits several."""

METRICS: tuple[str, ...] = (
    "metrics.nvidia_smi",
    "metrics.dmon",
    "metrics.prometheus",
    "metrics.sagemaker",
    "metrics.kernel_log",
)
"""Modules whose runs hold samples and no steps: they are read beside one of the others, or alone."""


def importers() -> Iterator[Importer]:
    """All importers, in order."""
    yield from steps_importers()
    yield from metrics_importers()


def steps_importers() -> Iterator[Importer]:
    """Those whose runs hold step times, or tell who came last otherwise."""
    yield from map(_module, MODULES)


def metrics_importers() -> Iterator[Importer]:
    """Those whose runs hold samples only."""
    yield from map(_module, METRICS)


def _module(name: str) -> Importer:
    return cast("Importer", importlib.import_module(f"starprof.importers.{name}"))
