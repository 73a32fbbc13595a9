"""Why control would refuse to move a job to rounds, as far as its recording tells.

What was wanted and refused is certain. Beside that the same reasons as `starprof.control.engine.refusals` are looked
for in what was recorded, for runs without control; a loop may still be refused for what no recording shows.
"""

from __future__ import annotations

import numpy as np

from starprof.model.rundata import RunData
from starprof.model.tables.sync import NATIVE

FREQUENT = 0.5
"""Share of steps with a collective of the loop's own from which on rounds are of no use."""
COORDINATOR = "coordinator"
"""Asks for native steps itself when a rank can't be in rounds any more."""
FRAMEWORKS_WITH_ROUNDS = {"ddp", None}


def refusals(run: RunData) -> tuple[str, ...]:
    """One sentence each; empty when nothing is known to speak against rounds."""
    found = _said(run)
    if not found and not _was_in_rounds(run):
        found = _seen(run)
    return tuple(dict.fromkeys(found))


def _said(run: RunData) -> list[str]:
    """What was recorded: a mode that was wanted and could not be had, or rounds that a rank could not stay in."""
    switches = run.sync_switches
    if switches is None or not len(switches):
        return []
    switches = switches.sort_values("mono_ns", kind="stable").reset_index(drop=True)
    held = np.flatnonzero(switches["version"].notna())
    newer = switches.iloc[int(held[-1]) + 1 if len(held) else 0 :]
    wanted = newer[(newer["to_mode"] != NATIVE) & newer["reason"].notna()]
    if len(wanted):
        return [str(wanted.iloc[-1]["reason"])]
    last = switches.iloc[int(held[-1])] if len(held) else None
    if last is not None and last["to_mode"] == NATIVE and last["asked_by"] == COORDINATOR and last["reason"]:
        return [str(last["reason"])]
    return []


def _was_in_rounds(run: RunData) -> bool:
    return run.sync_updates is not None and len(run.sync_updates) > 0


def _seen(run: RunData) -> list[str]:
    """What the recording shows of the loop."""
    found = []
    frameworks = {rank.framework for rank in run.ranks}
    if run.info.get("source_format"):
        frameworks = set()  # its names are those of the tool that wrote the files
    if "fsdp2" in frameworks:
        found.append(
            "the model is in FSDP, where every rank owns a part of each parameter; only with replicas (HSDP) it works"
        )
    elif not frameworks <= FRAMEWORKS_WITH_ROUNDS:
        found.append("the model isn't in DistributedDataParallel, whose gradients rounds are made of; wrap it")
    parts = sorted({name for rank in run.ranks for name, at in rank.role.items() if name in ("pp", "tp") and at > 0})
    if parts:
        found.append(f"ranks hold parts of a model ({', '.join(parts)}) and can't go on without each other")
    if any(str(rank.device or "").startswith("cuda") for rank in run.ranks):
        found.append("the model is on a GPU, where rounds are untested; set STARPROF_CONTROL_GPU=1 to try them")
    if "ddp" in frameworks and _collectives(run) > FREQUENT:
        found.append("the loop itself calls a collective in most steps, which waits for all ranks")
    return found


def _collectives(run: RunData) -> float:
    """Share of the steps in which the loop itself called one, as the rank that did most often shows."""
    values = run.steps.columns.get("collectives")
    if values is None or not values.size:
        return 0.0
    return float((np.nan_to_num(values, nan=0.0) > 0).mean(axis=1).max())
