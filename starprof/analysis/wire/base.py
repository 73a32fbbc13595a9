"""What a rule on a slow reduction gets and gives, and the look-ups that the rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.causes.contrast import NAN, Contrast
from starprof.analysis.counters import Counters
from starprof.analysis.network.links import Windows
from starprof.analysis.network.location import Location
from starprof.analysis.network.rails import PHYSICAL, nic_names
from starprof.analysis.network.served import Users, users
from starprof.analysis.own_time import OwnTime

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Port:
    """One physical interface of a node; `rail` is the bond that it belongs to, else its own name."""

    node: int
    name: str
    type: str
    rows: pd.DataFrame
    rail: str


@dataclass(frozen=True)
class WireCase:
    """A reduction that takes longer than it should.

    Attributes:
        windows: the slow steps, and healthy ones when there are any.
        before_us: what it took per step before; NaN when it was slow from the start.
        after_us: what it takes.
        place: where the sockets' round trips put the slow link.
    """

    own: OwnTime
    counters: Counters
    windows: Windows
    before_us: float
    after_us: float
    place: Location

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Nodes of the ranks."""
        return tuple(sorted({info.node for info in self.own.infos}))

    @cached_property
    def ports(self) -> tuple[Port, ...]:
        """Physical interfaces of those nodes that were sampled."""
        found = []
        names = nic_names(self.counters)
        for (node, nic), rows in self.counters.series("nic_sample", ("node", "nic")).items():
            named = names.get((int(node), int(nic)))
            if named is not None and int(node) in self.nodes and named.type in PHYSICAL:
                found.append(Port(int(node), named.name, named.type, rows, named.rail))
        return tuple(found)

    def row_of(self, node: int) -> int:
        """A row whose clock is the node's."""
        return next(row for row, info in enumerate(self.own.infos) if info.node == node)

    def rate(self, port: Port, columns: Iterable[str], past: bool = False) -> float:
        """Growth per second of some counters of a port, summed; NaN when none was measured."""
        return self._rate(port, columns, self.span(port.node, past))

    def settled_rate(self, port: Port, columns: Iterable[str]) -> float:
        """The same without the first and last tenth of the slow window: the onset is known to a few steps only."""
        start, end = self.windows.slow_ns(self.row_of(port.node))
        margin = (end - start) / 10.0
        return self._rate(port, columns, (start + margin, end - margin))

    def _rate(self, port: Port, columns: Iterable[str], span: tuple[float, float] | None) -> float:
        if span is None:
            return NAN
        rates = [self.counters.grew(port.rows, column, *span).per_second for column in columns]
        known = [value for value in rates if value == value]
        return float(sum(known)) if known else NAN

    def gauge(self, port: Port, column: str, past: bool = False) -> float:
        """Mean of a gauge of a port; NaN when not measured."""
        span = self.span(port.node, past)
        return NAN if span is None else self.counters.mean(port.rows, column, *span)

    def span(self, node: int, past: bool = False) -> tuple[float, float] | None:
        """The slow or the healthy window in a node's clock."""
        row = self.row_of(node)
        return self.windows.past_ns(row) if past else self.windows.slow_ns(row)

    def host(self, node: int) -> str:
        """Name of a node."""
        return self.counters.host(node)

    def hosts(self, nodes: Iterable[int]) -> str:
        """Names of nodes in words."""
        names = [self.host(node) for node in nodes]
        return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1] if names else "no node"

    @property
    def rise_us(self) -> float:
        """What the reduction takes longer, per step; NaN when it was slow from the start."""
        return self.after_us - self.before_us


@dataclass(frozen=True, slots=True)
class WireCause:
    """Why a reduction takes longer.

    Attributes:
        nodes: where the cause lies; empty when all nodes are alike.
        ranks: ranks of those nodes, or of one GPU, to blame; empty when nobody of the job is.
        share: part of the slowness that it covers, 0..1.
        certainty: see `Explanation.certainty`.
        remaining: what the reduction would take without it, as a share of now; NaN when that can't be said.
    """

    cause: str
    nodes: tuple[int, ...]
    ranks: tuple[int, ...]
    share: float
    certainty: float
    evidence: tuple[str, ...]
    action: str
    verify: str
    next: str = ""
    remaining: float = NAN


WireRule = Callable[[WireCase], WireCause | None]


def ranks_on(case: WireCase, nodes: Iterable[int]) -> tuple[int, ...]:
    """Global ranks of some nodes."""
    wanted = set(nodes)
    return tuple(sorted(info.rank for info in case.own.infos if info.node in wanted))


def behind(case: WireCase, ports: Iterable[Port]) -> Users:
    """Ranks that some ports serve."""
    return users(case.own.infos, case.counters.rails, [(port.node, port.rail) for port in ports], case.host)


def minority(case: WireCase, nodes: list[int]) -> bool:
    """Few enough of the nodes to stand out from the others."""
    return 0 < 2 * len(nodes) < len(case.nodes) or (len(nodes) == 1 and len(case.nodes) == 2)


def among_nodes(mine: float, past: float, others: Iterable[float]) -> Contrast:
    """One node's value beside its past and the other nodes'."""
    seen = [value for value in others if value == value]
    return Contrast(mine, past, float(np.median(seen)) if seen else NAN)
