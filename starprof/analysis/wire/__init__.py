"""Why a reduction takes longer, from the counters of interfaces, sockets and GPU links: one module per cause.

A rule looks at one `WireCase` and returns a `WireCause` or None; the first that covers enough names the cause. A link
that only the sockets' round trips show is located afterwards (`starprof.analysis.network.location`).
"""

from __future__ import annotations

from starprof.analysis.causes.base import pct
from starprof.analysis.settings import Settings
from starprof.analysis.wire import loss, lower_speed, more_communication, nvlink, pfc, saturation, wrong_interface
from starprof.analysis.wire.base import WireCase, WireCause, WireRule

MIN_MENTIONED = 0.1

RULES: tuple[WireRule, ...] = (
    nvlink.explain,
    lower_speed.explain,
    wrong_interface.explain,
    pfc.explain,
    saturation.explain,
    loss.explain,
    more_communication.explain,
)


def explain_wire(case: WireCase, settings: Settings) -> WireCause | None:
    """The first cause that covers enough of what the reduction takes longer; None when no counter shows one."""
    found = (rule(case) for rule in RULES)
    return next((c for c in found if c is not None and c.share >= settings.min_cause_share), None)


def partly_explained(case: WireCase) -> tuple[str, ...]:
    """What counters show that covers a part of it only, in words; for when `explain_wire` has found nothing."""
    found = [cause for rule in RULES if (cause := rule(case)) is not None and cause.share >= MIN_MENTIONED]
    return tuple(f"{cause.evidence[0]} That covers {pct(cause.share)} of what it takes longer." for cause in found)


__all__ = ["RULES", "WireCase", "WireCause", "WireRule", "explain_wire", "partly_explained"]
