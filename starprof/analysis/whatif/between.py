"""Other work of a rank (optimizer, data loading, garbage collection), and passes that begin late for no reason seen."""

from __future__ import annotations

from functools import partial

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.causes.base import ms, pct, rank_names
from starprof.analysis.settings import Settings
from starprof.analysis.whatif.passes import Passes, cells_of, grid, lower_median, of_roles
from starprof.analysis.whatif.persistence import High, high_rows
from starprof.analysis.whatif.replay import Replay
from starprof.analysis.whatif.roles import Role
from starprof.analysis.whatif.slow_ranks import kind_of, least_steps
from starprof.analysis.whatif.suspect import Suspect, Taken
from starprof.model import causes


def slow_work(replay: Replay, passes: Passes, settings: Settings) -> list[Suspect]:
    """Ranks whose other work takes longer than that of their peers."""
    result = []
    for kind, role in enumerate(replay.trace.roles):
        if role is not Role.LOCAL:
            continue
        spent = _spent_us(replay, passes, kind)
        more = spent - lower_median(spent, 1)
        result += [_work(replay, passes, kind, spent, high, settings) for high in _found(replay, more, settings)]
    return result


def late_begins(replay: Replay, passes: Passes, settings: Settings) -> list[Suspect]:
    """Ranks whose passes begin later than they could, by more than those of their peers."""
    if passes.row.shape[0] < 2:
        return []
    delays = [part.delay_us for part in replay.parts]
    both = [grid(replay, delays, role) for role in (Role.FORWARD, Role.BACKWARD)]
    more = [np.maximum(np.nan_to_num(d - lower_median(d, 2)), 0.0) for d in both]
    per_step = more[0].sum(axis=1) + more[1].sum(axis=1)
    return [_late(replay, passes, more, high, settings) for high in _found(replay, per_step, settings)]


def _found(replay: Replay, more_us: Floats, settings: Settings) -> list[High]:
    """Ranks that lose time persistently; `more_us` has shape (S, D, P)."""
    share = more_us.reshape(len(more_us), -1) / replay.now_us[:, None]
    return high_rows(share, settings.replay.min_local_share, least_steps(len(share), settings), settings.replay)


def _spent_us(replay: Replay, passes: Passes, kind: int) -> Floats:
    """Time of one kind of work per step and rank, shape (S, D, P); NaN where there is none."""
    sums = []
    for part in replay.parts:
        rows = np.flatnonzero(part.kind == kind)
        total = np.zeros((len(replay.workers.rank), part.takes_us.shape[1]))
        np.add.at(total, part.worker[rows], part.takes_us[rows])
        seen = np.isin(np.arange(len(total)), part.worker[rows])
        sums.append(np.where(seen[:, None], total, np.nan))
    by_worker = replay.in_step_order(sums).T
    spent: Floats = np.where(passes.row >= 0, by_worker[:, passes.row], np.nan)
    return spent


def _cause_of(name: str) -> str:
    words = set(name.lower().replace("_", "-").split("-"))
    for cause, known in (
        (causes.GC, {"gc"}),
        (causes.OPTIMIZER, {"optimizer"}),
        (causes.DATA_LOADING, {"data", "dataloader", "dataload", "loader", "batch"}),
        (causes.CHECKPOINT, {"checkpoint", "save"}),
        (causes.HOST_TO_DEVICE, {"h2d", "memcpy"}),
    ):
        if words & known:
            return cause
    return causes.USER_CODE


def _work(replay: Replay, passes: Passes, kind: int, spent: Floats, high: High, settings: Settings) -> Suspect:
    dp, pp = np.unravel_index(high.row, passes.row.shape)
    row = int(passes.row[dp, pp])
    who, name = rank_names((int(replay.workers.rank[row]),)), replay.trace.names[kind]
    mine = float(np.nanmedian(spent[high.inside, dp, pp]))
    peers = float(np.nanmedian(lower_median(spent[high.inside], 1)[:, 0, pp]))
    return Suspect(
        verdict="straggler",
        kind=kind_of(high, len(spent)),
        cause=_cause_of(name),
        first=high.first,
        end=high.end,
        fix=partial(_shortened, replay, kind, row, high, peers / mine),
        rows=(row,),
        role={"dp": int(replay.workers.dp[row]), "pp": int(replay.workers.pp[row])},
        confidence=0.95 if high.z >= settings.replay.sure_z else 0.85,
        evidence=(f"{name} takes {ms(mine)} a step on {who}, {ms(peers)} on its peers in the stage (medians).",),
        action=f"Look at what {who} does in {name} that its peers do not, and at what else runs on its node.",
        verify=f"Trace again: {name} of {who} should take about {ms(peers)} a step.",
        next=f"Record the job with starprof to see what takes the time on the node of {who}.",
    )


