"""Puts rows of a calibration into the spool of the run, from where they get into the run file like all others."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starprof.control.actuators.job import JobHere
from starprof.control.actuators.processes import environment
from starprof.model import env
from starprof.model.columns import row
from starprof.model.tables.calibration import CALIBRATION
from starprof.spool.frame import json_frame
from starprof.spool.segment import SegmentWriter


def keep(job: JobHere, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write them, sealed and synced.

    Raises:
        SpoolError: they can't be written.
    """
    if not rows:
        return
    source = f"n{rows[0]['node']}-calibrate-{os.getpid()}-{time.monotonic_ns() // 1_000_000}"
    writer = SegmentWriter(job.spool.segments, source)
    cells = [row(CALIBRATION, **values) for values in rows]
    writer.write([json_frame(CALIBRATION, f"{source}/{CALIBRATION.name}", 0, cells)])
    writer.close()


def place(job: JobHere) -> tuple[int, int]:
    """Node and attempt of the job's ranks on this machine; 0 where they don't tell."""
    for member in job.members():
        told = environment(member.pid)
        node, attempt = told.get(env.NODE, ""), told.get("TORCHELASTIC_RESTART_COUNT", "")
        return (int(node) if node.isdecimal() else 0, int(attempt) if attempt.isdecimal() else 0)
    return 0, 0
