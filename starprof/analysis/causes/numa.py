"""The rank runs on another NUMA node than its GPU: copies cross the link between the sockets."""

from __future__ import annotations

from starprof.analysis.binding import Binding, bindings
from starprof.analysis.causes.base import COINCIDES, Case, Explanation, pct
from starprof.analysis.causes.contrast import of_most
from starprof.model import causes

COPY_PHASES = ("h2d", "data_wait")
MAX_LISTED = 16


def explain(case: Case) -> Explanation | None:
    """Late ranks are bound away from their GPU, their peers are not, and the loss lies in what crosses the link."""
    table = {binding.rank: binding for binding in bindings(case.run)}
    found = of_most(case, [_remote(case, table, row) for row in case.rows])
    peers = [table[case.own.rank(peer)] for row in case.rows for peer in case.peers(row)]
    bound = [peer for peer in peers if peer.cpu_numa and peer.gpu_numa is not None]
    if not found or not bound or 2 * sum(peer.remote for peer in bound) > len(bound):
        return None
    share = case.phases.share(*COPY_PHASES)
    commands = "; ".join(f"rank {b.rank}: {b.command}" for b in found[:MAX_LISTED])
    nodes = {case.own.infos[row].node for row in case.rows}
    rows = [b for b in table.values() if b.node in nodes][:MAX_LISTED]
    return Explanation(
        cause=causes.NUMA,
        share=share,
        evidence=(
            f"{case.who} may only run on cores that its GPU is not attached to, its peers are bound beside theirs: "
            + "; ".join(b.words() for b in rows)
            + ".",
            f"{pct(share)} of the excess lies in what crosses the link between the sockets (copies to the device, "
            "waiting for data).",
        ),
        action=f"Start each rank on its GPU's NUMA node: {commands}.",
        verify=f"Bound that way the copies of {case.who} must take as long as its peers'; if they do not, the binding "
        "was not the cause.",
        certainty=COINCIDES,
        partly=f"copies across NUMA nodes cover {pct(share)}",
    )


def _remote(case: Case, table: dict[int, Binding], row: int) -> Binding | None:
    binding = table[case.own.rank(row)]
    return binding if binding.remote else None
