"""Pipeline stages that are heavier than the others: a property of the split of the model, not of any rank."""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.cost import Reduction
from starprof.analysis.own_time import OwnTime
from starprof.analysis.settings import Settings
from starprof.analysis.slowness import Slowness

ALL_MEMBERS = 0.5
"""Every rank of a heavy stage carries at least this part of the stage's excess; else a rank is slow, not the stage."""
PIECES = 12


def heavy_stages(own: OwnTime, settings: Settings) -> list[Slowness]:
    """One structural slowness for each stage that is heavier than most, throughout the run."""
    stage_of = [info.role.get("pp") for info in own.infos]
    stages = sorted({stage for stage in stage_of if stage is not None})
    if len(stages) < 2 or None in stage_of:
        return []
    members = [np.flatnonzero([stage == each for each in stage_of]) for stage in stages]
    centre = np.array([np.nanmedian(own.work[rows], axis=0) for rows in members])
    level = np.nanmedian(centre, axis=1)
    found = []
    for i, rows in enumerate(members):
        others = np.delete(np.arange(len(stages)), i)
        usual = float(np.median(level[others]))
        if level[i] - usual < settings.min_stage_excess * own.healthy_step_us:
            continue
        if _every_member(own.work[rows], usual, float(level[i])) and _throughout(centre, i, others, settings):
            found.append(_structural(own, rows, usual / float(level[i])))
    # When most stages stand out, it is the light ones that are special.
    return found if len(found) * 2 <= len(stages) else []


def _every_member(work: Floats, usual: float, level: float) -> bool:
    return bool((np.nanmedian(work, axis=1) - usual >= ALL_MEMBERS * (level - usual)).all())


def _throughout(centre: Floats, stage: int, others: Ints, settings: Settings) -> bool:
    """The stage is heavy in nearly all parts of the run: how the model is split does not change."""
    excess = centre[stage] - np.median(centre[others], axis=0)
    pieces = np.array_split(excess, min(PIECES, len(excess)))
    late = [np.nanmedian(piece) >= ALL_MEMBERS * np.nanmedian(excess) for piece in pieces]
    return bool(np.mean(late) >= settings.min_late_windows)


def _structural(own: OwnTime, rows: Ints, factor: float) -> Slowness:
    """What would be gone if the stage were as light as the usual one."""
    return Slowness(
        kind="structural",
        rows=tuple(int(row) for row in rows),
        start=0,
        end=own.shape[1],
        onset=(0, 0),
        steps=np.ones(own.shape[1], bool),
        reduction=Reduction({int(row): np.nan_to_num(own.work[row]) * (1.0 - factor) for row in rows}),
        source="structural",
        blame=False,
    )
