"""The one line that says why a verdict on step records is what it is."""

from __future__ import annotations

import numpy as np

from starprof.analysis.causes.base import ms, pct, rank_names
from starprof.analysis.findings import Context
from starprof.analysis.hangs.xids import told_of
from starprof.analysis.slowness import Slowness
from starprof.model.verdict import Cost, Finding, VerdictKind

Found = list[tuple[Slowness, Finding]]

ALIKE = (
    "What slows all ranks alike from the first step on, such as a wrong configuration, does not show in one run: "
    "compare it with a run that was healthy (--baseline RUN)."
)


def reason(context: Context, kind: VerdictKind, found: Found, cost: Cost) -> str:
    """Why this verdict, in one line."""
    missing = context.own.missing
    driver = " ".join(told_of(context.run, missing).lines[:1]) if missing else ""
    unseen = f" No samples from {rank_names(missing)}." if missing else ""
    unseen += f" {driver}" if driver else ""
    share = f"{pct(cost.share)} of the time"
    match kind:
        case "straggler":
            worst = next(f for _, f in found if f.ranks)
            where = f" on {', '.join(worst.nodes)}" if worst.nodes else ""
            return f"{rank_names(worst.ranks).capitalize()}{where}: {worst.cause}, {share}.{unseen}"
        case "workload-skew":
            return f"Ranks with larger batches are late ({share}); no device is to blame.{unseen}"
        case "structural":
            return f"A pipeline stage is heavier than the others ({share}); no rank is to blame."
        case "rotating":
            return f"Late steps move over the ranks and cost {share}; no rank is to blame.{unseen}"
        case "uniform":
            return _uniform(context, found, share) + unseen
        case "shared":
            return f"Something that ranks share is slow ({share}); no rank is to blame.{unseen}"
        case "inconclusive" if found and not missing:
            return f"The reduction became slower ({share}), but not whose fault it is could be told."
        case "inconclusive":
            line = f"No samples from {rank_names(missing)}: a rank that was not recorded may be the slow one."
            return f"{line} {driver}" if driver else line
    return _nobody(context, found)


def _uniform(context: Context, found: Found, share: str) -> str:
    sources = {slowness.source for slowness, _ in found}
    if "counted" in sources:
        return f"A limit holds all ranks back from the first step on ({share})."
    if "uniform" not in sources:
        return f"The reduction is slow for everybody ({share}); no rank is to blame."
    if context.own.shape[0] == 1:
        return f"The only rank became slower than it was before ({share})."
    return f"All ranks slowed down together ({share}); there is no straggler."


def _nobody(context: Context, found: Found) -> str:
    own = context.own
    if own.shape[0] == 1:
        return (
            f"Rank {own.rank(0)} is the only one: there is nobody to compare it with. Against its own past it did not "
            "become slower lastingly."
        )
    crowded = next((s.after_us for s, _ in found if s.source == "counted"), None)
    if crowded is not None:
        return f"No rank is late persistently; all of them lose {pct(crowded)} of their own time waiting for a CPU."
    most = float(np.max(np.abs(np.nanmean(context.comparison.lateness_us, axis=1))))
    return (
        f"No rank is late persistently: over {own.shape[1]} steps no rank's own time differs from its peers' by more "
        f"than {ms(most)} per step on average. {ALIKE}"
    )