def _shortened(replay: Replay, kind: int, row: int, high: High, factor: float, taken: Taken) -> None:
    for part, values in zip(replay.parts, taken, strict=True):
        step = np.searchsorted(replay.steps, part.schedule.steps)
        rows = np.flatnonzero((part.kind == kind) & (part.worker == row))
        values[rows] *= np.where((step >= high.first) & (step < high.end), factor, 1.0)


def _late(replay: Replay, passes: Passes, more: list[Floats], high: High, settings: Settings) -> Suspect:
    per_step = more[0].sum(axis=1) + more[1].sum(axis=1)
    dp, pp = (int(i) for i in np.unravel_index(high.row, passes.row.shape))
    row = int(passes.row[dp, pp])
    who = rank_names((int(replay.workers.rank[row]),))
    adds = _excess(replay, passes, more, row, high)
    lost = float(np.median(per_step[high.inside, dp, pp]))
    first_pass = float(more[0][high.inside, 0, dp, pp].sum())
    share = first_pass / max(float(per_step[high.inside, dp, pp].sum()), 1e-9)
    feeds = pp in (0, passes.row.shape[1] - 1)
    data = share >= settings.min_cause_share and feeds
    where = "before its first forward pass" if share >= settings.min_cause_share else "between its passes"
    return Suspect(
        verdict="straggler",
        kind=kind_of(high, len(per_step)),
        cause=causes.DATA_LOADING if data else causes.UNKNOWN,
        first=high.first,
        end=high.end,
        fix=partial(_subtracted, adds),
        adds=adds,
        rows=(row,),
        role={"dp": int(replay.workers.dp[row]), "pp": int(replay.workers.pp[row])},
        cause_share=round(share, 4) if data else 0.0,
        confidence=0.9 if high.z >= settings.replay.sure_z else 0.8,
        evidence=(
            f"{who.capitalize()} begins its passes {ms(lost)} a step later than what they wait for would allow, more "
            f"than its peers in the stage; {pct(share)} of that lies before its first forward pass.",
            f"Nothing was traced {where}: the program of the rank was busy or waiting (data loading, host, launch of "
            "kernels).",
        ),
        action=f"Look at the data loader and the host of {who}: other processes, CPU limits, garbage collection.",
        verify=f"Trace again: the passes of {who} should follow each other as those of its peers do.",
        next=f"Record the job with starprof on the node of {who}: it tells data loading, pauses and CPU contention.",
    )


def _excess(replay: Replay, passes: Passes, more: list[Floats], row: int, high: High) -> Taken:
    """The late begins of one rank, as time that its passes take longer."""
    dp, pp = np.argwhere(passes.row == row)[0]
    cells = cells_of(replay)
    result = []
    for part in replay.parts:
        step = np.searchsorted(replay.steps, part.schedule.steps)
        inside = (step >= high.first) & (step < high.end)
        added = np.zeros_like(part.takes_us)
        for role, values in zip((Role.FORWARD, Role.BACKWARD), more, strict=True):
            rows = np.flatnonzero(of_roles(replay, part, role) & (part.worker == row))
            cell = np.searchsorted(cells, part.micro_batch[rows])
            added[rows] = np.where(inside, values[step[None, :], cell[:, None], dp, pp], 0.0)
        result.append(added)
    return result


def _subtracted(adds: Taken, taken: Taken) -> None:
    for values, less in zip(taken, adds, strict=True):
        np.maximum(values - less, 0.0, out=values)
