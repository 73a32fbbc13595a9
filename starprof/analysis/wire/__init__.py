"""Why a reduction takes longer, from the counters of interfaces, sockets and GPU links: one module per cause.

A rule looks at one `WireCase` and returns a `WireCause` or None; the first that covers enough names the cause. A link
that only the sockets' round trips show is located afterwards (`starprof.analysis.network.location`).
"""

from __future__ import annotations

from starprof.analysis.settings import Settings
from starprof.analysis.wire import loss, lower_speed, more_communication, nvlink, pfc, saturation, wrong_interface
from starprof.analysis.wire.base import WireCase, WireCause, WireRule

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


__all__ = ["RULES", "WireCase", "WireCause", "WireRule", "explain_wire"]
